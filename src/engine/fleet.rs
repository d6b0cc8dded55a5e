//! The sessions as a person on call looks for them: the worst first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{Engine, slot::Slot};
use crate::domain::{
    Action, Labels, SessionId, SessionView, Status, Tenant, Verdict, VerdictId, Waste,
};

/// Which sessions somebody looks for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Whose sessions.
    pub tenant: Tenant,
    pub status: Option<Status>,
    /// In lower case. Each must stand in the id, the profile, or a label as
    /// `key=value`.
    pub words: Vec<String>,
    /// Of the last verdict. Empty: any.
    pub detector: String,
    /// Of the last verdict, this and stronger.
    pub least_action: Option<Action>,
}

/// A part of the fleet.
#[derive(Debug)]
pub struct Fleet {
    /// The worst first.
    pub sessions: Vec<SessionView>,
    /// How many were found, whatever status is looked for.
    pub counts: BTreeMap<&'static str, usize>,
}

/// How badly a session is stuck: what is compared first matters most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Plight {
    rank: u8,
    /// What its last verdict asks for now; nothing while it is snoozed.
    action: Option<Action>,
    /// In thousandths.
    trend: u64,
    /// In millionths of a dollar.
    wasted_usd: u64,
    wasted_tokens: i64,
    wasted_events: i64,
    last: VerdictId,
}

impl Plight {
    pub fn new(status: Status, trend: f64, wasted: Waste, last: Option<&Verdict>) -> Self {
        Self {
            rank: match status {
                Status::Looping | Status::Quarantined => 3,
                Status::Active => 2,
                Status::Terminated => 1,
                Status::Ended => 0,
            },
            action: last.and_then(Verdict::acted),
            // `as` stays within the type's bounds, whatever comes in.
            trend: (trend * 1e3) as u64,
            wasted_usd: (wasted.usd * 1e6) as u64,
            wasted_tokens: wasted.tokens,
            wasted_events: wasted.events,
            last: last.map(|verdict| verdict.id).unwrap_or_default(),
        }
    }

    /// Of one that was terminated before the service started: what else is known
    /// of it would have to be unfolded.
    pub fn terminated(by: VerdictId) -> Self {
        Self {
            action: Some(Action::Terminate),
            last: by,
            ..Self::new(Status::Terminated, 0.0, Waste::default(), None)
        }
    }
}

impl Search {
    /// All but the status. What is cheap is asked first: of a tombstone the rest
    /// may have to be unfolded.
    fn fits(&self, id: &SessionId, slot: &Slot) -> bool {
        id.is_of(&self.tenant)
            && self.fits_words(id, slot)
            && (self.detector.is_empty() && self.least_action.is_none()
                || slot.last_verdict(id).is_some_and(|verdict| {
                    (self.detector.is_empty() || self.detector == *verdict.detector)
                        && verdict.action >= self.least_action
                }))
    }

    fn fits_words(&self, id: &SessionId, slot: &Slot) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let name = id.as_str().to_lowercase();
        let mut others = self.words.iter().filter(|word| !name.contains(*word));
        let Some(first) = others.next() else {
            return true;
        };
        let told = told(&slot.labels(id), slot.profile_name());
        told.contains(first) && others.all(|word| told.contains(word))
    }
}

/// What words are looked for in, apart from the id; a line each, so that no word
/// spans two of them.
fn told(labels: &Labels, profile: &str) -> String {
    let mut told = profile.to_lowercase();
    for (key, value) in labels {
        told.push('\n');
        told.push_str(&key.to_lowercase());
        told.push('=');
        told.push_str(&value.to_lowercase());
    }
    told
}

impl Engine {
    /// Up to `most` of those that are looked for, after the `skip` worst. A shard
    /// is locked while it is walked over; only ids are copied then, and no more
    /// of them than are needed.
    pub fn fleet(&self, search: &Search, skip: usize, most: usize) -> Fleet {
        let kept_max = skip.saturating_add(most);
        let mut counts: BTreeMap<_, _> = Status::ALL
            .map(|status| (status.name(), 0))
            .into_iter()
            .collect();
        // The least bad is on top, and leaves first.
        let mut worst: BinaryHeap<Reverse<(Plight, Reverse<SessionId>)>> = BinaryHeap::new();
        for slot in &self.sessions {
            let id = slot.key();
            if !search.fits(id, &slot) {
                continue;
            }
            let status = slot.status();
            *counts.entry(status.name()).or_default() += 1;
            if search.status.is_some_and(|wanted| wanted != status) {
                continue;
            }
            let plight = slot.plight();
            let is_worse = |least: &Reverse<(Plight, Reverse<SessionId>)>| plight >= least.0.0;
            if worst.len() < kept_max || worst.peek().is_some_and(is_worse) {
                worst.push(Reverse((plight, Reverse(id.clone()))));
                if worst.len() > kept_max {
                    worst.pop();
                }
            }
        }
        let ids = worst.into_sorted_vec().into_iter().skip(skip);
        let sessions = ids.filter_map(|Reverse((_, Reverse(id)))| self.get(&id));
        Fleet {
            sessions: sessions.collect(),
            counts,
        }
    }
}
