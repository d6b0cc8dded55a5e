//! Counts the events that a client sends after a termination. They are not recorded or
//! checked; their number and cost are reported at 1, 10, 100, … events.
//!
//! The counts are kept outside the sessions: they are the same for a live session with a
//! terminated sub-agent, a tombstone, and a session that has ended since.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lru::LruCache;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Engine;
use crate::domain::{Action, AgentId, Cost, Effect, SessionId, Verdict, VerdictId, Waste};

/// An event that arrives this soon after a termination was already under way.
pub const UNDER_WAY: Duration = Duration::from_secs(2);

/// How many sessions are counted. Above it the counts of the one that was idle for longest
/// are dropped.
const SESSIONS_MAX: usize = if cfg!(test) { 16 } else { 65_536 };

/// The counts of one terminated session or sub-agent.
#[derive(Clone, Copy, Debug)]
struct Disobedience {
    termination: VerdictId,
    /// From then on the broker can know of the termination.
    sendable_at: SystemTime,
    waste: Waste,
}

type AgentCounts = SmallVec<[(AgentId, Disobedience); 1]>;

/// The counts of all sessions that went on.
pub(super) struct DisobedienceLog(Mutex<LruCache<SessionId, AgentCounts>>);

impl Default for DisobedienceLog {
    fn default() -> Self {
        // A cache with a bound allocates for all entries at once, and most services have
        // few: `get_or_insert` enforces the bound.
        Self(Mutex::new(LruCache::unbounded()))
    }
}

/// The counts of a session, which is the most recently used one after the call.
fn get_or_insert<'a>(
    log: &'a mut LruCache<SessionId, AgentCounts>,
    id: &SessionId,
) -> &'a mut AgentCounts {
    if log.len() >= SESSIONS_MAX && !log.contains(id) {
        log.pop_lru();
    }
    log.get_or_insert_mut_ref(id, AgentCounts::default)
}

/// An input after a termination.
#[derive(Clone, Copy, Debug)]
pub struct LateInput<'a> {
    pub session: &'a SessionId,
    pub termination: &'a Verdict,
    pub cost: Cost,
    /// The termination may have been sent: its write has ended.
    pub may_be_sent: bool,
    pub now: SystemTime,
}

impl DisobedienceLog {
    /// Counts an input. Returns the counts after it, unless it was under way.
    fn count(&self, input: &LateInput<'_>) -> Option<Waste> {
        let LateInput {
            session,
            termination,
            cost,
            may_be_sent,
            now,
        } = *input;
        let issued_at = termination.id.time();
        let mut log = self.0.lock();
        // Most of what arrives in time needs no entry.
        if may_be_sent && now < issued_at + UNDER_WAY && !log.contains(session) {
            return None;
        }
        let counts = get_or_insert(&mut log, session);
        let known = counts
            .iter()
            .position(|(agent, _)| *agent == termination.agent);
        let position = known.unwrap_or_else(|| {
            let none = Disobedience {
                termination: termination.id,
                sendable_at: issued_at,
                waste: Waste::default(),
            };
            counts.push((termination.agent.clone(), none));
            counts.len() - 1
        });
        let (_, known) = counts.get_mut(position)?;
        if known.termination != termination.id {
            *known = Disobedience {
                termination: termination.id,
                sendable_at: issued_at,
                waste: Waste::default(),
            };
        }
        if !may_be_sent {
            known.sendable_at = now;
        }
        if !may_be_sent || now < known.sendable_at + UNDER_WAY {
            return None;
        }
        known.waste += Waste::new(1, cost);
        Some(known.waste)
    }

    /// The counts of a session and its sub-agents together. Those of another termination
    /// of the session are left out: its tombstone has expired since.
    pub fn total(&self, id: &SessionId, termination: Option<&Verdict>) -> Waste {
        let in_force = termination.map(|verdict| verdict.id);
        let mut total = Waste::default();
        for (agent, counts) in self.0.lock().peek(id).into_iter().flatten() {
            if !agent.is_main() || Some(counts.termination) == in_force {
                total += counts.waste;
            }
        }
        total
    }

