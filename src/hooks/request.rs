//! What is recorded and remembered of one payload. It is bounded, and the payload itself is
//! released before the events are recorded.

use std::mem;

use serde_json::Value;

use crate::{
    api::{LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX},
    domain::{AgentId, Args, Cost, EventBody, Labels, SessionId, ToolCall, sanitize},
    ingest::{AgentSpec, HookEvent, HookPayload, HookQuery, Input},
};

/// The longest text of an event. One has two long texts at most, so it is no larger than a
/// gRPC message may be by default.
const TEXT_BYTES_MAX: usize = 512 * 1024;
/// The end of a text that is kept when its middle is cut out: reports say last what failed.
const TEXT_END_BYTES: usize = 4 * 1024;
/// The longest path of a directory that is used.
const DIRECTORY_BYTES_MAX: usize = 4 * 1024;

/// A payload that has been read.
pub(super) struct HookRequest {
    pub agent: &'static AgentSpec,
    pub event: &'static HookEvent,
    pub session: SessionId,
    pub sub_agent: AgentId,
    /// Those of the query override those of the payload. At most as many as a session may
    /// have.
    pub labels: Labels,
    /// A label of the query is invalid, or one too many.
    pub has_refused_labels: bool,
    /// The tokens that `unstuck hook` found.
    pub cost: Cost,
    pub inputs: Vec<Input>,
    pub directory: String,
    pub prompt_id: String,
    /// Whether the agent may be asked to continue: it does not continue already for that
    /// reason.
    pub is_first_stop: bool,
}

impl HookRequest {
    pub fn new(payload: &HookPayload, query: &HookQuery) -> Self {
        let mut labels = payload.labels();
        let has_refused_labels = !add_labels(&mut labels, &query.labels);
        let mut inputs = (payload.agent.inputs)(payload);
        inputs.iter_mut().for_each(shorten_texts);
        Self {
            agent: payload.agent,
            event: payload.event,
            session: payload.session.clone(),
            sub_agent: payload.sub_agent.clone(),
            labels,
            has_refused_labels,
            cost: payload.local_cost(),
            inputs,
            directory: sanitize::prefix(payload.directory(), DIRECTORY_BYTES_MAX).to_owned(),
            prompt_id: payload.prompt_id(),
            is_first_stop: payload.value("/stop_hook_active") == Some(&Value::Bool(false)),
        }
    }
}

/// Adds valid labels until there are as many as a session may have. `false`: not all.
fn add_labels(labels: &mut Labels, added: &Labels) -> bool {
    let mut is_complete = true;
    for (key, value) in added {
        let is_valid = (1..=LABEL_KEY_BYTES_MAX).contains(&key.len())
            && value.len() <= LABEL_VALUE_BYTES_MAX
            && (labels.len() < LABELS_MAX || labels.contains_key(key));
        is_complete &= is_valid;
        if is_valid {
            labels.insert(key.clone(), value.clone());
        }
    }
    is_complete
}

fn shorten_texts(input: &mut Input) {
    match input {
        Input::Event(event) => match &mut event.body {
            EventBody::Call(call) => shorten_call(call),
            EventBody::Turn(turn) => shorten(&mut turn.text),
            EventBody::Marker(_) => {}
        },
        Input::Delta(delta) => shorten(&mut delta.text),
        Input::Ask(asked) => shorten_call(&mut asked.call),
        Input::Outcome { .. } | Input::Cost(_) | Input::End => {}
    }
}

fn shorten_call(call: &mut ToolCall) {
    if let Args::Text(args) = &mut call.args {
        shorten(args);
    }
    shorten(&mut call.error);
    if let Some(result) = &mut call.result {
        shorten(result);
    }
}

/// Replaces the middle of a long text by the hash of the text, so that texts which differ
/// only there stay different.
fn shorten(text: &mut String) {
    if text.len() <= TEXT_BYTES_MAX {
        return;
    }
    let long = mem::take(text);
    let hash = blake3::hash(long.as_bytes()).to_hex();
    let end = sanitize::suffix(&long, TEXT_END_BYTES);
    let start_bytes = TEXT_BYTES_MAX - TEXT_END_BYTES - hash.len() - 2;
    let start = sanitize::prefix(&long, start_bytes);
    *text = format!("{start}\n{hash}\n{end}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(count: usize) -> Labels {
        (0..count)
            .map(|n| (format!("k{n}"), "v".to_owned()))
            .collect()
    }

    #[test]
    fn labels_are_added_until_a_session_may_have_no_more() {
        let mut known = labels(2);
        assert!(add_labels(&mut known, &labels(LABELS_MAX)));
        assert!(!add_labels(&mut known, &labels(LABELS_MAX + 100)));
        assert_eq!(known.len(), LABELS_MAX);
        // One that it has may change.
        let changed = Labels::from([("k1".to_owned(), "changed".to_owned())]);
        assert!(add_labels(&mut known, &changed));
        assert_eq!(known["k1"], "changed");
    }

    #[test]
    fn labels_that_are_too_long_are_not_kept() {
        for (key_bytes, value_bytes, is_valid) in [
            (LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, true),
            (LABEL_KEY_BYTES_MAX + 1, 1, false),
            (1, LABEL_VALUE_BYTES_MAX + 1, false),
            (0, 1, false),
        ] {
            let label = ("k".repeat(key_bytes), "v".repeat(value_bytes));
            let mut known = Labels::default();
            assert_eq!(add_labels(&mut known, &Labels::from([label])), is_valid);
            assert_eq!(known.len(), usize::from(is_valid));
        }
    }

    #[test]
    fn long_texts_are_shortened_and_stay_different() {
        let shortened = |text: String| {
            let mut input = Input::Ask(crate::ingest::AskedCall {
                call_id: String::new(),
                call: ToolCall {
                    args: Args::Text(text.clone()),
                    error: text.clone(),
                    result: Some(text),
                    ..ToolCall::default()
                },
            });
            shorten_texts(&mut input);
            let Input::Ask(asked) = input else {
                unreachable!()
            };
            assert_eq!(asked.call.args.as_text(), asked.call.error);
            assert_eq!(asked.call.result.as_ref(), Some(&asked.call.error));
            asked.call.error
        };
        let short = "é".repeat(TEXT_BYTES_MAX / 2);
        assert_eq!(shortened(short.clone()), short);
        let long = |middle: &str| {
            let part = "é".repeat(TEXT_BYTES_MAX);
            shortened(format!("{part}{middle}{part}the end"))
        };
        let text = long("a");
        assert!(text.len() <= TEXT_BYTES_MAX && text.len() > TEXT_BYTES_MAX - 8);
        assert!(text.starts_with("éé") && text.ends_with("éthe end"));
        assert_eq!(text, long("a"));
        assert_ne!(text, long("b"));
    }
}
