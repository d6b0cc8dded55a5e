//! The route's state of each session between its hooks: which verdicts were delivered, and
//! fields of one hook that a later event needs. It is bounded and not saved: after a restart
//! earlier verdicts count as delivered.

use std::{collections::VecDeque, num::NonZeroUsize, sync::Arc, time::SystemTime};

use lru::LruCache;
use parking_lot::Mutex;

use crate::{
    api::LABELS_MAX,
    domain::{Cost, Labels, SessionId, ToolCall, Verdict, VerdictId},
    ingest::ReportedOutcome,
};

/// The most sessions, of 28 KiB at most: labels 7, outcomes 8, a verdict 12, the rest 1. The
/// least recently used one is dropped; its next hook is like that of a new session.
const SESSIONS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1_023);
/// The most delivered verdicts that are kept of a session.
const DELIVERED_MAX: usize = 16;
/// The most outcomes of a session that wait for the event of their call.
const OUTCOMES_MAX: usize = 32;

pub(super) struct HookSessions {
    sessions: Mutex<LruCache<SessionId, HookSession>>,
    /// Verdicts before this one were issued before the service started.
    first_verdict: VerdictId,
}

/// The state of a session.
pub(super) struct HookSession {
    /// The labels that were set, at most [`LABELS_MAX`]. Empty: none yet.
    pub labels: Labels,
    /// The agent's turns arrive as deltas, so a turn at their end does not count again.
    pub has_deltas: bool,
    /// A verdict that was in no reply yet.
    pub undelivered: Option<Arc<Verdict>>,
    /// The cost since the last event.
    pub cost: Cost,
    /// Verdicts before this one are delivered.
    delivered_before: VerdictId,
    delivered: VecDeque<VerdictId>,
    /// Verdicts for which a person was asked to confirm a call.
    asked: VecDeque<VerdictId>,
    outcomes: VecDeque<(String, ReportedOutcome)>,
    /// The last prompt at the end of whose turn the agent was made to continue.
    reworked_prompt: Option<String>,
    round: OpenRound,
}

/// The calls that the agent announced before the first of them finished. They are the calls of
/// one response of the model, for agents that send no id of the response.
#[derive(Default)]
struct OpenRound {
    id: String,
    calls: VecDeque<CallFingerprint>,
    /// A call has finished, so the next one belongs to another response.
    has_result: bool,
}

impl HookSessions {
    pub fn new(started_at: SystemTime) -> Self {
        Self {
            sessions: Mutex::new(LruCache::new(SESSIONS_MAX)),
            first_verdict: VerdictId::lower_bound_at(started_at),
        }
    }

    /// Reads or changes the state of a session, which is created if necessary. All tenants
    /// share the lock, so `change` takes microseconds.
    pub fn with<T>(&self, session: &SessionId, change: impl FnOnce(&mut HookSession) -> T) -> T {
        let mut sessions = self.sessions.lock();
        #[cfg(debug_assertions)]
        let _locked = lock_check::Locked::new();
        let entry =
            sessions.get_or_insert_mut_ref(session, || HookSession::new(self.first_verdict));
        change(entry)
    }

    pub fn remove(&self, session: &SessionId) {
        self.sessions.lock().pop(session);
    }
}

impl HookSession {
    fn new(delivered_before: VerdictId) -> Self {
        Self {
            labels: Labels::default(),
            has_deltas: false,
            undelivered: None,
            cost: Cost::default(),
            delivered_before,
            delivered: VecDeque::new(),
            asked: VecDeque::new(),
            outcomes: VecDeque::new(),
            reworked_prompt: None,
            round: OpenRound::default(),
        }
    }

    /// Adds the labels that it does not have, up to as many as a session may have. Returns
    /// whether there were any.
    pub fn add_labels(&mut self, labels: &Labels) -> bool {
        let known_count = self.labels.len();
        for (key, value) in labels {
            if self.labels.len() >= LABELS_MAX {
                break;
            }
            let label = self.labels.entry(key.clone());
            label.or_insert_with(|| value.clone());
        }
        self.labels.len() > known_count
    }

    pub fn is_delivered(&self, verdict: VerdictId) -> bool {
        verdict < self.delivered_before || self.delivered.contains(&verdict)
    }

    pub fn mark_delivered(&mut self, verdict: VerdictId) {
        if self.is_delivered(verdict) {
            return;
        }
        if let Some(oldest) = push_bounded(&mut self.delivered, verdict, DELIVERED_MAX) {
            let next = VerdictId(oldest.0.saturating_add(1));
            self.delivered_before = self.delivered_before.max(next);
        }
    }

    /// Whether a person may be asked because of this verdict: only once.
    pub fn may_ask(&mut self, verdict: VerdictId) -> bool {
        if verdict < self.delivered_before || self.asked.contains(&verdict) {
            return false;
        }
        push_bounded(&mut self.asked, verdict, DELIVERED_MAX);
        true
    }

    pub fn keep_outcome(&mut self, call_id: String, outcome: ReportedOutcome) {
        self.outcomes.retain(|(known, _)| *known != call_id);
        push_bounded(&mut self.outcomes, (call_id, outcome), OUTCOMES_MAX);
    }

    pub fn take_outcome(&mut self, call_id: &str) -> Option<ReportedOutcome> {
        let position = self
            .outcomes
            .iter()
            .position(|(known, _)| known == call_id)?;
        let (_, outcome) = self.outcomes.remove(position)?;
        Some(outcome)
    }

    /// Notes a call that is about to be made.
    pub fn announce_call(&mut self, call_id: &str, call: CallFingerprint) {
        if self.round.has_result || self.round.calls.is_empty() {
            self.round = OpenRound {
                id: call_id.to_owned(),
                ..OpenRound::default()
            };
        }
        push_bounded(&mut self.round.calls, call, OUTCOMES_MAX);
    }

