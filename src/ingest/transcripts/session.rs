//! Builds the items of a session from what a reader finds in its lines.
//!
//! A response of the model may be spread over lines, and the results of its calls come in
//! any order. So a response is kept until the next one of the same agent begins: then its
//! text and its finished calls become events, in the order in which the model made them.

use std::{
    collections::VecDeque,
    fmt::Display,
    mem::take,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::Value;

use super::{
    ModelUsage, ReadProblem, SessionEnd, SessionStart, Sink, Transcript, TranscriptEvent,
    TranscriptFormat, TranscriptItem, files, reopen_command,
    response::{CallResult, Response},
    usage::count_usage,
};
use crate::{
    domain::{
        AgentId, Args, Cost, Event, EventBody, Marker, MarkerKind, Role, SessionId, ToolCall, Turn,
        sanitize,
    },
    ingest::{input, payload},
};

/// A prompt is shown in a column of a table and in a title.
const FIRST_PROMPT_CHARS_MAX: usize = 200;
/// The most responses without an event. They are kept apart because the price of a response
/// depends on its length.
const OTHER_RESPONSES_MAX: usize = 1_000;
/// The most bytes of a directory or a version that are kept.
const DESCRIPTION_BYTES_MAX: usize = 4096;

/// Builds the items of one session.
pub(super) struct SessionWriter<'a> {
    format: &'static TranscriptFormat,
    sink: &'a mut Sink<'a>,
    /// The file and the line that are being read.
    path: PathBuf,
    pub line: u64,
    start: SessionStart,
    /// `None`: no event yet.
    session: Option<SessionId>,
    /// The responses that may still get results, one for each agent.
    responses: Vec<Response>,
    /// Usage that is not part of an event yet.
    unassigned: Vec<ModelUsage>,
    /// Events of other files of the session, which are put in by their times.
    merged: VecDeque<TranscriptEvent>,
    /// Events go to `merged`, not to the sink.
    is_merging: bool,
    clock: Option<SystemTime>,
    end: SessionEnd,
}

/// Reads the sessions of a format that has one JSON document for each.
pub(super) fn read_documents(
    format: &'static TranscriptFormat,
    transcript: &Transcript,
    sink: &mut Sink,
    read: impl Fn(&mut SessionWriter, &Path, &Value),
) {
    for path in &transcript.paths {
        let mut writer = SessionWriter::new(format, path, sink);
        if let Some(document) = writer.document(path) {
            read(&mut writer, path, &document);
        }
        writer.finish();
    }
}

impl<'a> SessionWriter<'a> {
    pub fn new(format: &'static TranscriptFormat, path: &Path, sink: &'a mut Sink<'a>) -> Self {
        Self {
            format,
            sink,
            path: path.to_owned(),
            line: 0,
            start: SessionStart {
                agent: format.name,
                path: path.to_owned(),
                ..SessionStart::default()
            },
            session: None,
            responses: Vec::new(),
            unassigned: Vec::new(),
            merged: VecDeque::new(),
            is_merging: false,
            clock: None,
            end: SessionEnd::default(),
        }
    }

    /// Sets the fields of the session that are not set yet.
    pub fn describe(&mut self, id: &str, cwd: &str, version: &str) {
        let fill = |field: &mut String, value: &str| {
            if field.is_empty() && !value.is_empty() {
                let visible = sanitize::strip_invisible(value);
                *field = sanitize::prefix(&visible, DESCRIPTION_BYTES_MAX).to_owned();
            }
        };
        fill(&mut self.start.session_id, id);
        fill(&mut self.start.cwd, cwd);
        fill(&mut self.start.version, version);
    }

    /// The agent's response with this id; another open response of the agent ends. Empty: the
    /// open one.
    pub fn response(&mut self, agent: &AgentId, id: &str) -> &mut Response {
        let is_other = |open: &Response| open.agent == *agent && open.id != id;
        if !id.is_empty() && self.responses.iter().any(is_other) {
            self.end_response(agent);
        }
        let at = self.position(agent).unwrap_or_else(|| {
            self.responses.push(Response {
                agent: agent.clone(),
                id: id.to_owned(),
                ..Response::default()
            });
            self.responses.len() - 1
        });
        &mut self.responses[at]
    }

    fn position(&self, agent: &AgentId) -> Option<usize> {
        let mut responses = self.responses.iter();
        responses.position(|response| response.agent == *agent)
    }

    /// The tool of a call that has not finished.
    pub fn open_tool(&self, call_id: &str) -> Option<&str> {
        let calls = self.responses.iter().flat_map(|response| &response.calls);
        let mut open = calls.filter(|open| open.id == call_id && open.result.is_none());
        open.next().map(|open| open.call.tool.as_str())
    }

    /// The arguments of a call that has not finished.
    pub fn open_args(&self, call_id: &str) -> Option<&Args> {
        let calls = self.responses.iter().flat_map(|response| &response.calls);
        let mut open = calls.filter(|open| open.id == call_id && open.result.is_none());
        open.next().map(|open| &open.call.args)
    }

