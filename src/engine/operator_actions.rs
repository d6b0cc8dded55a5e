//! Actions of operators. A termination takes effect at once. A reset or a snooze is
//! issued as a verdict first and applied when that verdict is on disk, so that a
//! rejected action has had no effect.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use dashmap::Entry;
use thiserror::Error;

use super::{Engine, closed::CarryOver, slot::Slot};
use crate::domain::{
    Action, Effect, Labels, OPERATOR, Rating, SessionId, SessionStatus, SessionView, Verdict,
    VerdictRecord, sanitize,
};

/// The operator of an action, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct OperatorRequest<'a> {
    pub reason: &'a str,
    pub operator: &'a str,
}

/// The result of an operator's termination.
#[derive(Clone, Debug)]
pub struct TerminationOutcome {
    /// The verdict that is in force.
    pub verdict: Arc<Verdict>,
    /// The status of the session before. `None`: there was no such session.
    pub previous_status: Option<SessionStatus>,
}

/// Why a session cannot be snoozed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnoozeError {
    #[error("there is no such session")]
    Unknown,
    #[error("the session is terminated; reset it first")]
    Terminated,
}

/// The characters of a reason that an agent receives.
const REASON_CHARS_MAX: usize = 200;

impl Engine {
    /// For a run over recorded sessions: the ids of verdicts do not depend on the sessions
    /// before.
    pub fn restart_verdict_ids(&self) {
        self.state.issuer.restart();
    }

    /// Ends a session normally: clears its state and returns its summary. A
    /// terminated session stays terminated, and so does a terminated sub-agent.
    /// `None`: there is no such session.
    pub fn end_session(&self, id: &SessionId, now: SystemTime) -> Option<SessionView> {
        let mut slot = self.sessions.get_mut(id)?;
        let mut view = slot.view(id);
        if let Slot::Live(session) = &*slot {
            view.status = SessionStatus::Ended;
            self.save_carry_over(id, session.carry_over());
            let tenant = self.tenants.get_or_insert(id);
            *slot = self.close(&tenant, Some(&slot), view.clone(), now);
        }
        let termination = view.termination.as_deref();
        view.disobeyed = self.state.disobedience.total(id, termination);
        Some(view)
    }

    /// Terminates a session, live or not. If it was terminated before, the earlier
    /// verdict is returned.
    pub fn terminate_session(
        &self,
        id: &SessionId,
        request: &OperatorRequest<'_>,
        now: SystemTime,
    ) -> TerminationOutcome {
        let entry = self.sessions.entry(id.clone());
        let (mut view, is_known) = match &entry {
            Entry::Occupied(occupied) => (occupied.get().view(id), true),
            Entry::Vacant(_) => {
                let view = SessionView::unknown(id, &self.default_profile(), now);
                (view, false)
            }
        };
        let previous_status = is_known.then_some(view.status);
        if let Some(verdict) = view.termination {
            return TerminationOutcome {
                verdict,
                previous_status,
            };
        }
        let verdict = termination_verdict(id, request, now);
        let (issuer, effect) = (&self.state.issuer, Effect::Terminated);
        let verdict = issuer.issue(verdict, &view.labels, &view.profile, effect, now);
        view.termination = Some(verdict.clone());
        view.status = SessionStatus::Terminated;
        self.state.metrics.count_termination(None);
        let slot = match &entry {
            Entry::Occupied(occupied) => Some(occupied.get()),
            Entry::Vacant(_) => None,
        };
        let tombstone = self.close(&self.tenants.get_or_insert(id), slot, view, now);
        entry.insert(tombstone);
        TerminationOutcome {
            verdict,
            previous_status,
        }
    }

    pub(super) fn default_profile(&self) -> Arc<str> {
        self.config.load().profiles.default().name.clone()
    }

