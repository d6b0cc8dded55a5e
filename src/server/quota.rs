//! A limit on what is open at a time. Each tenant has an equal share of it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{auth::Auth, domain::Tenant};

/// Issues permits up to the limit. Clones share it.
#[derive(Clone)]
pub struct TenantQuota(Arc<QuotaState>);

struct QuotaState {
    limit: usize,
    /// Knows the number of tenants. `None`: the limit is not divided.
    auth: Option<Arc<Auth>>,
    counts: Mutex<PermitCounts>,
}

#[derive(Default)]
struct PermitCounts {
    total: usize,
    /// Only tenants that hold permits.
    by_tenant: HashMap<Tenant, usize, foldhash::quality::RandomState>,
}

/// Counts against the quota until it is dropped.
pub struct Permit {
    quota: TenantQuota,
    tenant: Tenant,
}

impl TenantQuota {
    pub fn new(limit: usize, auth: Arc<Auth>) -> Self {
        Self::with_auth(limit, Some(auth))
    }

    /// For callers without a token.
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

    /// Takes a permit. `Err` is the tenant's share, which is used up.
    pub fn try_acquire(&self, tenant: &Tenant) -> Result<Permit, usize> {
        let tenants = self.0.auth.as_ref().map_or(1, |auth| auth.tenant_count());
        let share = (self.0.limit / tenants).max(1);
        let mut counts = self.0.counts.lock();
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
}

impl Permit {
    /// More than `uncontended_max` permits are held, by more than one tenant.
    pub fn is_contended(&self, uncontended_max: usize) -> bool {
        let counts = self.quota.0.counts.lock();
        counts.total > uncontended_max && counts.by_tenant.len() > 1
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.quota.0.counts.lock();
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
    fn permits_are_released_and_a_tenant_without_any_is_not_counted() {
        let auth = Auth::new(&crate::auth::Settings::default()).unwrap();
        let quota = TenantQuota::new(2, Arc::new(auth));
        let tenant = Tenant::default();
        let permits = [quota.try_acquire(&tenant), quota.try_acquire(&tenant)];
        assert!(permits.iter().all(Result::is_ok));
        assert_eq!(quota.try_acquire(&tenant).err(), Some(2));
        drop(permits);
        assert!(quota.0.counts.lock().by_tenant.is_empty());
        assert_eq!(quota.0.counts.lock().total, 0);
        assert!(quota.try_acquire(&tenant).is_ok());
    }
}
