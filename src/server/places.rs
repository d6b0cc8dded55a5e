//! A bound on what is open at a time, of which each tenant has an equal share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{auth::Auth, domain::Tenant};

/// Clones share the places.
#[derive(Clone)]
pub struct Places(Arc<All>);

struct All {
    most: usize,
    /// Says among how many they are shared. `None`: nobody has a share.
    auth: Option<Arc<Auth>>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Only those who have some.
    by_tenant: HashMap<Tenant, usize, foldhash::quality::RandomState>,
}

/// Held as long as what it is for is open.
pub struct Place {
    places: Places,
    tenant: Tenant,
}

impl Places {
    pub fn new(most: usize, auth: Arc<Auth>) -> Self {
        Self::of(most, Some(auth))
    }

    /// For those who have shown no token.
    pub fn unshared(most: usize) -> Self {
        Self::of(most, None)
    }

    fn of(most: usize, auth: Option<Arc<Auth>>) -> Self {
        Self(Arc::new(All {
            most,
            auth,
            taken: Mutex::default(),
        }))
    }

    /// A place, or how many this tenant may have.
    pub fn take(&self, tenant: &Tenant) -> Result<Place, usize> {
        let tenants = self.0.auth.as_ref().map_or(1, |auth| auth.tenants());
        let share = (self.0.most / tenants).max(1);
        let mut taken = self.taken();
        let own = taken.by_tenant.get(tenant).copied().unwrap_or(0);
        if own >= share || taken.all >= self.0.most {
            return Err(share);
        }
        taken.all += 1;
        taken.by_tenant.insert(tenant.clone(), own + 1);
        Ok(Place {
            places: self.clone(),
            tenant: tenant.clone(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// There are more than so many, and not all of one tenant.
    pub fn is_in_crowd(&self, few: usize) -> bool {
        let taken = self.places.taken();
        taken.all > few && taken.by_tenant.len() > 1
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(own) = taken.by_tenant.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.by_tenant.remove(&self.tenant);
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
        let places = Places::new(2, Arc::new(auth));
        let tenant = Tenant::default();
        let held = [places.take(&tenant), places.take(&tenant)];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(places.take(&tenant).err(), Some(2));
        drop(held);
        assert!(places.taken().by_tenant.is_empty());
        assert_eq!(places.taken().all, 0);
        assert!(places.take(&tenant).is_ok());
    }
}
