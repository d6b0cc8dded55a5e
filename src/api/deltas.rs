//! Records deltas, and builds the responses to those that need one.

use std::time::SystemTime;

use super::{
    Api, InvalidArgument,
    convert::{self, DecodedEntry},
    present,
    terminations::TerminationPushes,
    waiting_responses::Answer,
};
use crate::pb;

impl Api {
    /// The response to a delta, if it needs one.
    pub(super) fn answer_delta(
        &self,
        DecodedEntry {
            message: mut delta,
            result,
        }: DecodedEntry<pb::Delta>,
        now: SystemTime,
        pushes: &TerminationPushes,
    ) -> Option<Answer<pb::StreamDeltasResponse>> {
        // Parse it. An invalid delta is answered with an error.
        let parsed = result
            .and_then(|()| pushes.resolve_session(&delta.session_id))
            .and_then(|(session, is_tracked)| {
                Ok((convert::parse_delta(session, &mut delta)?, is_tracked))
            });
        let (parsed, is_tracked) = match parsed {
            Ok(parsed) => parsed,
            Err(invalid) => return Some(self.reject_delta(delta, invalid, pushes).into()),
        };
        // Record it. Most deltas need no response.
        let record = || self.record_delta(&parsed, now);
        let (result, copy) = match &self.cluster {
            Some(cluster) => cluster.count_in_copy(&parsed.session, record),
            None => (record(), 0),
        };
        match result {
            Ok(recorded) => {
                let verdict = recorded.as_ref().and_then(|r| r.verdict.as_deref());
                pushes.track_response(&parsed.session, is_tracked, verdict);
                let recorded = recorded?;
                let action = recorded.action();
                let shared = self.save_whole(&parsed.session, (&recorded, copy));
                let (verdict, unsettled) = self.present_unsettled_verdict(&recorded);
                let response = pb::StreamDeltasResponse {
                    standing: recorded.standing.as_ref().map(present::standing_to_pb),
                    state_lost: recorded.state_lost,
                    action: present::action_to_pb(action).into(),
                    verdict,
                    ..present::build_delta_response(delta.session_id, parsed)
                };
                Some(Answer {
                    response,
                    unsettled,
                    shared,
                })
            }
            Err(refused) => {
                let response = pb::StreamDeltasResponse {
                    error: Some(refused.into()),
                    ..present::build_delta_response(delta.session_id, parsed)
                };
                Some(response.into())
            }
        }
    }

    /// The response to an invalid delta. Only ids that are valid are sent back.
    fn reject_delta(
        &self,
        delta: pb::Delta,
        invalid: InvalidArgument,
        pushes: &TerminationPushes,
    ) -> pb::StreamDeltasResponse {
        let error = Some(self.count_rejected(invalid).into());
        if pushes.resolve_session(&delta.session_id).is_err() {
            return pb::StreamDeltasResponse {
                error,
                ..pb::StreamDeltasResponse::default()
            };
        }
        let [agent_id, turn_id] = convert::valid_delta_ids(delta.agent_id, delta.turn_id);
        pb::StreamDeltasResponse {
            session_id: delta.session_id,
            agent_id,
            turn_id,
            end_of_turn: delta.end_of_turn,
            error,
            ..pb::StreamDeltasResponse::default()
        }
    }
}
