//! A hook's payload: reads the fields that the agent's table names.

use serde_json::Value;
use thiserror::Error;

use super::{AgentSpec, FieldTable, HookEvent, input};
use crate::domain::{AgentId, Cost, IdError, Labels, SessionId, Tenant, sanitize};

/// The query of the request, for what the payload does not contain.
#[derive(Clone, Debug, Default)]
pub struct HookQuery {
    /// Empty: it is in the payload.
    pub event: String,
    /// Empty: it is in the payload.
    pub session: String,
    pub labels: Labels,
}

/// Why a payload cannot be used. The agent continues without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PayloadError {
    #[error("the event is not known")]
    UnknownEvent,
    #[error("the session's id {0}")]
    Session(IdError),
}

/// A payload of a known event of a session.
#[derive(Clone, Debug)]
pub struct HookPayload<'a> {
    pub agent: &'static AgentSpec,
    pub event: &'static HookEvent,
    pub session: SessionId,
    pub sub_agent: AgentId,
    /// The beginning of texts that the service sends to agents.
    pub prefix: &'a str,
    body: &'a Value,
}

impl<'a> HookPayload<'a> {
    pub fn new(
        agent: &'static AgentSpec,
        tenant: &Tenant,
        query: &HookQuery,
        prefix: &'a str,
        body: &'a Value,
    ) -> Result<Self, PayloadError> {
        let FieldTable {
            event,
            session,
            sub_agent,
            parent_agent,
            ..
        } = agent.fields;
        let named = text_at(body, event);
        let name = if named.is_empty() {
            &query.event
        } else {
            named
        };
        let event = agent.event(name).ok_or(PayloadError::UnknownEvent)?;
        let ids = session.iter().map(|path| text_at(body, path));
        let id = ids
            .chain([query.session.as_str()])
            .find(|id| !id.is_empty());
        let id = id.unwrap_or_default();
        let session = SessionId::parse_for_tenant(tenant, id);
        // The main agent may have an id, or act in the session itself.
        let sub_agent = text_at(body, sub_agent);
        let is_main =
            sub_agent == id || !parent_agent.is_empty() && value_at(body, parent_agent).is_none();
        Ok(Self {
            agent,
            event,
            session: session.map_err(PayloadError::Session)?,
            sub_agent: AgentId::new(&input::bounded_id(if is_main { "" } else { sub_agent })),
            prefix,
            body,
        })
    }

    /// The text at a JSON pointer; empty if there is none.
    pub fn text(&self, path: &str) -> &'a str {
        text_at(self.body, path)
    }

    pub fn value(&self, path: &str) -> Option<&'a Value> {
        value_at(self.body, path)
    }

    /// `None`: absent, or not a boolean.
    pub fn flag(&self, path: &str) -> Option<bool> {
        self.value(path)?.as_bool()
    }

    /// The exit code that `unstuck hook` found on its machine.
    pub fn local_exit_code(&self) -> Option<i32> {
        let code = self.value("/unstuck/exit_code")?.as_i64()?;
        i32::try_from(code).ok()
    }

    /// The token usage that `unstuck hook` found on its machine.
    pub fn local_cost(&self) -> Cost {
        let tokens = |name: &str| input::token_count(self.value(&format!("/unstuck/usage/{name}")));
        Cost {
            input_tokens: tokens("input_tokens"),
            output_tokens: tokens("output_tokens"),
            cached_input_tokens: tokens("cached_input_tokens"),
            usd: 0.0,
        }
    }

    /// The working directory.
    pub fn directory(&self) -> &'a str {
        self.text(self.agent.fields.directory)
    }

    /// The id of the user's prompt that the agent works on.
    pub fn prompt_id(&self) -> String {
        input::bounded_id(self.text(self.agent.fields.prompt_id))
    }

    /// The labels of the session: agent, project, model, host.
    pub fn labels(&self) -> Labels {
        let local_model = self.text("/unstuck/usage/model");
        let model = match self.text(self.agent.fields.model) {
            "" => local_model,
            model => model,
        };
        let found = [
            ("agent", self.agent.name),
            ("source", "hook"),
            ("project", last_part(self.directory())),
            ("model", model),
            ("host", self.text("/unstuck/host")),
        ];
        let found = found.into_iter().filter(|(_, value)| !value.is_empty());
        found
            .map(|(key, value)| (key.to_owned(), label_value(value)))
            .collect()
    }
}

/// The most bytes of a label's value. The rest is cut off.
const LABEL_BYTES_MAX: usize = 128;

fn label_value(value: &str) -> String {
    sanitize::prefix(&sanitize::strip_invisible(value), LABEL_BYTES_MAX).to_owned()
}

/// The last part of a path, of whatever system.
pub(super) fn last_part(path: &str) -> &str {
    let trimmed = path.trim_end_matches(['/', '\\']);
    trimmed.rsplit(['/', '\\']).next().unwrap_or_default()
}

pub(super) fn value_at<'a>(body: &'a Value, path: &str) -> Option<&'a Value> {
    if path.is_empty() {
        return None;
    }
    body.pointer(path).filter(|value| !value.is_null())
}

pub(super) fn text_at<'a>(body: &'a Value, path: &str) -> &'a str {
    let value = value_at(body, path);
    value.and_then(Value::as_str).unwrap_or_default()
}
