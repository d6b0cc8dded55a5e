//! Searches that ask the same words again.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use crate::domain::{Action, CallFacts, EventPosition, Finding, Sig};

/// The similarity in a finding of queries, which no other finding has.
const QUERY_SIMILARITY: f64 = 0.0;
const QUERY_CONFIDENCE: f64 = 0.7;
/// Each search may have found something else.
const QUERY_ACTION_MAX: Action = Action::Warn;

/// The latest searches of an agent.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct RecentQueries {
    /// Oldest first.
    queries: Vec<Query>,
    /// Words alone prove little, so they are reported once.
    reported: bool,
}

#[derive(Serialize, Deserialize)]
struct Query {
    words: Box<[u32]>,
    tool: u32,
    event: i32,
    /// How many calls the session had made.
    calls: u32,
    progress: u32,
    round: Option<Sig>,
}

impl RecentQueries {
    /// An agent compares few searches.
    pub const QUERIES_MAX: usize = 6;

    /// Counts earlier searches of the last `window` calls that already asked for all words
    /// of this one; `count` searches in all are found, once.
    pub fn observe(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        words: &[u32],
        [count, window]: [u32; 2],
    ) -> Option<Finding> {
        let tool = facts.tool.tag();
        self.queries.retain(|query| {
            query.progress == at.progress && at.calls.saturating_sub(query.calls) <= window
        });
        let mut events: SmallVec<[i32; 8]> = self
            .queries
            .iter()
            .filter(|query| query.tool == tool && query.covers(words))
            .filter(|query| at.round.is_none() || query.round != at.round)
            .map(|query| query.event)
            .collect();
        if self.queries.len() == Self::QUERIES_MAX {
            self.queries.remove(0);
        }
        self.queries.push(Query {
            words: words.into(),
            tool,
            event: at.index,
            calls: at.calls,
            progress: at.progress,
            round: at.round,
        });
        events.push(at.index);
        if self.reported || events.len() < count as usize {
            return None;
        }
        self.reported = true;
        Some(Finding {
            similarity: QUERY_SIMILARITY,
            confidence: QUERY_CONFIDENCE,
            action_max: Some(QUERY_ACTION_MAX),
            calls: facts.call.into_iter().collect(),
            ..Finding::new(events.len(), events, smallvec![facts.call?])
        })
    }

    pub fn consume(&mut self, cited: &[i32]) {
        self.queries.retain(|query| !cited.contains(&query.event));
    }

    pub fn heap_bytes(&self) -> usize {
        let words: usize = self
            .queries
            .iter()
            .map(|query| size_of_val(&*query.words))
            .sum();
        words + self.queries.capacity() * size_of::<Query>()
    }
}

impl Query {
    /// Whether all of `words` are words of this query, and at least two thirds of it.
    fn covers(&self, words: &[u32]) -> bool {
        words.len() * 3 >= self.words.len() * 2
            && words
                .iter()
                .all(|word| self.words.binary_search(word).is_ok())
    }
}
