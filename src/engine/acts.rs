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
    /// termination too; its profile and labels stay.
    pub fn reset(&self, id: &SessionId, announced: &Verdict, now: SystemTime) {
        let left = self.tenants.of(id).legacies.take(id).since(announced.id);
        let Some(mut slot) = self.sessions.get_mut(id) else {
            return self.leave(id, left);
        };
        let mut legacy = match &*slot {
            // It was ended again since, and somebody was told so.
            Slot::Gone(tombstone)
                if tombstone
                    .termination(id)
                    .is_some_and(|verdict| verdict.id > announced.id) =>
            {
                return;
            }
            Slot::Gone(_) => Legacy::default(),
            Slot::Live(session) => session.legacy().since(announced.id),
        };
        legacy.agents.extend(left.agents);
        let view = slot.view(id);
        self.discount(id, &slot);
        self.count_live(&self.tenants.of(id), true);
        *slot = self.begin(id, &view.profile, view.labels.clone(), legacy, now);
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
