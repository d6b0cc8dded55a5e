//! The sessions as a person on call looks for them: the worst first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{Engine, slot::Slot};
use crate::domain::{
    Action, Labels, SessionId, SessionStatus, SessionView, Tenant, Verdict, VerdictId, Waste,
};

/// Which sessions somebody looks for.
#[derive(Clone, Debug, Default)]
pub struct FleetFilter {
    /// Whose sessions.
    pub tenant: Tenant,
    pub status: Option<SessionStatus>,
    /// In lower case. Each must stand in the id, the profile, or a label as
    /// `key=value`.
    pub words: Vec<String>,
    /// Of the last verdict. Empty: any.
    pub detector: String,
    /// Of the last verdict, this and stronger.
    pub min_action: Option<Action>,
}

/// A part of the fleet.
#[derive(Debug)]
pub struct RankedSessions {
    /// The worst first.
    pub sessions: Vec<SessionView>,
    /// How many were found, whatever status is looked for.
    pub counts: BTreeMap<&'static str, usize>,
}

/// How badly a session is stuck: what is compared first matters most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Severity {
    status_rank: u8,
    /// What its last verdict asks for now; nothing while it is snoozed.
    action: Option<Action>,
    /// In thousandths.
    trend: u64,
    /// In millionths of a dollar.
    wasted_usd: u64,
    wasted_tokens: i64,
    wasted_events: i64,
    last_verdict: VerdictId,
}

impl Severity {
    pub fn new(status: SessionStatus, trend: f64, wasted: Waste, last: Option<&Verdict>) -> Self {
        Self {
            status_rank: match status {
                SessionStatus::Looping | SessionStatus::Quarantined => 3,
                SessionStatus::Active => 2,
                SessionStatus::Terminated => 1,
                SessionStatus::Ended => 0,
            },
            action: last.and_then(Verdict::effective_action),
            // `as` stays within the type's bounds, whatever comes in.
            trend: (trend * 1e3) as u64,
            wasted_usd: (wasted.usd * 1e6) as u64,
            wasted_tokens: wasted.tokens,
            wasted_events: wasted.events,
            last_verdict: last.map(|verdict| verdict.id).unwrap_or_default(),
        }
    }

    /// Of one that was terminated before the service started: what else is known
    /// of it would have to be unfolded.
    pub fn of_termination(verdict: VerdictId) -> Self {
        Self {
            action: Some(Action::Terminate),
            last_verdict: verdict,
            ..Self::new(SessionStatus::Terminated, 0.0, Waste::default(), None)
        }
    }
}

impl FleetFilter {
    /// All but the status. What is cheap is asked first: of a tombstone the rest
    /// may have to be unfolded.
    fn matches(&self, id: &SessionId, slot: &Slot) -> bool {
        id.belongs_to(&self.tenant)
            && self.matches_words(id, slot)
            && (self.detector.is_empty() && self.min_action.is_none()
                || slot.last_verdict(id).is_some_and(|verdict| {
                    (self.detector.is_empty() || self.detector == *verdict.detector)
                        && verdict.action >= self.min_action
                }))
    }

    fn matches_words(&self, id: &SessionId, slot: &Slot) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let name = id.as_str().to_lowercase();
        let mut remaining = self.words.iter().filter(|word| !name.contains(*word));
        let Some(first) = remaining.next() else {
            return true;
        };
        let text = searchable_text(&slot.labels(id), slot.profile_name());
        text.contains(first) && remaining.all(|word| text.contains(word))
    }
}

/// What words are looked for in, apart from the id; a line each, so that no word
/// spans two of them.
fn searchable_text(labels: &Labels, profile: &str) -> String {
    let mut text = profile.to_lowercase();
    for (key, value) in labels {
        text.push('\n');
        text.push_str(&key.to_lowercase());
        text.push('=');
        text.push_str(&value.to_lowercase());
    }
    text
}

impl Engine {
    /// Up to `most` of those that are looked for, after the `skip` worst. A shard
    /// is locked while it is walked over; only ids are copied then, and no more
    /// of them than are needed.
    pub fn rank_sessions(&self, filter: &FleetFilter, skip: usize, limit: usize) -> RankedSessions {
        let heap_len_max = skip.saturating_add(limit);
        let mut counts: BTreeMap<_, _> = SessionStatus::ALL
            .map(|status| (status.name(), 0))
            .into_iter()
            .collect();
        // The least bad is on top, and leaves first.
        let mut worst: BinaryHeap<Reverse<(Severity, Reverse<SessionId>)>> = BinaryHeap::new();
        for slot in &self.sessions {
            let id = slot.key();
            if !filter.matches(id, &slot) {
                continue;
            }
            let status = slot.status();
            *counts.entry(status.name()).or_default() += 1;
            if filter.status.is_some_and(|wanted| wanted != status) {
                continue;
            }
            let severity = slot.severity();
            let is_worse = |least: &Reverse<(Severity, Reverse<SessionId>)>| severity >= least.0.0;
            if worst.len() < heap_len_max || worst.peek().is_some_and(is_worse) {
                worst.push(Reverse((severity, Reverse(id.clone()))));
                if worst.len() > heap_len_max {
                    worst.pop();
                }
            }
        }
        let ids = worst.into_sorted_vec().into_iter().skip(skip);
        let sessions = ids.filter_map(|Reverse((_, Reverse(id)))| self.get(&id));
        RankedSessions {
            sessions: sessions.collect(),
            counts,
        }
    }
}
