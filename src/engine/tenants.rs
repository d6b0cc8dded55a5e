//! What each tenant holds. All have an equal share of the limits, so that none
//! takes what is another's: who has more than its share makes way.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use dashmap::DashMap;

use super::{
    Engine, Shared, breaker::Breaker, expiry::Queue, keepsakes::Keepsakes, legacy::Legacies,
    session::Session,
};
use crate::domain::{SessionId, Status, Tenant};

#[derive(Default)]
pub(super) struct Holding {
    /// Live sessions by when they would have been idle for too long: those that
    /// were told nothing yet, and those that were, which memory lets go of last.
    pub idle: Queue,
    pub told: Queue,
    /// Tombstones by when they expire: a session that ended must never push out
    /// one that was terminated.
    pub ended: Queue,
    pub terminated: Queue,
    pub legacies: Legacies,
    /// What led to the end of some of those that are over.
    pub keepsakes: Keepsakes,
    /// Keeps detectors from ending a large share of its sessions.
    pub breaker: Breaker,
    pub live: AtomicUsize,
    /// What its sessions and the tombstones of those that ended hold, by our own
    /// count.
    pub bytes: AtomicUsize,
    /// What the tombstones of terminated ones hold: apart, since they must hold
    /// and can make no room for sessions.
    pub terminated_bytes: AtomicUsize,
}

impl Holding {
    /// Where a live session stands.
    pub fn queue_of(&self, session: &Session) -> &Queue {
        match session.stands_with_told() {
            true => &self.told,
            false => &self.idle,
        }
    }

    /// What its terminations hold, those of sub-agents too.
    pub fn tombstone_bytes(&self) -> usize {
        self.terminated_bytes.load(Relaxed) + self.legacies.bytes()
    }

    pub fn graves(&self, status: Status) -> &Queue {
        match status {
            Status::Terminated => &self.terminated,
            Status::Active | Status::Looping | Status::Ended | Status::Quarantined => &self.ended,
        }
    }
}

pub(super) struct Tenants {
    /// Apart, since where no tokens are asked for it is the only one.
    default: Holding,
    others: DashMap<Tenant, Arc<Holding>, foldhash::quality::RandomState>,
    /// Among how many the limits are shared.
    count: AtomicUsize,
}

/// What a tenant holds, while something is done to it.
pub(super) enum Held<'a> {
    Default(&'a Holding),
    Other(Arc<Holding>),
}

impl Deref for Held<'_> {
    type Target = Holding;

    fn deref(&self) -> &Holding {
        match self {
            Self::Default(holding) => holding,
            Self::Other(holding) => holding,
        }
    }
}

impl Default for Tenants {
    fn default() -> Self {
        Self {
            default: Holding::default(),
            others: DashMap::default(),
            count: AtomicUsize::new(1),
        }
    }
}

impl Tenants {
    /// What the tenant of this session holds.
    pub fn of(&self, id: &SessionId) -> Held<'_> {
        if id.is_of_default() {
            return Held::Default(&self.default);
        }
        let tenant = id.tenant_key();
        if let Some(known) = self.others.get(tenant.as_str()) {
            return Held::Other(known.clone());
        }
        Held::Other(self.others.entry(id.tenant()).or_default().clone())
    }

    pub fn all(&self) -> Vec<Held<'_>> {
        let named = self.named().into_iter();
        named.map(|(_, held)| held).collect()
    }

    pub fn named(&self) -> Vec<(Tenant, Held<'_>)> {
        let default = (Tenant::default(), Held::Default(&self.default));
        let named =
            |(tenant, held): (&Tenant, &Arc<Holding>)| (tenant.clone(), Held::Other(held.clone()));
        let others = self.others.iter().map(|other| named(other.pair()));
        std::iter::once(default).chain(others).collect()
    }

    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
}

impl Shared<'_> {
    /// A tenant's part of a limit.
    pub fn share(&self, limit: usize) -> usize {
        match self.tenants {
            // On every event, and a division costs more than all else here.
            1 => limit.max(1),
            tenants => (limit / tenants).max(1),
        }
    }

    /// Whether somebody holds more than is theirs.
    pub fn is_over_share(&self, holding: &Holding) -> bool {
        holding.live.load(Relaxed) > self.share(self.limits.sessions_max)
            || holding.bytes.load(Relaxed) > self.share(self.limits.state_bytes_max)
    }
}

impl Engine {
    /// Shares the limits among so many tenants.
    pub fn share_among(&self, tenants: usize) {
        self.tenants.count.store(tenants.max(1), Relaxed);
    }

    /// Another live session, or one less.
    pub(super) fn count_live(&self, held: &Holding, more: bool) {
        for live in [&self.shared.live, &held.live] {
            match more {
                true => live.fetch_add(1, Relaxed),
                false => live.fetch_sub(1, Relaxed),
            };
        }
    }

    /// A tombstone is laid, or removed.
    pub(super) fn count_tombstone(&self, held: &Holding, status: Status, was: usize, is: usize) {
        if status == Status::Terminated {
            let more = is.wrapping_sub(was);
            held.terminated_bytes.fetch_add(more, Relaxed);
        } else {
            self.count_bytes(held, was, is);
        }
    }

    /// Something that held so many bytes holds so many now.
    pub(super) fn count_bytes(&self, held: &Holding, was: usize, is: usize) {
        if was != is {
            // Atomics wrap, and so a difference below zero is subtracted.
            let more = is.wrapping_sub(was);
            self.shared.bytes.fetch_add(more, Relaxed);
            held.bytes.fetch_add(more, Relaxed);
        }
    }
}
