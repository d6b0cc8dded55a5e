//! Groups the calls of one model response where the client sends no round id.
//!
//! A model needs longer than some tens of milliseconds for a response, so calls whose own
//! times are closer together come from one. Times of arrival prove nothing: a client may
//! send a whole session at once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{
    domain::{Event, EventBody, Sig, ToolCall},
    text::{HashKey, key::SignatureKind},
};

/// Calls at most this far apart belong to one response.
const BATCH_GAP_MAX: Duration = Duration::from_millis(50);

/// The parallel calls of an agent that are being recorded. Not stored with a session: a
/// batch that is interrupted by a restart counts as two.
#[derive(Default)]
pub(super) struct CallBatch {
    /// The time of the latest call, if it had one and nothing else happened since.
    last_call: Option<SystemTime>,
    /// The round of the latest call.
    round: Option<Sig>,
    /// The time of the latest event of any kind.
    last_event: Option<SystemTime>,
    /// Whole seconds have passed between two events, so the clock of the events runs.
    is_clock_running: bool,
}

impl CallBatch {
    /// The round of an event without a round id; `None`: it is a round by itself.
    pub fn round_of(&mut self, event: &Event, index: i32, key: &HashKey) -> Option<Sig> {
        self.observe_clock(event.time);
        let EventBody::Call(call) = &event.body else {
            (self.last_call, self.round) = (None, None);
            return None;
        };
        let joins = self.is_same_batch(event.time) || is_sibling_error(call);
        self.last_call = event.time;
        if !(joins && self.round.is_some()) {
            let starts_batch = joins || event.time.is_some();
            self.round = starts_batch.then(|| batch_signature(index, key));
        }
        self.round
    }

    /// An event with a round id ends the batch.
    pub fn end(&mut self) {
        (self.last_call, self.round) = (None, None);
    }

    fn observe_clock(&mut self, time: Option<SystemTime>) {
        let Some(time) = time else { return };
        let last = self.last_event.replace(time);
        self.is_clock_running |= last.is_some_and(|last| distance(last, time).as_secs() > 0);
    }

    fn is_same_batch(&self, time: Option<SystemTime>) -> bool {
        let (Some(last), Some(time)) = (self.last_call, time) else {
            return false;
        };
        if last == time {
            // Equal whole seconds prove something only if the clock is not a constant.
            return has_fraction(time) || self.is_clock_running;
        }
        distance(last, time) <= BATCH_GAP_MAX
    }
}

/// The signature of a batch by its first event. No round id has it.
fn batch_signature(index: i32, key: &HashKey) -> Sig {
    let index = u64::from(index.unsigned_abs());
    Sig::new(key.hash_pair(SignatureKind::Round, u64::MAX, index))
}

fn distance(a: SystemTime, b: SystemTime) -> Duration {
    b.duration_since(a)
        .or_else(|_| a.duration_since(b))
        .unwrap_or_default()
}

fn has_fraction(time: SystemTime) -> bool {
    distance(UNIX_EPOCH, time).subsec_nanos() != 0
}

/// Whether a call was cancelled because another one of its response failed.
fn is_sibling_error(call: &ToolCall) -> bool {
    const MESSAGE: &str = "ibling tool call errored";
    const ERROR_BYTES_MAX: usize = 256;
    let is_message = |text: &str| text.len() <= ERROR_BYTES_MAX && text.contains(MESSAGE);
    is_message(&call.error) || call.result.as_deref().is_some_and(is_message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Cost, Role, SessionId, Turn};

    fn event(millis: Option<u64>, body: EventBody) -> Event {
        Event {
            session: SessionId::parse("s").unwrap(),
            event_id: String::new(),
            time: millis.map(|millis| UNIX_EPOCH + Duration::from_millis(millis)),
            agent: Default::default(),
            round_id: String::new(),
            state_hash: String::new(),
            cost: Cost::default(),
            body,
        }
    }

    /// The rounds of calls at these times, numbered from 0 in the order they occur; -1
    /// for a call that is a round by itself without an id.
    fn rounds(times: &[Option<u64>]) -> Vec<i32> {
        let calls = times
            .iter()
            .map(|time| event(*time, EventBody::Call(ToolCall::default())));
        rounds_of(calls.collect())
    }

    fn rounds_of(events: Vec<Event>) -> Vec<i32> {
        let (mut batch, key) = (CallBatch::default(), HashKey::fixed());
        let mut known = Vec::new();
        let mut round_numbers = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let Some(round) = batch.round_of(event, index as i32, &key) else {
                round_numbers.push(-1);
                continue;
            };
            if !known.contains(&round) {
                known.push(round);
            }
            let number = known.iter().position(|one| *one == round).unwrap();
            round_numbers.push(number as i32);
        }
        round_numbers
    }

    #[test]
    fn calls_within_milliseconds_are_one_round() {
        let times = [6_000, 6_011, 6_050, 9_000, 9_012].map(Some);
        assert_eq!(rounds(&times), [0, 0, 0, 1, 1]);
        assert_eq!(rounds(&[6_000, 6_080, 6_160].map(Some)), [0, 1, 2]);
    }

    #[test]
    fn calls_without_times_are_rounds_of_their_own() {
        assert_eq!(rounds(&[None; 3]), [-1; 3]);
        assert_eq!(rounds(&[Some(6_010), None, Some(6_020)]), [0, -1, 1]);
    }

    #[test]
    fn equal_seconds_are_one_round_only_if_the_clock_runs() {
        assert_eq!(rounds(&[5_000; 3].map(Some)), [0, 1, 2]);
        assert_eq!(rounds(&[5_000, 9_000, 9_000].map(Some)), [0, 1, 1]);
        assert_eq!(rounds(&[5_003; 3].map(Some)), [0, 0, 0]);
    }

    #[test]
    fn a_turn_ends_a_batch() {
        let call = |millis| event(Some(millis), EventBody::Call(ToolCall::default()));
        let turn = Turn {
            turn_id: String::new(),
            role: Role::Agent,
            text: "next".to_owned(),
        };
        let turn = event(Some(6_010), EventBody::Turn(turn));
        assert_eq!(rounds_of(vec![call(6_000), turn, call(6_020)]), [0, -1, 1]);
    }

    #[test]
    fn calls_that_fell_with_a_sibling_are_one_round() {
        let sibling = || {
            let call = ToolCall {
                error: "<tool_use_error>Sibling tool call errored</tool_use_error>".to_owned(),
                ..ToolCall::default()
            };
            event(None, EventBody::Call(call))
        };
        let first = event(None, EventBody::Call(ToolCall::default()));
        assert_eq!(
            rounds_of(vec![first.clone(), sibling(), sibling(), first]),
            [-1, 0, 0, -1]
        );
    }
}
