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
    carry_over::CarryOver,
    issuer,
    slot::{Slot, Tombstone},
};
use crate::domain::{Effect, Labels, SessionId, SessionStatus, SessionView, Verdict};

/// Who does something, and why.
#[derive(Clone, Copy, Debug)]
pub struct OperatorRequest<'a> {
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
    pub fn end_session(&self, id: &SessionId, now: SystemTime) -> Option<SessionView> {
        let mut slot = self.sessions.get_mut(id)?;
        let mut view = slot.view(id);
        if matches!(*slot, Slot::Live(_)) {
            view.status = SessionStatus::Ended;
            self.save_slot_carry_over(id, &slot);
            self.close_session(&mut slot, view.clone(), now);
        }
        Some(view)
    }

    /// An operator ends the session, live or not. Where it was terminated
    /// before, the verdict that did it stands.
    pub fn terminate_session(
        &self,
        id: &SessionId,
        request: &OperatorRequest<'_>,
        now: SystemTime,
    ) -> Arc<Verdict> {
        let entry = self.sessions.entry(id.clone());
        let mut view = match &entry {
            Entry::Occupied(occupied) => occupied.get().view(id),
            Entry::Vacant(_) => SessionView::unknown(id, &self.default_profile(), now),
        };
        if let Some(verdict) = view.termination {
            return verdict;
        }
        let verdict = issuer::termination_verdict(id, request, now);
        let (issuer, effect) = (&self.state.issuer, Effect::Terminated);
        let verdict = issuer.issue(verdict, &view.labels, &view.profile, effect, now);
        view.termination = Some(verdict.clone());
        view.status = SessionStatus::Terminated;
        self.state.metrics.count_termination(None);
        let key = self.new_deadline_key(now + self.tombstone_retention());
        if let Entry::Occupied(occupied) = &entry {
            match occupied.get() {
                live @ Slot::Live(_) => self.save_post_mortem(live, &view, key.generation),
                closed @ Slot::Closed(_) => {
                    self.move_post_mortem(id, closed.generation(), key.generation);
                }
            }
        }
        let tombstone = Tombstone::new(view, key);
        let tombstone = self.register_tombstone(id, SessionStatus::Terminated, key, tombstone);
        if let Entry::Occupied(occupied) = &entry {
            self.unregister_slot(id, occupied.get());
        }
        entry.insert(tombstone);
        verdict
    }

    fn default_profile(&self) -> Arc<str> {
        self.config.load().profiles.default().name.clone()
    }

    /// Says that a session is to be reset. `None`: there is no such session.
    pub fn issue_reset(
        &self,
        id: &SessionId,
        request: &OperatorRequest<'_>,
        now: SystemTime,
    ) -> Option<Arc<Verdict>> {
        let (labels, profile) = match self.sessions.get(id) {
            Some(slot) => {
                let view = slot.view(id);
                (view.labels, view.profile)
            }
            None if self.tenants.get_or_insert(id).carry_overs.contains(id) => {
                (Arc::<Labels>::default(), self.default_profile())
            }
            None => return None,
        };
        let verdict = issuer::reset_verdict(id, request, now);
        let issuer = &self.state.issuer;
        Some(issuer.issue(verdict, &labels, &profile, Effect::Reset, now))
    }

    /// Forgets all that was learned of the session before this announcement, a
    /// termination too; its profile and labels stay. One that was over is live
    /// again where there is room for it; where there is none it begins with its
    /// next event, as any other.
    pub fn apply_reset(&self, id: &SessionId, reset_verdict: &Verdict, now: SystemTime) {
        let tenant = self.tenants.get_or_insert(id);
        let stored = tenant.carry_overs.take(id).after_reset(reset_verdict.id);
        let is_closed = |slot: &Slot| matches!(slot, Slot::Closed(_));
        let was_closed = self.sessions.get(id).is_some_and(|slot| is_closed(&slot));
        // No lock may be held when room is made.
        let reserved = was_closed && self.reserve_session(&tenant, now).is_ok();
        let carry_over = match self.sessions.entry(id.clone()) {
            Entry::Vacant(_) => stored,
            // It was ended again since, and somebody was told so.
            Entry::Occupied(slot) if terminated_since(id, slot.get(), reset_verdict) => {
                CarryOver::default()
            }
            Entry::Occupied(mut slot) => {
                let mut carry_over = match slot.get() {
                    Slot::Closed(_) => CarryOver::default(),
                    Slot::Live(session) => session.carry_over().after_reset(reset_verdict.id),
                };
                carry_over
                    .agent_terminations
                    .extend(stored.agent_terminations);
                let view = slot.get().view(id);
                let is_closed = is_closed(slot.get());
                self.unregister_slot(id, slot.get());
                if is_closed && !reserved {
                    slot.remove();
                    return self.save_carry_over(id, carry_over);
                }
                if !reserved {
                    self.update_live_sessions(&tenant, true);
                }
                let new_slot =
                    self.create_session(id, &view.profile, view.labels.clone(), carry_over, now);
                slot.insert(new_slot);
                return self.update_memory_usage(&tenant, slot.into_ref().value_mut(), id);
            }
        };
        if reserved {
            self.update_live_sessions(&tenant, false);
        }
        self.save_carry_over(id, carry_over);
    }

    /// Says that a session is to be snoozed.
    pub fn issue_snooze(
        &self,
        id: &SessionId,
        request: &OperatorRequest<'_>,
        duration: Duration,
        now: SystemTime,
    ) -> Result<Arc<Verdict>, SnoozeError> {
        let slot = self.sessions.get(id).ok_or(SnoozeError::Unknown)?;
        let view = match &*slot {
            Slot::Live(session) => session.view(id),
            Slot::Closed(_) if slot.is_ended() => return Err(SnoozeError::Unknown),
            Slot::Closed(_) => return Err(SnoozeError::Terminated),
        };
        let verdict = issuer::snooze_verdict(id, request, duration.as_secs(), now);
        let (issuer, effect) = (&self.state.issuer, Effect::Snoozed(now + duration));
        Ok(issuer.issue(verdict, &view.labels, &view.profile, effect, now))
    }

    /// Makes the session's verdicts `shadow` until then.
    pub fn apply_snooze(&self, id: &SessionId, until: SystemTime) {
        if let Some(mut slot) = self.sessions.get_mut(id)
            && let Slot::Live(session) = &mut *slot
        {
            session.snooze(until);
        }
    }
}

/// The session was terminated after it was said that it is to be reset.
fn terminated_since(id: &SessionId, slot: &Slot, reset_verdict: &Verdict) -> bool {
    let termination = match slot {
        Slot::Closed(tombstone) => tombstone.termination(id),
        Slot::Live(_) => None,
    };
    termination.is_some_and(|verdict| verdict.id > reset_verdict.id)
}
