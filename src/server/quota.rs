//! A bound on what is open at a time, of which each tenant has an equal share.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use crate::{auth::Auth, domain::Tenant};

/// Clones share the places.
#[derive(Clone)]
pub struct TenantQuota(Arc<QuotaState>);

struct QuotaState {
    limit: usize,
    /// Says among how many they are shared. `None`: nobody has a share.
    auth: Option<Arc<Auth>>,
    counts: Mutex<PermitCounts>,
}

#[derive(Default)]
struct PermitCounts {
    total: usize,
    /// Only those who have some.
    by_tenant: HashMap<Tenant, usize, foldhash::quality::RandomState>,
}

/// Held as long as what it is for is open.
pub struct Permit {
    quota: TenantQuota,
    tenant: Tenant,
}

impl TenantQuota {
    pub fn new(limit: usize, auth: Arc<Auth>) -> Self {
        Self::with_auth(limit, Some(auth))
    }

    /// For those who have shown no token.
    pub fn without_tenant_shares(limit: usize) -> Self {
        Self::with_auth(limit, None)
    }

    fn with_auth(limit: usize, auth: Option<Arc<Auth>>) -> Self {
        Self(Arc::new(QuotaState {
            limit,
            auth,
            counts: Mutex::default(),
        }))
    }

    /// A place, or how many this tenant may have.
    pub fn try_acquire(&self, tenant: &Tenant) -> Result<Permit, usize> {
        let tenants = self.0.auth.as_ref().map_or(1, |auth| auth.tenant_count());
        let share = (self.0.limit / tenants).max(1);
        let mut counts = self.lock_counts();
        let tenant_count = counts.by_tenant.get(tenant).copied().unwrap_or(0);
        if tenant_count >= share || counts.total >= self.0.limit {
            return Err(share);
        }
        counts.total += 1;
        counts.by_tenant.insert(tenant.clone(), tenant_count + 1);
        Ok(Permit {
            quota: self.clone(),
            tenant: tenant.clone(),
        })
    }

    fn lock_counts(&self) -> MutexGuard<'_, PermitCounts> {
        self.0.counts.lock()
    }
}

impl Permit {
    /// There are more than so many, and not all of one tenant.
    pub fn is_contended(&self, uncontended_max: usize) -> bool {
        let counts = self.quota.lock_counts();
        counts.total > uncontended_max && counts.by_tenant.len() > 1
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.quota.lock_counts();
        counts.total -= 1;
        if let Some(tenant_count) = counts.by_tenant.get_mut(&self.tenant) {
            *tenant_count -= 1;
            if *tenant_count == 0 {
                counts.by_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_and_none_is_counted_for_who_has_none() {
        let auth = Auth::new(&crate::auth::Settings::default()).unwrap();
        let places = TenantQuota::new(2, Arc::new(auth));
        let tenant = Tenant::default();
        let held = [places.try_acquire(&tenant), places.try_acquire(&tenant)];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(places.try_acquire(&tenant).err(), Some(2));
        drop(held);
        assert!(places.lock_counts().by_tenant.is_empty());
        assert_eq!(places.lock_counts().total, 0);
        assert!(places.try_acquire(&tenant).is_ok());
    }
}
