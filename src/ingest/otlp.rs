//! Reads traces and logs of agents in OTLP/JSON as records of their sessions.
//!
//! Producers use different attribute names; the lists here are tried in order. A call that
//! is in a log and in a span counts once: if a session has calls in logs, its spans are left
//! out.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::payload::text_at;

/// A record of a session.
#[derive(Clone, Debug)]
pub(super) struct OtlpRecord {
    pub session: String,
    /// Nanoseconds since 1970.
    pub time: u64,
    pub body: OtlpBody,
}

#[derive(Clone, Debug)]
pub(super) enum OtlpBody {
    Call(OtlpCall),
    Prompt(String),
    Usage(OtlpUsage),
}

/// A call that has finished.
#[derive(Clone, Debug, Default)]
pub(super) struct OtlpCall {
    pub id: String,
    pub tool: String,
    /// `None`: the producer does not send them.
    pub args: Option<String>,
    pub result: Option<String>,
    /// `None`: unknown.
    pub has_failed: Option<bool>,
    pub error: String,
}

/// The usage of a request to a model.
#[derive(Clone, Debug, Default)]
pub(super) struct OtlpUsage {
    pub model: String,
    pub input_tokens: i64,
    pub cached_input_tokens: i64,
    pub cache_write_tokens: i64,
    pub output_tokens: i64,
    pub cost_usd: Option<f64>,
}

type Attributes = Map<String, Value>;

const SESSION: &[&str] = &[
    "gen_ai.conversation.id",
    "session.id",
    "conversation.id",
    "langfuse.session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "mcp.session.id",
];
const CALL_ID: &[&str] = &[
    "gen_ai.tool.call.id",
    "gen_ai.tool.call_id",
    "tool_use_id",
    "call_id",
];
const TOOL: &[&str] = &[
    "gen_ai.tool.name",
    "tool.name",
    "tool_name",
    "function_name",
];
const ARGS: &[&str] = &[
    "gen_ai.tool.call.arguments",
    "input.value",
    "tool_input",
    "arguments",
    "function_args",
    "gen_ai.input.messages",
];
const RESULT: &[&str] = &[
    "gen_ai.tool.call.result",
    "output.value",
    "output",
    "gen_ai.output.messages",
];
const ERROR: &[&str] = &["error.message", "error", "error.type"];
const MODEL: &[&str] = &[
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "model",
];
const INPUT_TOKENS: &[&str] = &[
    "gen_ai.usage.input_tokens",
    "llm.token_count.prompt",
    "input_tokens",
];
const OUTPUT_TOKENS: &[&str] = &[
    "gen_ai.usage.output_tokens",
    "llm.token_count.completion",
    "output_tokens",
];
const CACHED_TOKENS: &[&str] = &[
    "gen_ai.usage.cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_read",
];
const COST: &[&str] = &["cost_usd", "llm.cost.total"];

/// Logs of these names are calls.
const CALL_EVENTS: &[&str] = &[
    "tool_result",
    "codex.tool_result",
    "gemini_cli.tool_call",
    "tool_call",
];
/// Logs of these names are messages of the user.
const PROMPT_EVENTS: &[&str] = &["user_prompt", "codex.user_prompt", "gemini_cli.user_prompt"];

/// The records of a document, in the order of their times.
pub(super) fn records_of(document: &Value) -> Vec<OtlpRecord> {
    let mut collector = RecordCollector::default();
    for (resource, scope) in scopes(document, "resourceSpans", "scopeSpans") {
        for span in array(scope, "spans") {
            collector.add_span(&resource, span);
        }
    }
    for (resource, scope) in scopes(document, "resourceLogs", "scopeLogs") {
        for log in array(scope, "logRecords") {
            collector.add_log(&resource, log);
        }
    }
    collector.finish()
}

fn array<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    let list = value.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

fn scopes<'a>(
    document: &'a Value,
    resources: &'static str,
    scopes: &'static str,
) -> impl Iterator<Item = (Attributes, &'a Value)> {
    array(document, resources).iter().flat_map(move |resource| {
        let of_resource = resource.get("resource").map(attributes).unwrap_or_default();
        let found = array(resource, scopes).iter();
        found.map(move |scope| (of_resource.clone(), scope))
    })
}

/// Attributes as plain JSON.
fn attributes(owner: &Value) -> Attributes {
    let list = array(owner, "attributes").iter();
    list.filter_map(|attribute| {
        let key = attribute.get("key")?.as_str()?;
        Some((key.to_owned(), to_plain_json(attribute.get("value")?)))
    })
    .collect()
}

/// `{"stringValue": "x"}` is "x". Numbers of 64 bits are texts.
fn to_plain_json(value: &Value) -> Value {
    let Some((kind, inner)) = value.as_object().and_then(|map| map.iter().next()) else {
        return Value::Null;
    };
    match (&**kind, inner) {
        ("intValue", Value::String(text)) => text.parse::<i64>().map_or(Value::Null, Value::from),
        ("arrayValue", list) => array(list, "values").iter().map(to_plain_json).collect(),
        ("kvlistValue", _) => Value::Null,
        _ => inner.clone(),
    }
}

