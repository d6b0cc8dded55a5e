//! Limits on what is open at a time. Each tenant has an equal share of a
//! [`TenantQuota`]; no address has more than its share of an [`AddressQuota`].

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;

use crate::{
    auth::{Auth, PeerAddress},
    domain::Tenant,
};

/// Issues permits up to the limit. Clones share it.
#[derive(Clone)]
pub struct TenantQuota(Arc<QuotaState>);

struct QuotaState {
    limit: usize,
    /// Knows the number of tenants.
    auth: Arc<Auth>,
    counts: Mutex<PermitCounts<Tenant>>,
}

struct PermitCounts<K> {
    total: usize,
    /// Only holders of permits.
    by_holder: HashMap<K, usize, foldhash::quality::RandomState>,
}

impl<K> Default for PermitCounts<K> {
    fn default() -> Self {
        Self {
            total: 0,
            by_holder: HashMap::default(),
        }
    }
}

impl<K: Clone + Eq + Hash> PermitCounts<K> {
    /// `false`: the holder has its share, or all are taken.
    fn try_add(&mut self, holder: &K, share: usize, limit: usize) -> bool {
        let held = self.by_holder.get(holder).copied().unwrap_or(0);
        if held >= share || self.total >= limit {
            return false;
        }
        self.total += 1;
        self.by_holder.insert(holder.clone(), held + 1);
        true
    }

    fn remove(&mut self, holder: &K) {
        self.total -= 1;
        if let Some(held) = self.by_holder.get_mut(holder) {
            *held -= 1;
            if *held == 0 {
                self.by_holder.remove(holder);
            }
        }
    }
}

/// Counts against the quota until it is dropped.
pub struct Permit {
    quota: TenantQuota,
    tenant: Tenant,
}

impl TenantQuota {
    pub fn new(limit: usize, auth: Arc<Auth>) -> Self {
        Self(Arc::new(QuotaState {
            limit,
            auth,
            counts: Mutex::default(),
        }))
    }

    /// Takes a permit. `Err` is the tenant's share, which is used up.
    pub fn try_acquire(&self, tenant: &Tenant) -> Result<Permit, usize> {
        let share = (self.0.limit / self.0.auth.tenant_count()).max(1);
        if !self.0.counts.lock().try_add(tenant, share, self.0.limit) {
            return Err(share);
        }
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
        counts.total > uncontended_max && counts.by_holder.len() > 1
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.0.counts.lock().remove(&self.tenant);
    }
}

/// A quota for callers without a token, of whom only the address is known.
#[derive(Clone)]
pub struct AddressQuota {
    limit: usize,
    /// For one address. Peers whose address is not known share one.
    share: usize,
    counts: Arc<Mutex<PermitCounts<Option<PeerAddress>>>>,
}

/// Counts against the quota until it is dropped.
pub struct AddressPermit {
    counts: Arc<Mutex<PermitCounts<Option<PeerAddress>>>>,
    peer: Option<PeerAddress>,
}

impl AddressQuota {
    pub fn new(limit: usize, share: usize) -> Self {
        Self {
            limit,
            share,
            counts: Arc::default(),
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// `Err` is the share of an address.
    pub fn try_acquire(&self, peer: Option<PeerAddress>) -> Result<AddressPermit, usize> {
        if !self.counts.lock().try_add(&peer, self.share, self.limit) {
            return Err(self.share);
        }
        let counts = self.counts.clone();
        Ok(AddressPermit { counts, peer })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        self.counts.lock().remove(&self.peer);
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
        assert!(quota.0.counts.lock().by_holder.is_empty());
        assert_eq!(quota.0.counts.lock().total, 0);
        assert!(quota.try_acquire(&tenant).is_ok());
    }

    #[test]
    fn no_address_has_more_than_its_share() {
        let quota = AddressQuota::new(3, 2);
        let [a, b] = [1, 2].map(|host| Some(PeerAddress::new([192, 0, 2, host].into())));
        let of_a = [quota.try_acquire(a), quota.try_acquire(a)];
        assert!(of_a.iter().all(Result::is_ok));
        assert_eq!(quota.try_acquire(a).err(), Some(2));
        let of_b = quota.try_acquire(b);
        assert!(of_b.is_ok());
        assert!(quota.try_acquire(b).is_err(), "all are taken");
        drop(of_a);
        assert!(quota.try_acquire(b).is_ok());
    }
}
