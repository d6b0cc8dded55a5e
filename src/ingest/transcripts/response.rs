//! A response of the model while it is read.

use std::{borrow::Cow, time::SystemTime};

use super::ModelUsage;
use crate::{
    domain::{AgentId, Args, Outcome, ToolCall},
    ingest::input,
};

/// A response of the model.
#[derive(Default)]
pub(super) struct Response {
    pub agent: AgentId,
    pub id: String,
    pub text: String,
    pub text_time: Option<SystemTime>,
    pub calls: Vec<OpenCall>,
    pub usage: Option<ModelUsage>,
}

/// A call whose result may still be missing.
pub(super) struct OpenCall {
    pub id: String,
    pub call: ToolCall,
    /// `None`: it has not finished.
    pub result: Option<Option<SystemTime>>,
}

/// What a call returned.
pub(super) struct CallResult<'a> {
    pub text: Cow<'a, str>,
    /// `None`: by the exit code in the text, or unknown.
    pub outcome: Option<Outcome>,
    /// Empty: unknown.
    pub content_hash: String,
}

impl Response {
    pub fn push_text(&mut self, text: &str, time: Option<SystemTime>) {
        if text.trim().is_empty() {
            return;
        }
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.text_time = time.or(self.text_time);
    }

    pub fn push_call(&mut self, id: &str, tool: &str, args: Args) {
        // Lines are repeated when a session is resumed.
        if !id.is_empty() && self.calls.iter().any(|open| open.id == id) {
            return;
        }
        self.calls.push(OpenCall {
            id: id.to_owned(),
            call: ToolCall {
                args,
                ..input::new_call(tool, None)
            },
            result: None,
        });
    }

    /// The usage is repeated on each line of a response, and grows: the last counts.
    pub fn set_usage(&mut self, usage: ModelUsage) {
        self.usage = Some(usage);
    }

    pub fn has_results(&self) -> bool {
        self.calls.iter().any(|open| open.result.is_some())
    }
}
