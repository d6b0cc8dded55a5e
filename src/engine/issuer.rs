use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, MutexGuard};

use super::OperatorRequest;
use crate::domain::{
    Action, AgentId, Effect, Evidence, Labels, OPERATOR, SessionId, Verdict, VerdictId,
    VerdictRecord, VerdictSink, Waste, sanitize,
};

/// Where ids and keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// Random, for a server.
    Live,
    /// Fixed, so that the same trace prints the same.
    Replay,
}

/// Gives verdicts their ids and hands them out. Both happen under one lock, so
/// that the outlet gets verdicts in the order of their ids.
pub(super) struct VerdictIssuer {
    ids: Mutex<VerdictIdGenerator>,
    sink: VerdictSink,
    generation_counter: AtomicU64,
}

struct VerdictIdGenerator {
    last: u128,
    /// `None`: fixed.
    random_state: Option<std::hash::RandomState>,
}

/// Of a reason an agent is told so many characters.
const REASON_CHARS_MAX: usize = 200;

impl VerdictIssuer {
    pub fn new(run_mode: RunMode, sink: VerdictSink) -> Self {
        Self {
            ids: Mutex::new(VerdictIdGenerator {
                last: 0,
                random_state: (run_mode == RunMode::Live).then(Default::default),
            }),
            sink,
            generation_counter: AtomicU64::new(1),
        }
    }

    /// Ids go on after this one.
    pub fn continue_after(&self, last: VerdictId) {
        let mut ids = self.lock_ids();
        ids.last = ids.last.max(last.0);
    }

    /// Tells sessions that share an id apart; never 0.
    pub fn next_generation(&self) -> u64 {
        self.generation_counter.fetch_add(1, Relaxed)
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
        let mut ids = self.lock_ids();
        verdict.id = ids.next(now);
        let verdict = Arc::new(verdict);
        (self.sink)(VerdictRecord {
            verdict: verdict.clone(),
            labels: labels.clone(),
            profile: profile.clone(),
            effect,
        });
        verdict
    }

    fn lock_ids(&self) -> MutexGuard<'_, VerdictIdGenerator> {
        self.ids.lock()
    }
}

impl VerdictIdGenerator {
    /// A version 7 UUID: milliseconds, then chance. Should the clock stand or
    /// go back, the next number after the last.
    fn next(&mut self, now: SystemTime) -> VerdictId {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let random = self
            .random_state
            .as_ref()
            .map_or(0, |state| state.hash_one(self.last));
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&random.to_be_bytes());
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid();
        self.last = id.as_u128().max(self.last.saturating_add(1));
        VerdictId(self.last)
    }
}

/// An operator ends a session.
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

/// An operator lets a session begin anew.
pub(super) fn reset_verdict(
    id: &SessionId,
    request: &OperatorRequest<'_>,
    now: SystemTime,
) -> Verdict {
    Verdict {
        pattern: "reset by an operator".to_owned(),
        ..operator_verdict(id, request, now)
    }
}

/// An operator wants to act on a session's verdicts only after a while.
pub(super) fn snooze_verdict(
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

/// In the largest unit that says it exactly.
fn format_duration(secs: u64) -> String {
    match secs {
        hours if hours % 3_600 == 0 => format!("{} h", hours / 3_600),
        minutes if minutes % 60 == 0 => format!("{} min", minutes / 60),
        secs => format!("{secs} s"),
    }
}

/// The record of what an operator did.
fn operator_verdict(id: &SessionId, request: &OperatorRequest<'_>, now: SystemTime) -> Verdict {
    Verdict {
        id: VerdictId(0),
        session: id.clone(),
        agent: AgentId::default(),
        time: now,
        event_index: None,
        action: None,
        detector: OPERATOR.into(),
        other_detectors: Vec::new(),
        pattern: String::new(),
        reason: request.reason.to_owned(),
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
        operator: request.operator.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snooze_is_told_in_the_unit_in_which_it_was_meant() {
        assert_eq!(
            [7_200, 900, 90].map(format_duration),
            ["2 h", "15 min", "90 s"]
        );
    }
}