    /// The result of a call. One that belongs to no open call is a repetition.
    pub fn result(&mut self, call_id: &str, time: Option<SystemTime>, result: CallResult) {
        let responses = self.responses.iter_mut();
        let calls = responses.flat_map(|response| &mut response.calls);
        let mut open = calls.filter(|open| open.id == call_id && open.result.is_none());
        let Some(open) = open.next() else {
            return;
        };
        let mut finished = input::finished_call("", None, result.text, result.outcome);
        if finished.outcome.is_none() {
            input::set_outcome(&mut finished, open.call.outcome);
        }
        open.call.outcome = finished.outcome;
        open.call.error = finished.error;
        open.call.result = finished.result;
        open.call.content_hash = result.content_hash;
        open.result = Some(time);
    }

    /// Sets the exit code of a command, which may come before or after its result.
    pub fn set_exit_code(&mut self, call_id: &str, code: i32) {
        let responses = self.responses.iter_mut();
        let calls = responses.flat_map(|response| &mut response.calls);
        for open in calls.filter(|open| open.id == call_id) {
            input::set_outcome(&mut open.call, Some(input::outcome_of_exit_code(code)));
        }
    }

    /// Adds the usage of a response without an event of its own to the next event.
    pub fn add_usage(&mut self, usage: ModelUsage) {
        self.unassigned.push(usage);
    }

    /// Counts usage that belongs to no event of the session.
    pub fn count_usage(&mut self, usage: ModelUsage) {
        let usage = usage.bounded();
        count_usage(&mut self.end.usage, usage.clone());
        if usage.is_empty() {
            return;
        }
        let others = &mut self.end.other_responses;
        let is_full = others.len() >= OTHER_RESPONSES_MAX;
        match others.last_mut().filter(|_| is_full) {
            Some(last) => last.add(&usage),
            None => others.push(usage),
        }
    }

    /// Sets the cost that the agent recorded. The highest counts.
    pub fn set_recorded_cost(&mut self, usd: f64) {
        if usd.is_finite() && (0.0..=super::COST_USD_MAX).contains(&usd) {
            let known = self.end.recorded_cost_usd.unwrap_or_default();
            self.end.recorded_cost_usd = Some(known.max(usd));
        }
    }

    /// A message in the user's place. What a harness wrote there is no turn of the user.
    pub fn prompt(&mut self, text: &str, time: Option<SystemTime>) {
        let Some(role) = input::prompt_role(text) else {
            return;
        };
        if role == Role::User && self.end.first_prompt.is_empty() {
            self.end.first_prompt = sanitize::quote(text.trim(), FIRST_PROMPT_CHARS_MAX);
        }
        self.turn(&AgentId::default(), role, text, time);
    }

    pub fn turn(&mut self, agent: &AgentId, role: Role, text: &str, time: Option<SystemTime>) {
        self.end_response(agent);
        let turn = Turn {
            turn_id: String::new(),
            role,
            text: text.to_owned(),
        };
        self.emit(agent, time, "", "", EventBody::Turn(turn));
    }

    pub fn compaction(&mut self, agent: &AgentId, context_tokens: i64, time: Option<SystemTime>) {
        self.end_response(agent);
        self.end.compactions += 1;
        let marker = Marker {
            kind: MarkerKind::Compaction,
            context_tokens: i32::try_from(context_tokens.max(0)).unwrap_or(i32::MAX),
        };
        self.emit(agent, time, "", "", EventBody::Marker(marker));
    }

    /// A call that is complete in one place of the transcript.
    pub fn call(&mut self, agent: &AgentId, id: &str, time: Option<SystemTime>, call: ToolCall) {
        self.end_response(agent);
        self.emit(agent, time, id, "", EventBody::Call(call));
    }

    /// The agent's response is over: its text and its finished calls become events. A call
    /// without a result has not finished, so it is none.
    pub fn end_response(&mut self, agent: &AgentId) {
        let Some(at) = self.position(agent) else {
            return;
        };
        let response = self.responses.swap_remove(at);
        self.unassigned.extend(response.usage);
        let finished = response
            .calls
            .into_iter()
            .filter(|open| open.result.is_some());
        let calls: Vec<_> = finished.collect();
        let usage = if calls.is_empty() {
            Vec::new()
        } else {
            take(&mut self.unassigned)
        };
        if !response.text.is_empty() {
            let turn = Turn {
                turn_id: String::new(),
                role: Role::Agent,
                text: response.text,
            };
            let time = response.text_time;
            self.emit(agent, time, "", "", EventBody::Turn(turn));
        }
        // The calls cost what the response did: they are what a loop repeats.
        self.unassigned.extend(usage);
        let round_id = calls
            .first()
            .map(|open| open.id.clone())
            .unwrap_or_default();
        for open in calls {
            let time = open.result.flatten();
            self.emit(agent, time, &open.id, &round_id, EventBody::Call(open.call));
        }
    }