    /// The sessions that have sent something after a termination.
    pub fn session_ids(&self) -> HashSet<SessionId> {
        let log = self.0.lock();
        log.iter()
            .filter(|(_, counts)| counts.iter().any(|(_, known)| known.waste.events > 0))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Removes the counts of terminations up to this verdict.
    pub fn remove_up_to(&self, id: &SessionId, last: VerdictId) {
        let mut log = self.0.lock();
        if let Some(counts) = log.get_mut(id) {
            counts.retain(|(_, known)| known.termination > last);
            if counts.is_empty() {
                log.pop(id);
            }
        }
    }

    /// Restores the counts that are on disk.
    pub fn restore(&self, id: &SessionId, agent: AgentId, termination: VerdictId, waste: Waste) {
        let known = Disobedience {
            termination,
            sendable_at: termination.time(),
            waste,
        };
        get_or_insert(&mut self.0.lock(), id).push((agent, known));
    }
}

/// Whether this number of events is reported: 1, 10, 100, …
fn is_milestone(events: i64) -> bool {
    events > 0 && 10_i64.pow(events.ilog10()) == events
}

/// Counts an input. Returns a report if it is due.
pub(super) fn count_late_input(engine: &Engine, input: &LateInput<'_>) -> Option<Arc<Verdict>> {
    let state = &engine.state;
    let waste = state.disobedience.count(input)?;
    let is_first = waste.events == 1;
    state.metrics.count_disobedience(is_first, input.cost.usd);
    if !is_milestone(waste.events) {
        return None;
    }
    let view = engine.get(input.session)?;
    let verdict = report(input.termination, waste, input.now);
    let (labels, profile) = (&view.labels, &view.profile);
    Some(
        state
            .issuer
            .issue(verdict, labels, profile, Effect::Disobeyed, input.now),
    )
}

/// The record of a session that went on.
fn report(termination: &Verdict, waste: Waste, now: SystemTime) -> Verdict {
    let events = waste.events;
    let plural = if events == 1 { "" } else { "s" };
    Verdict {
        agent: termination.agent.clone(),
        action: Some(Action::Terminate),
        pattern: format!(
            "went on after termination: {events} event{plural}, ${:.2}",
            waste.usd
        ),
        reason: format!("it was terminated by verdict {}", termination.id),
        wasted: waste,
        operator: termination.operator.clone(),
        ..Verdict::without_loop(
            termination.session.clone(),
            termination.detector.clone(),
            now,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::verdict_record;

    fn log_and_termination() -> (DisobedienceLog, Arc<Verdict>) {
        let id = VerdictId::lower_bound_at(SystemTime::UNIX_EPOCH + Duration::from_secs(100));
        let termination = verdict_record(id.0 + 1, "s", Action::Terminate).verdict;
        (DisobedienceLog::default(), termination)
    }

    fn late(termination: &Verdict, millis: u64, may_be_sent: bool) -> LateInput<'_> {
        LateInput {
            session: &termination.session,
            termination,
            cost: Cost {
                usd: 0.25,
                ..Cost::default()
            },
            may_be_sent,
            now: termination.id.time() + Duration::from_millis(millis),
        }
    }

    #[test]
    fn what_was_under_way_for_two_seconds_does_not_count() {
        let (log, termination) = log_and_termination();
        let counted = [0, 1_999, 2_000, 2_001].map(|millis| {
            let counted = log.count(&late(&termination, millis, true));
            counted.map(|waste| waste.events)
        });
        assert_eq!(counted, [None, None, Some(1), Some(2)]);
        assert_eq!(log.total(&termination.session, Some(&termination)).usd, 0.5);
    }

    #[test]
    fn while_the_disk_delays_the_termination_nothing_counts() {
        let (log, termination) = log_and_termination();
        let counted =
            [(3_000, false), (4_900, true), (5_000, true)].map(|(millis, may_be_sent)| {
                let counted = log.count(&late(&termination, millis, may_be_sent));
                counted.map(|waste| waste.events)
            });
        assert_eq!(counted, [None, None, Some(1)]);
    }

    #[test]
    fn a_later_termination_counts_from_the_beginning() {
        let (log, termination) = log_and_termination();
        log.count(&late(&termination, 5_000, true)).unwrap();
        // Its tombstone has expired, and a session of the same id has begun.
        assert_eq!(log.total(&termination.session, None).events, 0);
        let again = Verdict {
            id: VerdictId(termination.id.0 + 1),
            ..(*termination).clone()
        };
        assert_eq!(log.count(&late(&again, 5_000, true)).unwrap().events, 1);
        log.remove_up_to(&again.session, termination.id);
        assert_eq!(log.total(&again.session, Some(&again)).events, 1);
        log.remove_up_to(&again.session, again.id);
        assert_eq!(log.total(&again.session, Some(&again)).events, 0);
    }

    #[test]
    fn the_counts_are_bounded_and_the_longest_idle_go_first() {
        let (log, termination) = log_and_termination();
        let of = |n: usize| Verdict {
            session: SessionId::parse(&format!("s{n}")).unwrap(),
            ..(*termination).clone()
        };
        for n in 0..10 * SESSIONS_MAX {
            log.count(&late(&of(0), 5_000, true));
            log.count(&late(&of(n), 5_000, true));
        }
        assert_eq!(log.0.lock().len(), SESSIONS_MAX);
        let total = |n: usize| log.total(&of(n).session, Some(&of(n))).events;
        assert_eq!(total(0), 10 * SESSIONS_MAX as i64 + 1);
        assert_eq!(total(1), 0);
    }

    #[test]
    fn powers_of_ten_are_reported() {
        let reported: Vec<i64> = (-1..=1_000)
            .filter(|events| is_milestone(*events))
            .collect();
        assert_eq!(reported, [1, 10, 100, 1_000]);
    }
}
