//! Searching the sessions: a page in the order of their ids, or the most severe
//! first, as a person on call looks for them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

use super::{Engine, Profile, sessions::SessionMap, slot::Slot};
use crate::domain::{
    Action, DetectorExplanation, Evidence, Labels, SessionId, SessionStatus, SessionView, Tenant,
    Verdict, VerdictId, Waste, has_labels,
};

/// Selects sessions of a list.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    pub tenant: Tenant,
    pub status: Option<SessionStatus>,
    /// A session must have all of these; empty: any session.
    pub labels: Labels,
}

/// Selects sessions of a ranking.
#[derive(Clone, Debug, Default)]
pub struct FleetFilter {
    pub tenant: Tenant,
    pub status: Option<SessionStatus>,
    /// In lower case. Each must occur in the id, the profile, or a label as
    /// `key=value`.
    pub words: Vec<String>,
    /// The detector of the last verdict. Empty: any.
    pub detector: String,
    /// The weakest action of the last verdict.
    pub min_action: Option<Action>,
}

/// A page of a ranking.
#[derive(Debug)]
pub struct RankedSessions {
    /// The most severe first.
    pub sessions: Vec<SessionView>,
    /// The number of matching sessions by status; the filter's status is ignored.
    pub counts: BTreeMap<&'static str, usize>,
}

/// How badly a session is stuck. Fields are compared in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Severity {
    status_rank: u8,
    /// The action of its last verdict; `None` while the session is snoozed.
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
    /// The rank of sessions in a loop, and of those that went on after their termination.
    const RUNNING_RANK: u8 = 3;

    pub fn new(status: SessionStatus, trend: f64, wasted: Waste, last: Option<&Verdict>) -> Self {
        Self {
            status_rank: match status {
                SessionStatus::Looping | SessionStatus::Quarantined => Self::RUNNING_RANK,
                SessionStatus::Active => 2,
                SessionStatus::Terminated => 1,
                SessionStatus::Ended => 0,
            },
            action: last.and_then(Verdict::effective_action),
            // `as` saturates at the bounds of the type.
            trend: (trend * 1e3) as u64,
            wasted_usd: (wasted.usd * 1e6) as u64,
            wasted_tokens: wasted.tokens,
            wasted_events: wasted.events,
            last_verdict: last.map(|verdict| verdict.id).unwrap_or_default(),
        }
    }

    /// The same for a session that sent events after its termination: it is still running.
    pub fn of_disobedient(self) -> Self {
        Self {
            status_rank: Self::RUNNING_RANK,
            ..self
        }
    }

    /// For a session that was terminated before the service started. The other
    /// fields would require decoding its record.
    pub fn of_termination(verdict: VerdictId) -> Self {
        Self {
            action: Some(Action::Terminate),
            last_verdict: verdict,
            ..Self::new(SessionStatus::Terminated, 0.0, Waste::default(), None)
        }
    }
}

impl ListFilter {
    fn matches(&self, id: &SessionId, slot: &Slot) -> bool {
        id.belongs_to(&self.tenant)
            && self.status.is_none_or(|wanted| wanted == slot.status())
            && (self.labels.is_empty() || has_labels(&slot.labels(id), &self.labels))
    }
}

impl FleetFilter {
    /// Checks everything but the status. Cheap checks come first: the others may
    /// have to decode a tombstone.
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

/// The profile and the labels, one per line, so that no word spans two of them.
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

/// The ids of one page, and the last of them if there are more sessions. A shard
/// is locked while it is read, so only ids are copied.
pub(super) fn list_ids(
    sessions: &SessionMap,
    filter: &ListFilter,
    after: Option<&str>,
    limit: usize,
) -> (Vec<SessionId>, Option<SessionId>) {
    let mut ids = BTreeSet::new();
    for slot in sessions {
        let id = slot.key();
        let follows = after.is_none_or(|after| id.as_str() > after);
        let fits_page = ids.len() <= limit || ids.last().is_some_and(|last| id < last);
        if follows && fits_page && filter.matches(id, &slot) {
            ids.insert(id.clone());
            if ids.len() > limit + 1 {
                ids.pop_last();
            }
        }
    }
    let has_more = ids.len() > limit;
    let page: Vec<SessionId> = ids.into_iter().take(limit).collect();
    let last = page.last().filter(|_| has_more).cloned();
    (page, last)
}

/// The ids of at most `limit` sessions after the `skip` most severe, and the
/// counts by status. A shard is locked while it is read, so only ids are copied,
/// and no more than needed.
pub(super) fn rank_ids(
    engine: &Engine,
    filter: &FleetFilter,
    skip: usize,
    limit: usize,
) -> (Vec<SessionId>, BTreeMap<&'static str, usize>) {
    let heap_len_max = skip.saturating_add(limit);
    let mut counts: BTreeMap<_, _> = SessionStatus::ALL
        .map(|status| (status.name(), 0))
        .into_iter()
        .collect();
    // The least severe is on top and is removed first.
    let mut worst: BinaryHeap<Reverse<(Severity, Reverse<SessionId>)>> = BinaryHeap::new();
    let disobedient = engine.state.disobedience.session_ids();
    for slot in &engine.sessions {
        let id = slot.key();
        if !filter.matches(id, &slot) {
            continue;
        }
        let status = slot.status();
        *counts.entry(status.name()).or_default() += 1;
        if filter.status.is_some_and(|wanted| wanted != status) {
            continue;
        }
        let severity = if disobedient.contains(id) {
            slot.severity().of_disobedient()
        } else {
            slot.severity()
        };
        let is_worse = |Reverse((least, _)): &Reverse<(Severity, _)>| severity >= *least;
        if worst.len() < heap_len_max || worst.peek().is_some_and(is_worse) {
            worst.push(Reverse((severity, Reverse(id.clone()))));
            if worst.len() > heap_len_max {
                worst.pop();
            }
        }
    }
    let ranked = worst.into_sorted_vec().into_iter().skip(skip);
    let ids = ranked.map(|Reverse((_, Reverse(id)))| id);
    (ids.collect(), counts)
}

/// One explanation for each detector in the verdicts of a session.
pub(super) fn explanations(
    profile: &Profile,
    view: &SessionView,
) -> Vec<(Arc<str>, DetectorExplanation)> {
    let verdicts = view.verdicts.iter().chain(&view.termination);
    let evidence_of = |name: &Arc<str>| -> Vec<&Evidence> {
        let own = verdicts.clone().filter(|verdict| verdict.detector == *name);
        own.map(|verdict| &verdict.evidence).collect()
    };
    let detectors: BTreeSet<&Arc<str>> = verdicts
        .clone()
        .flat_map(|verdict| verdict.other_detectors.iter().chain([&verdict.detector]))
        .collect();
    detectors
        .into_iter()
        .filter_map(|name| Some((name.clone(), profile.explain(name, &evidence_of(name))?)))
        .collect()
}
