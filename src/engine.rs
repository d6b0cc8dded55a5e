//! Owns the sessions: a DashMap of 256 shards, a session's whole state under
//! one entry. Only sync methods: a shard is locked for microseconds and nobody
//! waits for anything while it is.
//!
//! Uses: domain, text, facts, detect, policy, rules, telemetry.

mod acts;
mod agent;
mod breaker;
mod deltas;
mod draft;
mod expiry;
mod fleet;
mod keepsakes;
mod legacy;
mod outbox;
mod pressure;
mod profile;
mod quarantine;
mod query;
mod refused;
mod seen;
mod session;
mod setup;
mod slot;
mod tenants;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use dashmap::{DashMap, Entry};
use serde::Deserialize;

pub use acts::{Act, SnoozeError};
pub use breaker::BreakerSettings;
pub use fleet::{Fleet, Search};
pub use outbox::Clockwork;
pub use profile::{Profile, Profiles};
pub use query::Filter;
pub use refused::{OpenError, Refused};
pub use setup::ReloadError;

use crate::{
    domain::{
        Body, Event, Labels, Outlet, Remembered, Role, SessionId, SessionView, Status, Verdict,
    },
    facts::{EventFacts, Tools},
    rules::Ruled,
    telemetry::Metrics,
    text::Key,
};
use expiry::Place;
use legacy::Legacy;
use outbox::Outbox;
use pressure::Want;
use session::Session;
use setup::{Setup, Shared};
use slot::{Slot, Tombstone};
use tenants::{Holding, Tenants};

/// `[limits]`: the bounds of the engine.
#[derive(Clone, Debug, Deserialize)]
pub struct Limits {
    pub sessions_max: usize,
    pub state_bytes_max: usize,
    pub idle_secs_max: u64,
    pub pressed_idle_secs_min: u64,
    pub agents_max: usize,
    pub event_ids_max: usize,
    pub tombstones_max: usize,
    pub tombstone_secs_max: u64,
    pub tombstone_bytes_max: usize,
    pub past_bytes_max: usize,
    #[serde(flatten)]
    pub remembered: Remembered,
    /// `[breaker]`; `None`: it never opens.
    #[serde(skip)]
    pub breaker: Option<BreakerSettings>,
}

/// Detects, for all sessions.
pub struct Engine {
    sessions: DashMap<SessionId, Slot, foldhash::quality::RandomState>,
    setup: ArcSwap<Setup>,
    shared: Lasting,
    tenants: Tenants,
}

/// What stays while the engine runs.
struct Lasting {
    outbox: Outbox,
    metrics: Arc<Metrics>,
    live: AtomicUsize,
    /// What all sessions and the tombstones of those that ended hold, by our own
    /// count.
    bytes: AtomicUsize,
}

/// The answer to an event.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// `None`: it was not counted, since the session or agent is terminated, or
    /// it was a piece of a text or the end of mere reasoning.
    pub index: Option<i32>,
    pub duplicate: bool,
    pub verdict: Option<Arc<Verdict>>,
    /// The verdict was given now, and not before.
    pub is_news: bool,
}

/// With 256 shards a walk over all sessions stalls a reader for a quarter of a
/// millisecond at most; with the default of 4 per core, for 4 ms.
const SHARDS: usize = 256;

impl Engine {
    pub fn new(
        profiles: Profiles,
        tools: Tools,
        mut limits: Limits,
        metrics: Arc<Metrics>,
        clockwork: Clockwork,
        outlet: Outlet,
    ) -> Self {
        let key = match clockwork {
            Clockwork::Live => Key::random(),
            // It ends nobody, and must say the same of the same trace.
            Clockwork::Replay => {
                limits.breaker = None;
                Key::fixed()
            }
        };
        Self {
            sessions: DashMap::with_hasher_and_shard_amount(Default::default(), SHARDS),
            setup: ArcSwap::from_pointee(Setup::new(key, profiles, tools, limits)),
            shared: Lasting {
                outbox: Outbox::new(clockwork, outlet),
                metrics,
                live: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
            },
            tenants: Tenants::default(),
        }
    }