    /// A document of the session; one that cannot be read is reported.
    pub fn document(&mut self, path: &Path) -> Option<Value> {
        self.path = path.to_owned();
        self.line = 0;
        let document = files::read_document(path);
        document.map_err(|what| self.problem(what)).ok()
    }

    /// Events are kept back, to be put between those that follow `end_merge`.
    pub fn begin_merge(&mut self) {
        self.is_merging = true;
    }

    pub fn end_merge(&mut self) {
        self.end_all_responses();
        self.is_merging = false;
        // Stable: the order of events with the same time stays.
        let events = self.merged.make_contiguous();
        events.sort_by_key(|merged| merged.event.time);
    }

    /// Reads a file of the session. A line that cannot be read is reported and skipped.
    pub fn each_line(
        &mut self,
        path: &Path,
        mut read_line: impl FnMut(&mut Self, &str) -> Result<(), serde_json::Error>,
    ) {
        self.end_all_responses();
        self.path = path.to_owned();
        self.line = 0;
        self.clock = None;
        let mut lines = match files::open_lines(path) {
            Ok(Some(lines)) => lines,
            Ok(None) => return self.problem(files::EMPTY),
            Err(error) => return self.problem(format_args!("cannot be read: {error}")),
        };
        loop {
            let (number, line) = match lines.next_line() {
                Ok(Some(numbered)) => numbered,
                Ok(None) => break,
                Err(error) => break self.problem(format_args!("cannot be read: {error}")),
            };
            self.line = number;
            let text = line.map_err(|error| error.to_string()).and_then(|bytes| {
                str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))
            });
            // serde accepts a list for a struct, by position.
            let parsed = text.and_then(|text| {
                if !text.starts_with('{') {
                    return Err("not a JSON object".to_owned());
                }
                read_line(self, text).map_err(|why| files::describe_json_error(&why))
            });
            if let Err(what) = parsed {
                self.problem(what);
            }
        }
        self.line = 0;
    }

    pub fn problem(&mut self, what: impl Display) {
        (self.sink)(TranscriptItem::Problem(ReadProblem {
            path: self.path.clone(),
            line: self.line,
            what: what.to_string(),
        }));
    }

    /// The session is over. Without an event there was none.
    pub fn finish(mut self) {
        self.end_all_responses();
        while let Some(event) = self.merged.pop_front() {
            self.send(event);
        }
        for usage in take(&mut self.unassigned) {
            self.count_usage(usage);
        }
        if self.end.events > 0 {
            (self.sink)(TranscriptItem::End(self.end));
        }
    }

    fn end_all_responses(&mut self) {
        while let Some(agent) = self.responses.first().map(|open| open.agent.clone()) {
            self.end_response(&agent);
        }
    }

    fn emit(
        &mut self,
        agent: &AgentId,
        time: Option<SystemTime>,
        event_id: &str,
        round_id: &str,
        body: EventBody,
    ) {
        let Some(session) = self.session_id() else {
            return;
        };
        self.clock = time.or(self.clock);
        // Assign the usage of the model since the last event.
        let usage: Vec<_> = take(&mut self.unassigned)
            .into_iter()
            .map(ModelUsage::bounded)
            .filter(|usage| !usage.is_empty())
            .collect();
        let mut cost = Cost::default();
        for response in &usage {
            cost += response.cost();
        }
        let event = TranscriptEvent {
            event: Event {
                session,
                event_id: input::bounded_id(event_id),
                time: self.clock,
                agent: agent.clone(),
                round_id: input::bounded_id(round_id),
                state_hash: String::new(),
                cost,
                body,
            },
            usage,
        };
        if self.is_merging {
            self.merged.push_back(event);
            return;
        }
        // Events of other files come first if they are older.
        while let Some(merged) = self.merged.front()
            && merged.event.time <= event.event.time
        {
            if let Some(earlier) = self.merged.pop_front() {
                self.send(earlier);
            }
        }
        self.send(event);
    }

    fn send(&mut self, event: TranscriptEvent) {
        if self.end.events == 0 {
            self.start.project = payload::last_part(&self.start.cwd).to_owned();
            self.start.reopen = reopen_command(self.format, &self.start.session_id);
            (self.sink)(TranscriptItem::Start(self.start.clone()));
        }
        self.end.events += 1;
        if matches!(event.event.body, EventBody::Call(_)) {
            self.end.calls += 1;
        }
        let time = event.event.time;
        self.end.first_event = self.end.first_event.or(time);
        self.end.last_event = self.end.last_event.max(time);
        for usage in &event.usage {
            count_usage(&mut self.end.usage, usage.clone());
        }
        (self.sink)(TranscriptItem::Event(event));
    }

    /// The session's id: as the agent gives it, or of the file if that is none.
    fn session_id(&mut self) -> Option<SessionId> {
        if self.session.is_none() {
            let named = SessionId::parse(&self.start.session_id);
            let of_file = || input::content_hash(&self.start.path.to_string_lossy());
            let session = named.or_else(|_| SessionId::parse(&of_file())).ok()?;
            self.start.session_id = session.as_str().to_owned();
            self.session = Some(session);
        }
        self.session.clone()
    }
}
