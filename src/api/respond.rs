//! What streams of events and deltas send, and what of it may stand for what.

use super::{outbound::Respond, present};
use crate::pb;

impl Respond for pb::StreamEventsResponse {
    fn push(verdict: pb::Verdict) -> Self {
        Self {
            sequence: 0,
            results: vec![present::push(verdict)],
        }
    }

    fn terminates(&self) -> bool {
        let mut results = self.results.iter();
        results.any(|result| result.action() == pb::Action::Terminate)
    }
}

impl Respond for pb::StreamDeltasResponse {
    const ABSORBS: bool = true;

    fn push(verdict: pb::Verdict) -> Self {
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
    fn absorb(&mut self, later: Self) -> Result<(), Self> {
        let of = |response: &Self| {
            let reason = response.error.as_ref().map(|error| error.reason.clone());
            (response.end_of_turn, reason)
        };
        let ids = |a: &Self, b: &Self| {
            a.session_id == b.session_id && a.agent_id == b.agent_id && a.turn_id == b.turn_id
        };
        if self.end_of_turn || !ids(self, &later) || of(self) != of(&later) {
            return Err(later);
        }
        let coalesced = self.coalesced.saturating_add(1);
        if later.action >= self.action {
            *self = later;
        }
        self.coalesced = coalesced;
        Ok(())
    }

    fn terminates(&self) -> bool {
        self.action() == pb::Action::Terminate
    }
}