    /// Takes an event in. `now` is the time of its arrival.
    pub fn record(&self, event: &Event, now: SystemTime) -> Result<Recorded, Refused> {
        let (setup, held) = (self.setup.load(), self.tenants.of(&event.session));
        let shared = self.shared(&setup, &held);
        self.press(Want::Event, now, &shared);
        // The costly part, with no lock held.
        // What is large stays in its place, since closures are handed on and on.
        let (facts, ruled) = (&mut EventFacts::Other(None), &mut Ruled::default());
        self.prepared(&event.session, now, || {
            let profile = self.profile_of(event, &setup.profiles);
            let repeats = profile.as_deref().and_then(Profile::repeats);
            *facts = shared.facts.of(event, repeats);
            *ruled = shared.rules.look(event, facts, shared.facts.key());
        })?;
        self.with_slot(&event.session, &held, now, |slot| match slot {
            Slot::Gone(tombstone) => Ok(tombstone.refuse(&event.session, event.cost)),
            Slot::Live(session) => {
                session.record(event, facts, std::mem::take(ruled), now, &shared)
            }
        })
    }

    /// The profile by which an agent's turn is looked at; `None`: it is none.
    fn profile_of(&self, event: &Event, profiles: &Profiles) -> Option<Arc<Profile>> {
        let Body::Turn(turn) = &event.body else {
            return None;
        };
        let of_session = || {
            let slot = self.sessions.get(&event.session)?;
            profiles.named(&slot.profile()?.name)
        };
        let or_default = || profiles.default().clone();
        (turn.role == Role::Agent).then(|| of_session().unwrap_or_else(or_default))
    }

    /// Sets a session's profile and labels, beginning it where it is new.
    pub fn open(
        &self,
        id: &SessionId,
        profile: &str,
        labels: Labels,
        now: SystemTime,
    ) -> Result<SessionView, OpenError> {
        let setup = self.setup.load();
        let profile = setup.profiles.named(profile);
        let profile = profile.ok_or_else(|| OpenError::NoProfile(setup.profiles.names()))?;
        let held = self.tenants.of(id);
        let shared = self.shared(&setup, &held);
        self.press(Want::Event, now, &shared);
        self.with_slot(id, &held, now, |slot| match slot {
            Slot::Gone(_) => Err(OpenError::Terminated),
            Slot::Live(session) => {
                session.open(profile, Arc::new(labels), &shared)?;
                Ok(session.view(id))
            }
        })
    }

    /// How many sessions are live.
    pub fn live(&self) -> usize {
        self.shared.live.load(Relaxed)
    }

    /// Some tenant's detectors warn instead of terminating: they would end too
    /// many.
    pub fn breaker_is_open(&self) -> bool {
        let all = self.tenants.all();
        all.iter().any(|held| held.breaker.is_open())
    }

    /// How many bytes of state they hold.
    pub fn state_bytes(&self) -> usize {
        self.shared.bytes.load(Relaxed)
    }

    /// How many bytes terminations hold.
    pub fn tombstone_bytes(&self) -> usize {
        let held = self.tenants.all();
        held.iter().map(|held| held.tombstone_bytes()).sum()
    }

    /// Runs `with` on the session's slot, which is live unless the session is
    /// terminated: one that is new or had ended begins, within the limits.
    fn with_slot<T, E: From<Refused>>(
        &self,
        id: &SessionId,
        held: &Holding,
        now: SystemTime,
        with: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(mut slot) = self.sessions.get_mut(id)
            && !slot.is_ended()
        {
            return self.accounted(id, held, &mut slot, now, with);
        }
        self.reserve(held, now)?;
        let begin = || self.begin(id, "", Arc::default(), held.legacies.take(id), now);
        let mut slot = match self.sessions.entry(id.clone()) {
            Entry::Vacant(vacant) => vacant.insert(begin()),
            Entry::Occupied(mut occupied) if occupied.get().is_ended() => {
                self.discount(id, &occupied.insert(begin()));
                occupied.into_ref()
            }
            // Somebody else began it in the meantime.
            Entry::Occupied(occupied) => {
                self.count_live(held, false);
                occupied.into_ref()
            }
        };
        self.accounted(id, held, &mut slot, now, with)
    }