    /// Issues the verdict of a reset. `None`: there is no such session.
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
        let verdict = reset_verdict(id, request, now);
        let issuer = &self.state.issuer;
        Some(issuer.issue(verdict, &labels, &profile, Effect::Reset, now))
    }

    /// Clears the state that the session had before this verdict, a termination
    /// included; its profile and labels stay. A closed session becomes live again
    /// if there is room; if not, it begins with its next event like any other.
    pub fn apply_reset(&self, id: &SessionId, reset_verdict: &Verdict, now: SystemTime) {
        self.state.disobedience.remove_up_to(id, reset_verdict.id);
        let tenant = self.tenants.get_or_insert(id);
        let stored = tenant.carry_overs.take(id).after_reset(reset_verdict.id);
        let was_closed = self.sessions.get(id).is_some_and(|slot| slot.is_closed());
        // Making room requires that no lock is held.
        let reserved = was_closed && self.reserve_session(&tenant, now).is_ok();
        let carry_over = match self.sessions.entry(id.clone()) {
            Entry::Vacant(_) => stored,
            // It was terminated again since, and that verdict was sent.
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
                let is_closed = slot.get().is_closed();
                self.unregister_slot(&tenant, slot.get());
                if is_closed && !reserved {
                    slot.remove();
                    return self.save_carry_over(id, carry_over);
                }
                if !reserved {
                    self.state.add_live_session(&tenant);
                }
                slot.insert(self.create_session(id, &view.profile, view.labels, carry_over, now));
                if let Slot::Live(session) = slot.into_ref().value_mut() {
                    self.state.update_session_bytes(&tenant, session, id);
                }
                return;
            }
        };
        if reserved {
            self.state.remove_live_session(&tenant);
        }
        self.save_carry_over(id, carry_over);
    }

    /// Issues the verdict of a snooze.
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
        let verdict = snooze_verdict(id, request, duration.as_secs(), now);
        let (issuer, effect) = (&self.state.issuer, Effect::Snoozed(now + duration));
        Ok(issuer.issue(verdict, &view.labels, &view.profile, effect, now))
    }

    /// Issues the record of a rating.
    pub fn issue_rating(
        &self,
        rated: &VerdictRecord,
        rating: Rating,
        request: &OperatorRequest<'_>,
        now: SystemTime,
    ) -> Arc<Verdict> {
        let verdict = rating_verdict(&rated.verdict, rating, request, now);
        let effect = Effect::Rated {
            verdict: rated.verdict.id,
            rating,
        };
        let issuer = &self.state.issuer;
        issuer.issue(verdict, &rated.labels, &rated.profile, effect, now)
    }

    /// Makes the session's verdicts `shadow` until this time.
    pub fn apply_snooze(&self, id: &SessionId, until: SystemTime) {
        if let Some(mut slot) = self.sessions.get_mut(id)
            && let Slot::Live(session) = &mut *slot
        {
            session.snooze(until);
        }
    }
}

/// Whether the session was terminated after the reset was issued.
fn terminated_since(id: &SessionId, slot: &Slot, reset_verdict: &Verdict) -> bool {
    let termination = match slot {
        Slot::Closed(tombstone) => tombstone.termination(id),
        Slot::Live(_) => None,
    };
    termination.is_some_and(|verdict| verdict.id > reset_verdict.id)
}

/// The verdict of an operator who terminates a session.
pub(super) fn termination_verdict(
    id: &SessionId,
    request: &OperatorRequest<'_>,
    now: SystemTime,
) -> Verdict {
    let quoted = sanitize::quote(request.reason, REASON_CHARS_MAX);
    Verdict {
        action: Some(Action::Terminate),
        pattern: "terminated by an operator".to_owned(),
        correction: format!("An operator has ended this session: \"{quoted}\". Stop here."),
        ..operator_verdict(id, request, now)
    }
}

/// The verdict of an operator who resets a session.
fn reset_verdict(id: &SessionId, request: &OperatorRequest<'_>, now: SystemTime) -> Verdict {
    Verdict {
        pattern: "reset by an operator".to_owned(),
        ..operator_verdict(id, request, now)
    }
}

/// The verdict of an operator who snoozes a session.
fn snooze_verdict(
    id: &SessionId,
    request: &OperatorRequest<'_>,
    secs: u64,
    now: SystemTime,
) -> Verdict {
    Verdict {
        pattern: format!("snoozed by an operator for {}", format_duration(secs)),
        ..operator_verdict(id, request, now)
    }
}

/// The verdict of an operator who rates a verdict.
fn rating_verdict(
    rated: &Verdict,
    rating: Rating,
    request: &OperatorRequest<'_>,
    now: SystemTime,
) -> Verdict {
    let what = match rating {
        Rating::Right => "right",
        Rating::FalseAlarm => "a false alarm",
    };
    Verdict {
        agent: rated.agent.clone(),
        pattern: format!("an operator called the verdict {} {what}", rated.id),
        other_detectors: vec![rated.detector.clone()],
        ..operator_verdict(&rated.session, request, now)
    }
}

/// Formats a duration in the largest unit that is exact.
fn format_duration(secs: u64) -> String {
    match secs {
        hours if hours % 3_600 == 0 => format!("{} h", hours / 3_600),
        minutes if minutes % 60 == 0 => format!("{} min", minutes / 60),
        secs => format!("{secs} s"),
    }
}

fn operator_verdict(id: &SessionId, request: &OperatorRequest<'_>, now: SystemTime) -> Verdict {
    Verdict {
        reason: request.reason.to_owned(),
        operator: request.operator.to_owned(),
        ..Verdict::without_loop(id.clone(), OPERATOR.into(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_formatted_in_the_largest_exact_unit() {
        assert_eq!(
            [7_200, 900, 90].map(format_duration),
            ["2 h", "15 min", "90 s"]
        );
    }
}
