//! The variables of expressions: an event's fields as CEL values.

use std::sync::Arc;

use cel::{
    common::{
        types::{
            CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
        },
        value::{CowVal, Val},
    },
    context::VariableResolver,
};
use serde_json::Value as Json;

use super::{Rules, types::Type};
use crate::{
    domain::{
        AgentId, Args, CallKind, Cost, Event, EventBody, MarkerKind, Operation, Outcome, Role,
        Totals, sanitize,
    },
    facts::EventFacts,
};

/// The variables of one event. Fields that an event of its kind does not have are
/// empty or 0.
pub(super) struct EventScope<'a> {
    kind: &'static str,
    agent_id: &'a str,
    round_id: &'a str,
    state_hash: &'a str,
    cost: Cost,
    tool: &'a str,
    operation: &'static str,
    target: Arc<str>,
    args_json: &'a str,
    /// `None`: unknown, not an object, or too large.
    args: Option<CelMap<'a>>,
    /// The values in `args`.
    pub args_values: usize,
    outcome: &'static str,
    error: &'a str,
    result: &'a str,
    content_hash: &'a str,
    call_kind: &'static str,
    role: &'static str,
    text: &'a str,
    marker: &'static str,
    context_tokens: i32,
    pub session: Totals,
}

/// Bytes of a result, an error, a target or the text of arguments. What rules search
/// for is usually at the beginning, and searching this much takes a microsecond.
pub(super) const TEXT_BYTES_MAX: usize = 4_096;
/// Longer arguments are not parsed: they contain a file or a patch.
const ARGS_BYTES_MAX: usize = 16_384;
/// Most values in the arguments. It bounds expressions that walk over them.
pub(super) const ARGS_VALUES_MAX: usize = 256;

/// Every variable and its type.
pub(super) const VARIABLES: &[(&str, Type)] = &[
    ("kind", Type::Text),
    ("agent_id", Type::Text),
    ("round_id", Type::Text),
    ("state_hash", Type::Text),
    ("input_tokens", Type::Int),
    ("output_tokens", Type::Int),
    ("cost_usd", Type::Double),
    ("tool", Type::Text),
    ("operation", Type::Text),
    ("target", Type::Text),
    ("args_json", Type::Text),
    ("args", Type::Map),
    ("outcome", Type::Text),
    ("error", Type::Text),
    ("result", Type::Text),
    ("content_hash", Type::Text),
    ("call_kind", Type::Text),
    ("role", Type::Text),
    ("text", Type::Text),
    ("marker", Type::Text),
    ("context_tokens", Type::Int),
    ("session.events", Type::Int),
    ("session.turns", Type::Int),
    ("session.tokens", Type::Int),
    ("session.cost_usd", Type::Double),
    ("session.seconds", Type::Int),
];

impl<'a> EventScope<'a> {
    /// `None` if the event concerns no rule.
    pub fn from_event(event: &'a Event, facts: &EventFacts, wants_args: bool) -> Option<Self> {
        let scope = Self {
            agent_id: event.agent.as_str(),
            round_id: &event.round_id,
            state_hash: &event.state_hash,
            cost: event.cost,
            ..Self::default()
        };
        Some(match (&event.body, facts) {
            (EventBody::Call(call), EventFacts::Call(extract)) => {
                let (args, args_values) = parse_args(&call.args, wants_args);
                Self {
                    kind: "tool_call",
                    tool: &call.tool,
                    operation: operation_name(extract.facts.operation),
                    target: truncate_target(&extract.target),
                    args_json: args_json(&call.args),
                    args,
                    args_values,
                    outcome: extract.facts.outcome.map_or("", outcome_name),
                    error: sanitize::prefix(&call.error, TEXT_BYTES_MAX),
                    result: sanitize::prefix(
                        call.result.as_deref().unwrap_or_default(),
                        TEXT_BYTES_MAX,
                    ),
                    content_hash: &call.content_hash,
                    call_kind: call_kind_name(extract.facts.kind),
                    ..scope
                }
            }
            (EventBody::Call(_), _) => return None,
            (EventBody::Turn(turn), _) => Self {
                kind: "turn",
                role: role_name(turn.role),
                text: sanitize::prefix(&turn.text, Rules::TURN_BYTES_MAX),
                ..scope
            },
            (EventBody::Marker(marker), _) => Self {
                kind: "marker",
                marker: marker_kind_name(marker.kind),
                context_tokens: marker.context_tokens,
                ..scope
            },
        })
    }

    pub fn from_turn(agent: &'a AgentId, text: &'a str) -> Self {
        Self {
            kind: "turn",
            agent_id: agent.as_str(),
            role: role_name(Role::Agent),
            text: sanitize::prefix(text, Rules::TURN_BYTES_MAX),
            ..Self::default()
        }
    }
}