    /// Takes a place among the live sessions.
    fn reserve(&self, held: &Holding, now: SystemTime) -> Result<(), Refused> {
        let setup = self.setup.load();
        let shared = self.shared(&setup, held);
        self.press(Want::New, now, &shared);
        shared.check_bytes(Want::New)?;
        let sessions_max = shared.limits.sessions_max;
        let own_max = shared.share(sessions_max);
        let take = |live: &AtomicUsize, most: usize| {
            let taken = live.try_update(Relaxed, Relaxed, |n| (n < most).then_some(n + 1));
            taken.map(drop).map_err(|_| Refused::Sessions(most))
        };
        take(&held.live, own_max)?;
        take(shared.live, sessions_max).inspect_err(|_| {
            held.live.fetch_sub(1, Relaxed);
        })
    }

    /// A new session; its place among the live ones is already taken.
    fn begin(
        &self,
        id: &SessionId,
        profile: &str,
        labels: Arc<Labels>,
        legacy: Legacy,
        now: SystemTime,
    ) -> Slot {
        let profile = self.setup.load().profiles.named_or_default(profile);
        let place = self.place(now + self.idle_max());
        let mut session = Session::new(profile, labels, place, now);
        session.inherit(legacy);
        self.tenants.of(id).idle.insert(place, id);
        self.shared.metrics.session(None, Some(Status::Active));
        Slot::Live(Box::new(session))
    }

    /// Keeps the totals right around a change of a session, and lays it to rest
    /// where the change ended it.
    fn accounted<T, E: From<Refused>>(
        &self,
        id: &SessionId,
        held: &Holding,
        slot: &mut Slot,
        now: SystemTime,
        with: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = slot.status();
        let answer = self.contained(id, slot, with);
        if let Slot::Live(session) = slot {
            if session.is_told() && !session.stands_with_told() {
                held.idle.remove(session.place());
                session.stand_with_told();
                held.told.insert(session.place(), id);
            }
            self.weigh(held, slot, id);
            let after = slot.status();
            self.shared.metrics.moved(before, after);
            if after == Status::Terminated {
                let view = slot.view(id);
                self.bury(slot, view, now);
            }
        }
        answer
    }

    /// Counts what a session holds.
    fn weigh(&self, held: &Holding, slot: &mut Slot, id: &SessionId) {
        if let Slot::Live(session) = slot {
            let (was, is) = session.account(id);
            self.count_bytes(held, was, is);
        }
    }

    /// Puts a tombstone in a session's place.
    fn bury(&self, slot: &mut Slot, view: SessionView, now: SystemTime) {
        let (id, status) = (view.id.clone(), view.status);
        let place = self.place(now + self.tombstone_age());
        self.keep(slot, &view, place.generation);
        self.discount(&id, slot);
        *slot = self.lay(&id, status, place, Tombstone::new(view, place));
    }

    /// Takes a tombstone into the totals and its queue.
    fn lay(&self, id: &SessionId, status: Status, place: Place, tombstone: Tombstone) -> Slot {
        self.shared.metrics.session(None, Some(status));
        let held = self.tenants.of(id);
        held.graves(status).insert(place, id);
        self.count_tombstone(&held, status, 0, tombstone.bytes());
        Slot::Gone(Box::new(tombstone))
    }

    fn tombstone_age(&self) -> Duration {
        Duration::from_secs(self.setup.load().limits.tombstone_secs_max)
    }

    /// Takes a slot out of the totals and its queue.
    fn discount(&self, id: &SessionId, slot: &Slot) {
        let held = self.tenants.of(id);
        match slot {
            Slot::Live(session) => {
                session.leave_trends(&self.shared.metrics);
                self.count_live(&held, false);
                held.queue_of(session).remove(session.place());
                self.count_bytes(&held, slot.bytes(), 0);
            }
            Slot::Gone(tombstone) => {
                held.graves(slot.status()).remove(tombstone.place());
                self.lose_keepsake(&held, slot.generation());
                self.count_tombstone(&held, slot.status(), slot.bytes(), 0);
            }
        }
        self.shared.metrics.session(Some(slot.status()), None);
    }

    fn place(&self, deadline: SystemTime) -> Place {
        Place {
            deadline,
            generation: self.shared.outbox.next_generation(),
        }
    }
}

#[cfg(test)]
mod tests;