fn first<'a>(attributes: &'a Attributes, keys: &[&str]) -> Option<&'a Value> {
    let mut values = keys.iter().filter_map(|key| attributes.get(*key));
    values.find(|value| !value.is_null() && value.as_str() != Some(""))
}

fn first_text(attributes: &Attributes, keys: &[&str]) -> String {
    match first(attributes, keys) {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn first_number(attributes: &Attributes, keys: &[&str]) -> Option<f64> {
    match first(attributes, keys)? {
        Value::String(text) => text.parse().ok(),
        value => value.as_f64(),
    }
}

fn first_count(attributes: &Attributes, keys: &[&str]) -> i64 {
    // Saturates.
    first_number(attributes, keys).unwrap_or_default() as i64
}

fn nanoseconds(owner: &Value, names: &[&str]) -> u64 {
    let mut values = names.iter().filter_map(|name| match owner.get(*name)? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    });
    values.find(|time| *time > 0).unwrap_or_default()
}

/// The records found so far.
#[derive(Default)]
struct RecordCollector {
    records: Vec<(RecordSource, OtlpRecord)>,
    /// The session of a trace, from one of its spans.
    sessions_by_trace: HashMap<String, String>,
}

/// The trace and the kind of a record.
struct RecordSource {
    trace: String,
    is_span: bool,
}

impl RecordCollector {
    fn add_span(&mut self, resource: &Attributes, span: &Value) {
        let own = attributes(span);
        let time = nanoseconds(span, &["endTimeUnixNano", "startTimeUnixNano"]);
        let operation = first_text(&own, &["gen_ai.operation.name"]);
        let kind = first_text(&own, &["openinference.span.kind", "traceloop.span.kind"]);
        let is_call = matches!(&*operation, "execute_tool" | "tool_call")
            || kind.eq_ignore_ascii_case("tool")
            || first_text(&own, &["mcp.method.name"]) == "tools/call";
        let body = if is_call {
            OtlpBody::Call(call_of_span(span, &own))
        } else if first(&own, INPUT_TOKENS).is_some() && !operation.eq("invoke_agent") {
            OtlpBody::Usage(usage_of(&own))
        } else {
            // The span may have the session of its trace.
            self.session_of(resource, span, &own);
            return;
        };
        self.add(resource, span, &own, time, body, true);
    }

    fn add_log(&mut self, resource: &Attributes, log: &Value) {
        let own = attributes(log);
        let time = nanoseconds(log, &["timeUnixNano", "observedTimeUnixNano"]);
        let name = match first_text(&own, &["event.name"]) {
            name if name.is_empty() => text_at(log, "/body/stringValue").to_owned(),
            name => name,
        };
        let name = name.strip_prefix("claude_code.").unwrap_or(&name);
        let body = if CALL_EVENTS.contains(&name) {
            OtlpBody::Call(call_of_log(&own))
        } else if PROMPT_EVENTS.contains(&name) {
            OtlpBody::Prompt(first_text(&own, &["prompt"]))
        } else if name == "api_request" {
            OtlpBody::Usage(usage_of_claude(&own))
        } else {
            return;
        };
        self.add(resource, log, &own, time, body, false);
    }

    fn add(
        &mut self,
        resource: &Attributes,
        owner: &Value,
        own: &Attributes,
        time: u64,
        body: OtlpBody,
        is_span: bool,
    ) {
        let session = self.session_of(resource, owner, own);
        let source = RecordSource {
            trace: text_at(owner, "/traceId").to_owned(),
            is_span,
        };
        let record = OtlpRecord {
            session: session.unwrap_or_default(),
            time,
            body,
        };
        self.records.push((source, record));
    }

    fn session_of(
        &mut self,
        resource: &Attributes,
        owner: &Value,
        own: &Attributes,
    ) -> Option<String> {
        let named = first(own, SESSION).or_else(|| first(resource, SESSION));
        let named = named.and_then(Value::as_str).map(str::to_owned);
        let session = named.or_else(|| {
            let metadata: Value = serde_json::from_str(&first_text(own, &["metadata"])).ok()?;
            let ids = ["/session_id", "/thread_id"].map(|path| text_at(&metadata, path));
            ids.into_iter().find(|id| !id.is_empty()).map(str::to_owned)
        })?;
        let trace = text_at(owner, "/traceId");
        if !trace.is_empty() {
            let known = self.sessions_by_trace.entry(trace.to_owned());
            known.or_insert_with(|| session.clone());
        }
        Some(session)
    }

    fn finish(self) -> Vec<OtlpRecord> {
        let Self {
            mut records,
            sessions_by_trace,
        } = self;
        for (source, record) in &mut records {
            if record.session.is_empty() {
                let of_trace = sessions_by_trace.get(&source.trace).cloned();
                let by_trace = || format!("trace:{}", source.trace);
                record.session = of_trace.unwrap_or_else(by_trace);
            }
        }
        let is_call = |record: &OtlpRecord| matches!(record.body, OtlpBody::Call(_));
        let logged: HashSet<String> = records
            .iter()
            .filter(|(source, record)| !source.is_span && is_call(record))
            .map(|(_, record)| record.session.clone())
            .collect();
        let mut sorted: Vec<_> = records
            .into_iter()
            .filter(|(source, record)| !(source.is_span && logged.contains(&record.session)))
            .map(|(_, record)| record)
            .collect();
        sorted.sort_by_key(|record| record.time);
        sorted
    }
}

fn call_of_span(span: &Value, own: &Attributes) -> OtlpCall {
    let events = array(span, "events");
    let event_text = |name: &str, keys: &[&str]| {
        let event = events.iter().find(|event| text_at(event, "/name") == name);
        event.map_or_else(String::new, |event| first_text(&attributes(event), keys))
    };
    let status = span.pointer("/status/code");
    let has_failed = match status {
        Some(Value::String(code)) => code == "STATUS_CODE_ERROR",
        code => code.and_then(Value::as_i64) == Some(2),
    };
    let mut call = call_of_log(own);
    if call.id.is_empty() {
        call.id = text_at(span, "/spanId").to_owned();
    }
    if call.result.is_none() {
        let output = event_text("tool.output", &["output", "content"]);
        call.result = (!output.is_empty()).then_some(output);
    }
    call.has_failed = Some(has_failed || call.has_failed == Some(true));
    let message = event_text("exception", &["exception.message"]);
    let status_text = text_at(span, "/status/message");
    let status_line = status_text.lines().next().unwrap_or_default();
    let errors = [message, call.error, status_line.to_owned()];
    call.error = errors
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    call
}

fn call_of_log(own: &Attributes) -> OtlpCall {
    let success = first(own, &["success"]).and_then(|success| match success {
        Value::String(text) => text.parse().ok(),
        value => value.as_bool(),
    });
    let args = first(own, ARGS).map(unwrap_args);
    let path = || {
        let path = first(own, &["file_path"])?.as_str()?;
        Some(serde_json::json!({ "file_path": path }).to_string())
    };
    OtlpCall {
        id: first_text(own, CALL_ID),
        tool: first_text(own, TOOL),
        args: args.or_else(path),
        result: first(own, RESULT).map(unwrap_result),
        has_failed: success.map(|success: bool| !success),
        error: first_text(own, ERROR),
    }
}

/// A value that may be JSON in a text.
fn parse_nested(value: &Value) -> Value {
    let text = value
        .as_str()
        .filter(|text| text.trim_start().starts_with('{'));
    let inner = text.and_then(|text| serde_json::from_str(text).ok());
    inner.unwrap_or_else(|| value.clone())
}

fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Arguments without their envelope: `{callId, args}`, `{input_str, inputs, metadata}`.
fn unwrap_args(value: &Value) -> String {
    let value = parse_nested(value);
    let is_envelope = value.get("callId").is_some() || value.get("input_str").is_some();
    let inner = value.get("args").or_else(|| value.get("inputs"));
    match inner.filter(|inner| is_envelope && !inner.is_null()) {
        Some(inner) => to_text(inner),
        None => match value.get("input_str").filter(|_| is_envelope) {
            Some(text) => to_text(text),
            None => to_text(&value),
        },
    }
}

/// The places of a result's text in the envelopes of frameworks.
const RESULT_TEXTS: &[&str] = &[
    "/output/kwargs/content",
    "/data/content",
    "/kwargs/content",
    "/content",
    "/response/resultDisplay",
];

/// Fields of an envelope that differ in every call.
const VOLATILE_FIELDS: &[&str] = &[
    "tool_call_id",
    "callId",
    "request",
    "langgraph_step",
    "durationMs",
];

/// A result without its envelope, which has ids that change with every call.
fn unwrap_result(value: &Value) -> String {
    let value = parse_nested(value);
    let mut texts = RESULT_TEXTS
        .iter()
        .filter_map(|path| value.pointer(path)?.as_str());
    if let Some(text) = texts.next() {
        return text.to_owned();
    }
    let Value::Object(mut fields) = value else {
        return to_text(&value);
    };
    fields.retain(|key, _| !VOLATILE_FIELDS.contains(&&**key));
    Value::Object(fields).to_string()
}

fn usage_of(own: &Attributes) -> OtlpUsage {
    OtlpUsage {
        model: first_text(own, MODEL),
        input_tokens: first_count(own, INPUT_TOKENS),
        cached_input_tokens: first_count(own, CACHED_TOKENS),
        cache_write_tokens: 0,
        output_tokens: first_count(own, OUTPUT_TOKENS),
        cost_usd: first_number(own, COST),
    }
}

/// Claude Code counts tokens of the cache apart from its input tokens.
fn usage_of_claude(own: &Attributes) -> OtlpUsage {
    let usage = usage_of(own);
    let cached = first_count(own, &["cache_read_tokens"]);
    let written = first_count(own, &["cache_creation_tokens"]);
    OtlpUsage {
        input_tokens: usage
            .input_tokens
            .saturating_add(cached)
            .saturating_add(written),
        cached_input_tokens: cached,
        cache_write_tokens: written,
        ..usage
    }
}
