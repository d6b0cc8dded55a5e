//! What streams send, and what of it may stand for what.

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

    fn keep_terminations_only(&mut self, told: &mut BTreeSet<String>) -> bool {
        // What is left answers no message.
        self.sequence = 0;
        self.results.retain(|result| {
            result.action() == pb::Action::Terminate && insert_unseen(result.verdict.as_ref(), told)
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

    /// Of what is said about one text while it is written, and not read, the
    /// strongest is enough, and of equals the latest; it says for how many it
    /// stands. Each end of a turn is answered.
    fn coalesce(&mut self, later: Self) -> Result<(), Self> {
        let merge_key = |response: &Self| {
            let reason = response.error.as_ref().map(|error| error.reason.clone());
            (response.end_of_turn, reason)
        };
        if self.end_of_turn || !is_same_turn(self, &later) || merge_key(self) != merge_key(&later) {
            return Err(later);
        }
        let coalesced = self.coalesced.saturating_add(1);
        if later.action >= self.action {
            *self = later;
        }
        self.coalesced = coalesced;
        Ok(())
    }

    /// After the end of a text another may have its name, as where it has none.
    fn ends_coalescing(&self, later: &Self) -> bool {
        self.end_of_turn && is_same_turn(self, later)
    }

    fn keep_terminations_only(&mut self, told: &mut BTreeSet<String>) -> bool {
        self.action() == pb::Action::Terminate && insert_unseen(self.verdict.as_ref(), told)
    }
}

impl StreamResponse for pb::WatchVerdictsResponse {
    fn from_termination(verdict: pb::Verdict) -> Self {
        Self {
            verdict: Some(verdict),
        }
    }

    fn keep_terminations_only(&mut self, told: &mut BTreeSet<String>) -> bool {
        let verdict = self.verdict.as_ref();
        let terminates = |verdict: &pb::Verdict| verdict.action() == pb::Action::Terminate;
        verdict.is_some_and(terminates) && insert_unseen(verdict, told)
    }
}

fn is_same_turn(a: &pb::StreamDeltasResponse, b: &pb::StreamDeltasResponse) -> bool {
    a.session_id == b.session_id && a.agent_id == b.agent_id && a.turn_id == b.turn_id
}

/// It is none of those told; from now on it is.
fn insert_unseen(verdict: Option<&pb::Verdict>, seen_ids: &mut BTreeSet<String>) -> bool {
    verdict.is_none_or(|verdict| seen_ids.insert(verdict.verdict_id.clone()))
}