    /// The round of a finished call; empty if it was not announced.
    pub fn round_of(&mut self, call: CallFingerprint) -> String {
        let position = self.round.calls.iter().position(|known| *known == call);
        let Some(position) = position else {
            return String::new();
        };
        self.round.calls.remove(position);
        self.round.has_result = true;
        self.round.id.clone()
    }

    /// Whether the agent may be made to continue after this prompt's turn: only once.
    pub fn may_rework(&mut self, prompt_id: String) -> bool {
        let is_first = self.reworked_prompt.as_ref() != Some(&prompt_id);
        self.reworked_prompt = Some(prompt_id);
        is_first
    }
}

/// Identifies a call by its tool and arguments, which are the same before and after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CallFingerprint(blake3::Hash);

impl CallFingerprint {
    /// Reads all of the arguments, so it is computed before the lock is taken.
    pub fn new(call: &ToolCall) -> Self {
        #[cfg(debug_assertions)]
        lock_check::Locked::assert_none();
        let mut hasher = blake3::Hasher::new();
        hasher.update(call.tool.as_bytes());
        hasher.update(&[0]);
        hasher.update(call.args.as_text().as_bytes());
        Self(hasher.finalize())
    }
}

/// Checks, in builds for tests, that no call is hashed under the lock.
#[cfg(debug_assertions)]
mod lock_check {
    use std::cell::Cell;

    thread_local! {
        static IS_LOCKED: Cell<bool> = const { Cell::new(false) };
    }

    /// This thread has the lock.
    pub(super) struct Locked(());

    impl Locked {
        pub fn new() -> Self {
            IS_LOCKED.set(true);
            Self(())
        }

        pub fn assert_none() {
            assert!(!IS_LOCKED.get(), "a call is hashed under the lock");
        }
    }

    impl Drop for Locked {
        fn drop(&mut self) {
            IS_LOCKED.set(false);
        }
    }
}

/// Adds an entry. Returns the oldest if there are too many.
fn push_bounded<T>(entries: &mut VecDeque<T>, entry: T, len_max: usize) -> Option<T> {
    entries.push_back(entry);
    if entries.len() > len_max {
        entries.pop_front()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::domain::Outcome;

    fn table() -> HookSessions {
        HookSessions::new(UNIX_EPOCH + Duration::from_secs(1_000))
    }

    fn verdict(secs: u64) -> VerdictId {
        VerdictId::lower_bound_at(UNIX_EPOCH + Duration::from_secs(secs))
    }

    fn session(id: &str) -> SessionId {
        SessionId::parse(id).unwrap()
    }

    #[test]
    fn a_verdict_is_delivered_once_also_after_many_others() {
        let table = table();
        table.with(&session("s"), |entry| {
            assert!(entry.is_delivered(verdict(999)), "from before the start");
            for secs in 1_000..1_100 {
                assert!(!entry.is_delivered(verdict(secs)));
                entry.mark_delivered(verdict(secs));
            }
            assert!((1_000..1_100).all(|secs| entry.is_delivered(verdict(secs))));
            assert_eq!(entry.delivered.len(), DELIVERED_MAX);
        });
        // Another sub-agent's earlier verdict is not lost.
        table.with(&session("t"), |entry| {
            entry.mark_delivered(verdict(1_005));
            assert!(!entry.is_delivered(verdict(1_004)));
        });
    }

    #[test]
    fn a_person_is_asked_once_about_a_verdict() {
        table().with(&session("s"), |entry| {
            assert!(entry.may_ask(verdict(1_001)));
            assert!(!entry.may_ask(verdict(1_001)));
            assert!(!entry.may_ask(verdict(900)), "from before the start");
        });
    }

    #[test]
    fn a_prompt_is_worked_on_again_once() {
        table().with(&session("s"), |entry| {
            assert!(entry.may_rework("p1".to_owned()));
            assert!(!entry.may_rework("p1".to_owned()));
            assert!(entry.may_rework("p2".to_owned()));
        });
    }

    #[test]
    fn calls_that_are_announced_together_are_a_round() {
        let [a, b] = ["a", "b"].map(|tool| {
            CallFingerprint::new(&ToolCall {
                tool: tool.to_owned(),
                ..ToolCall::default()
            })
        });
        table().with(&session("s"), |entry| {
            for (id, call) in [("1", a), ("2", a), ("3", b)] {
                entry.announce_call(id, call);
            }
            assert_eq!(entry.round_of(a), "1");
            assert_eq!(entry.round_of(b), "1");
            // The next call comes after a result, so it is of another response.
            entry.announce_call("4", a);
            assert_eq!(entry.round_of(a), "4");
            assert_eq!(entry.round_of(a), "", "it was not announced");
        });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let table = table();
        let outcome = ReportedOutcome {
            outcome: Outcome::Ok,
            content_hash: String::new(),
        };
        table.with(&session("s"), |entry| {
            for call in 0..100 {
                entry.keep_outcome(call.to_string(), outcome.clone());
            }
            assert_eq!(entry.outcomes.len(), OUTCOMES_MAX);
            assert!(entry.take_outcome("99").is_some());
            assert!(entry.take_outcome("99").is_none());
            for n in 0..100 {
                let label = (format!("k{n}"), "v".to_owned());
                assert_eq!(entry.add_labels(&Labels::from([label])), n < LABELS_MAX);
            }
            assert_eq!(entry.labels.len(), LABELS_MAX);
        });
        for id in 0..5_000 {
            table.with(&session(&format!("s{id}")), |_| ());
        }
        assert_eq!(table.sessions.lock().len(), SESSIONS_MAX.get());
    }
}
