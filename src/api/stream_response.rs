//! How the responses of each stream are coalesced and reduced while they are
//! unread: `StreamResponse` for the three response messages.

use std::collections::BTreeSet;

use super::present;
use crate::{pb, server::response_queue::StreamResponse};

impl StreamResponse for pb::StreamEventsResponse {
    fn from_termination(verdict: pb::Verdict) -> Self {
        Self {
            sequence: 0,
            results: vec![present::build_push_result(verdict)],
        }
    }

    fn verdicts_mut(&mut self) -> impl Iterator<Item = &mut pb::Verdict> {
        self.results
            .iter_mut()
            .flat_map(|result| &mut result.verdict)
    }

    fn keep_terminations_only(&mut self, seen_ids: &mut BTreeSet<String>) -> bool {
        // The rest no longer answers a request, so it has no sequence.
        self.sequence = 0;
        self.results.retain(|result| {
            result.action() == pb::Action::Terminate
                && insert_unseen(result.verdict.as_ref(), seen_ids)
        });
        !self.results.is_empty()
    }
}

impl StreamResponse for pb::StreamDeltasResponse {
    const COALESCES: bool = true;

    fn from_termination(verdict: pb::Verdict) -> Self {
        Self {
            session_id: verdict.session_id.clone(),
            agent_id: verdict.agent_id.clone(),
            action: verdict.action,
            verdict: Some(verdict),
            ..Self::default()
        }
    }

    /// Unread responses about the same turn are coalesced: the strongest action
    /// wins, ties go to the newest, and `coalesced` counts the rest. The end of a
    /// turn is always answered.
    fn coalesce(&mut self, later: Self) -> Result<(), Self> {
        let is_mergeable = !self.end_of_turn
            && !later.end_of_turn
            && is_same_turn(self, &later)
            && error_reason(self) == error_reason(&later);
        if !is_mergeable {
            return Err(later);
        }
        let coalesced = self.coalesced.saturating_add(1);
        if later.action >= self.action {
            *self = later;
        }
        self.coalesced = coalesced;
        Ok(())
    }

    /// After the end of a turn another turn may have the same id, for example an
    /// empty one.
    fn ends_coalescing(&self, later: &Self) -> bool {
        self.end_of_turn && is_same_turn(self, later)
    }

    fn verdicts_mut(&mut self) -> impl Iterator<Item = &mut pb::Verdict> {
        self.verdict.iter_mut()
    }

    fn keep_terminations_only(&mut self, seen_ids: &mut BTreeSet<String>) -> bool {
        self.action() == pb::Action::Terminate && insert_unseen(self.verdict.as_ref(), seen_ids)
    }
}

impl StreamResponse for pb::WatchVerdictsResponse {
    fn from_termination(verdict: pb::Verdict) -> Self {
        Self {
            verdict: Some(verdict),
        }
    }

    fn verdicts_mut(&mut self) -> impl Iterator<Item = &mut pb::Verdict> {
        self.verdict.iter_mut()
    }

    fn keep_terminations_only(&mut self, seen_ids: &mut BTreeSet<String>) -> bool {
        let verdict = self.verdict.as_ref();
        verdict.is_some_and(|verdict| verdict.action() == pb::Action::Terminate)
            && insert_unseen(verdict, seen_ids)
    }
}

fn is_same_turn(a: &pb::StreamDeltasResponse, b: &pb::StreamDeltasResponse) -> bool {
    a.session_id == b.session_id && a.agent_id == b.agent_id && a.turn_id == b.turn_id
}

fn error_reason(response: &pb::StreamDeltasResponse) -> Option<&str> {
    response.error.as_ref().map(|error| &*error.reason)
}

/// Adds the id of the verdict to `seen_ids`. Returns false if it was in there.
fn insert_unseen(verdict: Option<&pb::Verdict>, seen_ids: &mut BTreeSet<String>) -> bool {
    verdict.is_none_or(|verdict| seen_ids.insert(verdict.verdict_id.clone()))
}