impl Default for EventScope<'_> {
    fn default() -> Self {
        Self {
            kind: "",
            agent_id: "",
            round_id: "",
            state_hash: "",
            cost: Cost::default(),
            tool: "",
            operation: "",
            target: Arc::default(),
            args_json: "",
            args: Some(CelMap::default()),
            args_values: 0,
            outcome: "",
            error: "",
            result: "",
            content_hash: "",
            call_kind: "",
            role: "",
            text: "",
            marker: "",
            context_tokens: 0,
            session: Totals::default(),
        }
    }
}

impl VariableResolver for EventScope<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let text = |text: &'b str| CowVal::owned(CelString::from(text));
        let int = |number: i64| CowVal::owned(CelInt::from(number));
        let double = |number: f64| CowVal::owned(CelDouble::from(number));
        Some(match variable {
            "kind" => text(self.kind),
            "agent_id" => text(self.agent_id),
            "round_id" => text(self.round_id),
            "state_hash" => text(self.state_hash),
            "input_tokens" => int(self.cost.input_tokens),
            "output_tokens" => int(self.cost.output_tokens),
            "cost_usd" => double(self.cost.usd),
            "tool" => text(self.tool),
            "operation" => text(self.operation),
            "target" => text(&self.target),
            "args_json" => text(self.args_json),
            "args" => CowVal::Borrowed(self.args.as_ref()?),
            "outcome" => text(self.outcome),
            "error" => text(self.error),
            "result" => text(self.result),
            "content_hash" => text(self.content_hash),
            "call_kind" => text(self.call_kind),
            "role" => text(self.role),
            "text" => text(self.text),
            "marker" => text(self.marker),
            "context_tokens" => int(self.context_tokens.into()),
            "session.events" => int(self.session.events),
            "session.turns" => int(self.session.turns),
            "session.tokens" => int(self.session.tokens),
            "session.cost_usd" => double(self.session.usd),
            "session.seconds" => int(self.session.secs.try_into().unwrap_or(i64::MAX)),
            _ => return None,
        })
    }
}

fn truncate_target(target: &Arc<str>) -> Arc<str> {
    match sanitize::prefix(target, TEXT_BYTES_MAX) {
        whole if whole.len() == target.len() => target.clone(),
        beginning => beginning.into(),
    }
}

fn args_json(args: &Args) -> &str {
    match args {
        Args::Text(json) => sanitize::prefix(json, TEXT_BYTES_MAX),
        Args::Hash(_) | Args::Unknown => "",
    }
}

/// The arguments, if they are an object and a rule reads them, and the number of values
/// in them.
fn parse_args<'a>(args: &Args, wanted: bool) -> (Option<CelMap<'a>>, usize) {
    match args {
        Args::Text(json) if wanted && json.len() <= ARGS_BYTES_MAX => {
            let mut remaining = ARGS_VALUES_MAX;
            let map = match serde_json::from_str(json) {
                Ok(Json::Object(object)) => to_cel_map(object, &mut remaining),
                _ => None,
            };
            (map, ARGS_VALUES_MAX - remaining)
        }
        Args::Text(_) | Args::Hash(_) | Args::Unknown => (None, 0),
    }
}

/// `None`: there are more values than `remaining`.
fn to_cel_value<'a>(json: Json, remaining: &mut usize) -> Option<Box<dyn Val + 'a>> {
    *remaining = remaining.checked_sub(1)?;
    Some(match json {
        Json::Null => Box::new(CelNull),
        Json::Bool(truth) => Box::new(CelBool::from(truth)),
        Json::String(text) => Box::new(CelString::from(text)),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Box::new(CelInt::from(number)),
            (None, Some(number)) => Box::new(CelUInt::from(number)),
            (None, None) => Box::new(CelDouble::from(number.as_f64()?)),
        },
        Json::Array(items) => {
            let items: Option<Vec<_>> = items
                .into_iter()
                .map(|item| to_cel_value(item, remaining))
                .collect();
            Box::new(CelList::from(items?))
        }
        Json::Object(object) => Box::new(to_cel_map(object, remaining)?),
    })
}

fn to_cel_map<'a>(
    object: serde_json::Map<String, Json>,
    remaining: &mut usize,
) -> Option<CelMap<'a>> {
    let entries = object.into_iter();
    let entries: Option<std::collections::HashMap<CelMapKey<'a>, Box<dyn Val + 'a>>> = entries
        .map(|(key, item)| Some((CelMapKey::from(key), to_cel_value(item, remaining)?)))
        .collect();
    Some(CelMap::from(entries?))
}

fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Edit => "edit",
        Operation::Execute => "execute",
        Operation::Search => "search",
        Operation::Other => "other",
    }
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Error => "error",
        Outcome::Blocked => "blocked",
    }
}

fn call_kind_name(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Ordinary => "ordinary",
        CallKind::Poll => "poll",
        CallKind::Outage => "outage",
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Agent => "agent",
        Role::User => "user",
        Role::System => "system",
    }
}

fn marker_kind_name(kind: MarkerKind) -> &'static str {
    match kind {
        MarkerKind::Compaction => "compaction",
        MarkerKind::NewRun => "new_run",
    }
}
