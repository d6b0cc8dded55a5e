//! What operators do. A termination holds at once; a reset or a snooze is
//! announced first and done when the announcement is on disk, so that one that
//! was refused has not happened.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use dashmap::Entry;
use thiserror::Error;

use super::{
    Engine,
    legacy::Legacy,
    outbox,
    slot::{Slot, Tombstone},
};
use crate::domain::{Effect, Labels, SessionId, SessionView, Status, Verdict};

/// Who does something, and why.
#[derive(Clone, Copy, Debug)]
pub struct Act<'a> {
    pub reason: &'a str,
    pub operator: &'a str,
}

/// Why a session cannot be snoozed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnoozeError {
    #[error("there is no such session")]
    Unknown,
    #[error("the session is terminated; reset it first")]
    Terminated,
}

impl Engine {
    /// It ended normally: clears its state and gives its summary. A terminated
    /// session stays so, and so does a terminated sub-agent. `None`: there is
    /// no such session.
    pub fn end(&self, id: &SessionId, now: SystemTime) -> Option<SessionView> {
        let mut slot = self.sessions.get_mut(id)?;
        let mut view = slot.view(id);
        if matches!(*slot, Slot::Live(_)) {
            view.status = Status::Ended;
            self.bequeath(id, &slot);
            self.bury(&mut slot, view.clone(), now);
        }
        Some(view)
    }

    /// An operator ends the session, live or not. Where it was terminated
    /// before, the verdict that did it stands.
    pub fn terminate(&self, id: &SessionId, act: &Act<'_>, now: SystemTime) -> Arc<Verdict> {
        let entry = self.sessions.entry(id.clone());
        let mut view = match &entry {
            Entry::Occupied(occupied) => occupied.get().view(id),
            Entry::Vacant(_) => SessionView::unheard_of(id, &self.default_profile(), now),
        };
        if let Some(verdict) = view.termination {
            return verdict;
        }
        let verdict = outbox::termination(id, act, now);
        let (outbox, effect) = (&self.shared.outbox, Effect::Terminated);
        let verdict = outbox.issue(verdict, &view.labels, &view.profile, effect, now);
        view.termination = Some(verdict.clone());
        view.status = Status::Terminated;
        self.shared.metrics.terminated(None);
        let place = self.place(now + self.tombstone_age());
        if let Entry::Occupied(occupied) = &entry {
            match occupied.get() {
                live @ Slot::Live(_) => self.keep(live, &view, place.generation),
                gone @ Slot::Gone(_) => {
                    self.move_keepsake(id, gone.generation(), place.generation);
                }
            }
        }
        let tombstone = Tombstone::new(view, place);
        let tombstone = self.lay(id, Status::Terminated, place, tombstone);
        if let Entry::Occupied(occupied) = &entry {
            self.discount(id, occupied.get());
        }
        entry.insert(tombstone);
        verdict
    }

    fn default_profile(&self) -> Arc<str> {
        self.setup.load().profiles.default().name.clone()
    }

    /// Says that a session is to be reset. `None`: there is no such session.
    pub fn announce_reset(
        &self,
        id: &SessionId,
        act: &Act<'_>,
        now: SystemTime,
    ) -> Option<Arc<Verdict>> {
        let (labels, profile) = match self.sessions.get(id) {
            Some(slot) => {
                let view = slot.view(id);
                (view.labels, view.profile)
            }
            None if self.tenants.of(id).legacies.knows(id) => {
                (Arc::<Labels>::default(), self.default_profile())
            }
            None => return None,
        };
        let verdict = outbox::reset(id, act, now);
        let outbox = &self.shared.outbox;
        Some(outbox.issue(verdict, &labels, &profile, Effect::Reset, now))
    }

    /// Forgets all that was learned of the session before this announcement, a
    /// termination too; its profile and labels stay. One that was over is live
    /// again where there is room for it; where there is none it begins with its
    /// next event, as any other.
    pub fn reset(&self, id: &SessionId, announced: &Verdict, now: SystemTime) {
        let held = self.tenants.of(id);
        let left = held.legacies.take(id).since(announced.id);
        let is_over = |slot: &Slot| matches!(slot, Slot::Gone(_));
        let was_over = self.sessions.get(id).is_some_and(|slot| is_over(&slot));
        // No lock may be held when room is made.
        let reserved = was_over && self.reserve(&held, now).is_ok();
        let legacy = match self.sessions.entry(id.clone()) {
            Entry::Vacant(_) => left,
            // It was ended again since, and somebody was told so.
            Entry::Occupied(slot) if ended_since(id, slot.get(), announced) => Legacy::default(),
            Entry::Occupied(mut slot) => {
                let mut legacy = match slot.get() {
                    Slot::Gone(_) => Legacy::default(),
                    Slot::Live(session) => session.legacy().since(announced.id),
                };
                legacy.agents.extend(left.agents);
                let view = slot.get().view(id);
                let is_over = is_over(slot.get());
                self.discount(id, slot.get());
                if is_over && !reserved {
                    slot.remove();
                    return self.leave(id, legacy);
                }
                if !reserved {
                    self.count_live(&held, true);
                }
                let begun = self.begin(id, &view.profile, view.labels.clone(), legacy, now);
                slot.insert(begun);
                return self.weigh(&held, slot.into_ref().value_mut(), id);
            }
        };
        if reserved {
            self.count_live(&held, false);
        }
        self.leave(id, legacy);
    }

    /// Says that a session is to be snoozed.
    pub fn announce_snooze(
        &self,
        id: &SessionId,
        act: &Act<'_>,
        duration: Duration,
        now: SystemTime,
    ) -> Result<Arc<Verdict>, SnoozeError> {
        let slot = self.sessions.get(id).ok_or(SnoozeError::Unknown)?;
        let view = match &*slot {
            Slot::Live(session) => session.view(id),
            Slot::Gone(_) if slot.is_ended() => return Err(SnoozeError::Unknown),
            Slot::Gone(_) => return Err(SnoozeError::Terminated),
        };
        let verdict = outbox::snooze(id, act, duration.as_secs(), now);
        let (outbox, effect) = (&self.shared.outbox, Effect::Snoozed(now + duration));
        Ok(outbox.issue(verdict, &view.labels, &view.profile, effect, now))
    }

    /// Makes the session's verdicts `shadow` until then.
    pub fn snooze(&self, id: &SessionId, until: SystemTime) {
        if let Some(mut slot) = self.sessions.get_mut(id)
            && let Slot::Live(session) = &mut *slot
        {
            session.snooze(until);
        }
    }
}

/// The session was terminated after it was said that it is to be reset.
fn ended_since(id: &SessionId, slot: &Slot, announced: &Verdict) -> bool {
    let termination = match slot {
        Slot::Gone(tombstone) => tombstone.termination(id),
        Slot::Live(_) => None,
    };
    termination.is_some_and(|verdict| verdict.id > announced.id)
}
