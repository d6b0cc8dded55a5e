use std::{
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use super::Act;
use crate::domain::{
    Action, AgentId, Effect, Evidence, Issued, Labels, OPERATOR, Outlet, SessionId, Verdict,
    VerdictId, Waste, text,
};

/// Where ids and keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clockwork {
    /// Random, for a server.
    Live,
    /// Fixed, so that the same trace prints the same.
    Replay,
}

/// Gives verdicts their ids and hands them out. Both happen under one lock, so
/// that the outlet gets verdicts in the order of their ids.
pub(super) struct Outbox {
    ids: Mutex<Ids>,
    outlet: Outlet,
    generations: AtomicU64,
}

struct Ids {
    last: u128,
    /// `None`: fixed.
    random: Option<std::hash::RandomState>,
}

/// Of a reason an agent is told so many characters.
const REASON_CHARS_MAX: usize = 200;

impl Outbox {
    pub fn new(clockwork: Clockwork, outlet: Outlet) -> Self {
        Self {
            ids: Mutex::new(Ids {
                last: 0,
                random: (clockwork == Clockwork::Live).then(Default::default),
            }),
            outlet,
            generations: AtomicU64::new(1),
        }
    }

    /// Ids go on after this one.
    pub fn follow(&self, last: VerdictId) {
        let mut ids = self.ids();
        ids.last = ids.last.max(last.0);
    }

    /// Tells sessions that share an id apart; never 0.
    pub fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Relaxed)
    }

    /// Names the verdict and hands it out.
    pub fn issue(
        &self,
        mut verdict: Verdict,
        labels: &Arc<Labels>,
        profile: &Arc<str>,
        effect: Effect,
        now: SystemTime,
    ) -> Arc<Verdict> {
        let mut ids = self.ids();
        verdict.id = ids.next(now);
        let verdict = Arc::new(verdict);
        (self.outlet)(Issued {
            verdict: verdict.clone(),
            labels: labels.clone(),
            profile: profile.clone(),
            effect,
        });
        verdict
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ids {
    /// A version 7 UUID: milliseconds, then chance. Should the clock stand or
    /// go back, the next number after the last.
    fn next(&mut self, now: SystemTime) -> VerdictId {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let chance = self
            .random
            .as_ref()
            .map_or(0, |state| state.hash_one(self.last));
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&chance.to_be_bytes());
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid();
        self.last = id.as_u128().max(self.last.saturating_add(1));
        VerdictId(self.last)
    }
}

/// An operator ends a session.
pub(super) fn termination(id: &SessionId, act: &Act<'_>, now: SystemTime) -> Verdict {
    let quoted = text::quoted(act.reason, REASON_CHARS_MAX);
    Verdict {
        action: Some(Action::Terminate),
        pattern: "terminated by an operator".to_owned(),
        correction: format!("An operator has ended this session: \"{quoted}\". Stop here."),
        ..by_operator(id, act, now)
    }
}

/// An operator lets a session begin anew.
pub(super) fn reset(id: &SessionId, act: &Act<'_>, now: SystemTime) -> Verdict {
    Verdict {
        pattern: "reset by an operator".to_owned(),
        ..by_operator(id, act, now)
    }
}

/// An operator wants to act on a session's verdicts only after a while.
pub(super) fn snooze(id: &SessionId, act: &Act<'_>, secs: u64, now: SystemTime) -> Verdict {
    Verdict {
        pattern: format!("snoozed by an operator for {}", lasting(secs)),
        ..by_operator(id, act, now)
    }
}

/// In the largest unit that says it exactly.
fn lasting(secs: u64) -> String {
    match secs {
        hours if hours % 3_600 == 0 => format!("{} h", hours / 3_600),
        minutes if minutes % 60 == 0 => format!("{} min", minutes / 60),
        secs => format!("{secs} s"),
    }
}

/// The record of what an operator did.
fn by_operator(id: &SessionId, act: &Act<'_>, now: SystemTime) -> Verdict {
    Verdict {
        id: VerdictId(0),
        session: id.clone(),
        agent: AgentId::default(),
        time: now,
        event_index: None,
        action: None,
        detector: OPERATOR.into(),
        also: Vec::new(),
        pattern: String::new(),
        reason: act.reason.to_owned(),
        confidence: 1.0,
        correction: String::new(),
        loop_id: None,
        members: Vec::new(),
        trend: None,
        evidence: Evidence::default(),
        wasted: Waste::default(),
        retry_after: None,
        durable: false,
        shadow: false,
        operator: act.operator.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snooze_is_told_in_the_unit_in_which_it_was_meant() {
        assert_eq!([7_200, 900, 90].map(lasting), ["2 h", "15 min", "90 s"]);
    }
}
