//! What a reload replaces: how sessions are watched, and the limits.

use std::sync::{Arc, atomic::AtomicUsize};

use thiserror::Error;

use super::{Engine, Lasting, Limits, Profiles, outbox::Outbox, tenants::Holding};
use crate::{
    facts::{Facts, Tools},
    rules::Rules,
    telemetry::Metrics,
    text::Key,
};

/// All of it, so that it is swapped at once.
pub(super) struct Setup {
    /// Counts the reloads. A session that has seen another one takes its profile
    /// anew.
    number: u64,
    pub profiles: Arc<Profiles>,
    pub facts: Facts,
    pub rules: Arc<Rules>,
    pub limits: Limits,
}

/// What every session needs of the engine, as it is at the moment.
pub(super) struct Shared<'a> {
    pub setup: u64,
    pub profiles: &'a Profiles,
    pub facts: &'a Facts,
    pub rules: &'a Rules,
    pub limits: &'a Limits,
    pub outbox: &'a Outbox,
    pub metrics: &'a Metrics,
    pub live: &'a AtomicUsize,
    pub bytes: &'a AtomicUsize,
    /// Among how many the limits are shared.
    pub tenants: usize,
    /// What the tenant of the session holds.
    pub held: &'a Holding,
}

/// Why another setup is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReloadError {
    /// Counts, trends and metrics are kept by a rule's place.
    #[error("to add, remove, rename or reorder [[rules]] needs a restart")]
    Rules,
    /// What turns were compared by cannot be compared with what they are now.
    #[error("another detect.similar_turns.model needs a restart")]
    Model,
}

impl Setup {
    pub fn new(key: Key, profiles: Profiles, tools: Tools, limits: Limits) -> Self {
        Self {
            number: 0,
            facts: Facts::new(key, tools, profiles.reader().clone()),
            rules: profiles.rules().clone(),
            profiles: Arc::new(profiles),
            limits,
        }
    }
}

impl Engine {
    pub(super) fn shared<'a>(&'a self, setup: &'a Setup, held: &'a Holding) -> Shared<'a> {
        let Lasting {
            outbox,
            metrics,
            live,
            bytes,
        } = &self.shared;
        Shared {
            setup: setup.number,
            profiles: &setup.profiles,
            facts: &setup.facts,
            rules: &setup.rules,
            limits: &setup.limits,
            outbox,
            metrics,
            live,
            bytes,
            tenants: self.tenants.count(),
            held,
        }
    }

    /// Watches all sessions in another way from now on. What was learned of them
    /// stays; a text that is being written begins anew. How long a tombstone is
    /// kept does not change: the store goes by it too.
    pub fn reload(
        &self,
        profiles: Profiles,
        tools: Tools,
        limits: Limits,
    ) -> Result<(), ReloadError> {
        let before = self.setup.load();
        if !before.profiles.detectors().eq(profiles.detectors()) {
            return Err(ReloadError::Rules);
        }
        if before.profiles.models() != profiles.models() {
            return Err(ReloadError::Model);
        }
        let limits = Limits {
            tombstone_secs_max: before.limits.tombstone_secs_max,
            ..limits
        };
        let (sessions_max, state_bytes_max) = (limits.sessions_max, limits.state_bytes_max);
        self.shared.metrics.limits(sessions_max, state_bytes_max);
        let key = before.facts.key().clone();
        self.setup.store(Arc::new(Setup {
            number: before.number + 1,
            ..Setup::new(key, profiles, tools, limits)
        }));
        Ok(())
    }
}
