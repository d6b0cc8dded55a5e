//! Properties that hold for every input. Each function takes bytes and panics if a
//! property does not hold. `cargo fuzz` generates inputs (`scripts/fuzz`);
//! `tests/it/fuzzed.rs` runs the same functions over `corpus/`, so that they stay
//! up to date.

#[path = "../../tests/setup/mod.rs"]
mod setup;

use std::{
    cell::RefCell,
    fs,
    path::Path,
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use unstuck::{
    cli::TraceLine,
    domain::{Delta, Event, RepetitionSettings, SessionId, Tenant, Verdict, VerdictId},
    engine::{Engine, OperatorRequest, RecordError, RecordOutcome, RunMode},
    ingest::{
        self, HookPayload, HookQuery, Input,
        transcripts::{FORMATS, Transcript, TranscriptItem, detect_format},
    },
    pb,
    store::{AuditSettings, Settings, Store, StoreOptions, verify},
    text::{
        HashKey, RepetitionTracker,
        mask::{self, MaskKind},
    },
};

/// The arrival time of all events.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn engine() -> Engine {
    setup::engine_without_sink(setup::config("").unwrap(), RunMode::Replay)
}

thread_local! {
    /// Creating an engine costs more than most inputs.
    static ENGINE: RefCell<Engine> = RefCell::new(engine());
}

/// Runs on an engine without sessions, and removes all state afterwards.
fn with_engine<T>(with: impl FnOnce(&Engine) -> T) -> T {
    ENGINE.with_borrow(|engine| {
        let answer = with(engine);
        // After eight days all state has expired.
        engine.evict_expired(now() + Duration::from_secs(8 * 24 * 60 * 60), usize::MAX);
        assert_eq!(
            (
                engine.live_sessions(),
                engine.state_bytes() + engine.tombstone_bytes()
            ),
            (0, 0),
            "no session or tombstone is left"
        );
        answer
    })
}

// ---- Messages

/// Bytes from the wire through the conversion into the engine: as events, and as deltas
/// after them. An event that is sent again at once gets the same answer.
pub fn events(wire: &[u8]) {
    let events = pb::StreamEventsRequest::decode(wire).unwrap_or_default();
    let deltas = pb::StreamDeltasRequest::decode(wire).unwrap_or_default();
    with_engine(|engine| {
        for event in events.events.into_iter().take(256) {
            if let Ok(event) = Event::try_from(event) {
                record_twice(engine, &event);
            }
        }
        for delta in deltas.deltas.into_iter().take(256) {
            if let Ok(delta) = Delta::try_from(delta) {
                unless_panicked(engine.record_delta(&delta, now()));
            }
        }
    });
}

fn record_twice(engine: &Engine, event: &Event) {
    let Some(first) = unless_panicked(engine.record(event, now())) else {
        return;
    };
    if event.event_id.is_empty() {
        return;
    }
    let again = engine.record(event, now()).unwrap();
    assert_eq!(id(&again), id(&first));
    match again.index {
        // It terminated its session or agent, or that was terminated before.
        None => assert!(again.verdict.is_some_and(|verdict| verdict.terminates())),
        Some(_) => assert_eq!((again.index, again.duplicate), (first.index, true)),
    }
}

/// Fails on a contained panic of a session, which fuzzing looks for.
fn unless_panicked<T>(answer: Result<T, RecordError>) -> Option<T> {
    match answer {
        Err(RecordError::Quarantined(_)) => panic!("a session has panicked"),
        answer => answer.ok(),
    }
}

fn id(recorded: &RecordOutcome) -> Option<VerdictId> {
    recorded.verdict.as_ref().map(|verdict| verdict.id)
}

// ---- Deltas

/// `n`, then n cut positions, then turns separated by a record separator. The cut
/// positions change neither the verdict on a turn nor whether there is one.
pub fn deltas(input: &[u8]) {
    let Some((count, rest)) = input.split_first() else {
        return;
    };
    let (cuts, text) = rest.split_at(usize::from(count % 32).min(rest.len()));
    let text = String::from_utf8_lossy(text);
    let turns: Vec<&str> = text.split('\u{1e}').take(16).collect();
    let whole = with_engine(|engine| stream_texts(engine, &turns, &[]));
    let pieces = with_engine(|engine| stream_texts(engine, &turns, cuts));
    for (whole, pieces) in whole.iter().zip(&pieces) {
        assert_eq!(
            whole.any, pieces.any,
            "a loop was found in one chunking and not in the other"
        );
        if pieces.early {
            // From here on the two differ, because only one got a verdict.
            return;
        }
        assert_eq!(whole.end, pieces.end);
    }
}

/// The verdict on a turn.
struct StreamResult {
    any: bool,
    /// There was a verdict before its end.
    early: bool,
    end: String,
}

fn stream_texts(engine: &Engine, turns: &[&str], cuts: &[u8]) -> Vec<StreamResult> {
    let say = |(n, text): (usize, &&str)| {
        let position = |cut: &u8| text.floor_char_boundary(usize::from(*cut) * text.len() / 255);
        let mut positions: Vec<usize> = cuts.iter().map(position).chain([0, text.len()]).collect();
        positions.sort_unstable();
        let last = positions.len() - 2;
        let mut result = StreamResult {
            any: false,
            early: false,
            end: String::new(),
        };
        for (k, ends) in positions.windows(2).enumerate() {
            let delta = pb::Delta {
                session_id: "s".to_owned(),
                turn_id: format!("t{n}"),
                text: text[ends[0]..ends[1]].to_owned(),
                end_of_turn: k == last,
                ..pb::Delta::default()
            };
            let recorded = engine
                .record_delta(&Delta::try_from(delta).unwrap(), now())
                .unwrap();
            let verdict = recorded
                .as_ref()
                .and_then(|recorded| recorded.verdict.as_deref());
            result.any |= verdict.is_some();
            if k == last {
                let recorded = recorded.as_ref().expect("the end of a turn is answered");
                result.end = format!("{:?} {:?}", recorded.index, verdict.map(without_id));
            } else {
                result.early |= verdict.is_some();
            }
        }
        result
    };
    turns.iter().enumerate().map(say).collect()
}

/// A verdict without its id.
fn without_id(verdict: &Verdict) -> Verdict {
    Verdict {
        id: VerdictId(0),
        ..verdict.clone()
    }
}

// ---- Work

/// The work on a text is bounded by its bytes, however it is cut. A fuzzer looks for the
/// text with the most work, see [`climb`]. The first byte chooses
/// the settings and the length of a piece, and how often the rest is repeated: a fuzzer
/// mutates short inputs better than long ones.
pub fn work(input: &[u8]) {
    let Some((choice, text)) = input.split_first() else {
        return;
    };
    let settings = RepetitionSettings {
        count: 3,
        chars: 150,
        chunks: vec![50, 80],
        chunk_count: 3,
        chunk_window: if choice & 1 == 0 { 0 } else { 240 },
        chunks_only: false,
    };
    let text = String::from_utf8_lossy(text).repeat(1 + usize::from(choice >> 5));
    let text = &text[..text.floor_char_boundary(16 * 1_024)];
    let piece_bytes = 1 << (choice >> 1 & 15);
    let key = HashKey::fixed();
    let mut tracker = RepetitionTracker::default();
    let mut whole = RepetitionTracker::default();
    let (mut rest, mut read) = (text, 0);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(piece_bytes.min(rest.len())));
        tracker.push(piece, &settings, &key);
        read += piece.len();
        let most = RepetitionTracker::work_units_max(read);
        assert!(tracker.work_units() <= most, "{read} bytes");
        rest = after;
    }
    whole.push(text, &settings, &key);
    assert_eq!(tracker.work_units(), whole.work_units());
    climb(whole.work_units(), text.len());
}

/// Makes a fuzzer maximise the work per byte: each level of it is a branch of its own, so
/// an input that reaches a new level is new coverage, is kept and is changed further.
fn climb(units: u64, bytes: usize) {
    /// Shorter texts are dominated by the units that are saved up at the start.
    const BYTES_MIN: usize = 4_096;
    if bytes < BYTES_MIN {
        return;
    }
    let per_byte = units / bytes as u64;
    macro_rules! levels {
        ($($level:literal)+) => { $(if per_byte >= $level { reached::<$level>(); })+ };
    }
    levels!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 18 20 22 24 26 28 30 32 34 36 38 40 44 48 52 56 60);
}

#[inline(never)]
fn reached<const LEVEL: u64>() {
    std::hint::black_box(LEVEL);
}

/// A call in any form is recorded without a panic and leaves no state. A fuzzer looks for
/// the costliest, see [`climb`]. The rows `worst of 8 calls` of `benches/counts.toml` hold
/// that its cost grows with its bytes and no faster: they count instructions, and a test of
/// time would fail on a busy machine. The first byte chooses the form; the rest is
/// repeated, with a number each time.
pub fn call_work(input: &[u8]) {
    const TEXT_BYTES_MAX: usize = 64 * 1_024;
    let Some((form, unit)) = input.split_first() else {
        return;
    };
    let unit = String::from_utf8_lossy(unit);
    let units = (0..).map(|n| format!("{unit} {n} "));
    let mut bytes = 0;
    let text: String = units
        .take_while(|unit| {
            bytes += unit.len();
            bytes <= TEXT_BYTES_MAX || bytes == unit.len()
        })
        .collect();
    climb(call_nanos(*form, &text) / 8, text.len());
}

/// In how many forms a call can carry a text.
const CALL_FORMS: u8 = 6;

/// A call with the text as a command line, as a list, as arguments, as a result, as an
/// error or as a list in a Struct.
fn call_with(form: u8, text: &str) -> pb::Event {
    let words = || text.split(' ').collect::<Vec<_>>();
    let (mut args, mut result, mut error) = ("{}".to_owned(), None, String::new());
    let mut tree = None;
    match form % CALL_FORMS {
        0 => args = serde_json::json!({ "command": text }).to_string(),
        1 => args = serde_json::json!({ "command": words() }).to_string(),
        2 => text.clone_into(&mut args),
        3 => result = Some(text.to_owned()),
        4 => text.clone_into(&mut error),
        _ => tree = serde_json::from_value(serde_json::json!({ "items": words() })).ok(),
    }
    let arguments = match tree {
        Some(tree) => pb::tool_call::Arguments::Args(tree),
        None => pb::tool_call::Arguments::ArgsJson(args),
    };
    let call = pb::ToolCall {
        tool: "bash".to_owned(),
        arguments: Some(arguments),
        result,
        error,
        ..pb::ToolCall::default()
    };
    pb::Event {
        session_id: "s".to_owned(),
        body: Some(pb::event::Body::ToolCall(call)),
        ..pb::Event::default()
    }
}

/// The CPU time of a call from the bytes on the wire to its answer.
fn call_nanos(form: u8, text: &str) -> u64 {
    let cpu_nanos = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let wire = call_with(form, text).encode_to_vec();
    with_engine(|engine| {
        let start = cpu_nanos();
        let event = pb::Event::decode(wire.as_slice()).unwrap();
        if let Ok(event) = Event::try_from(event) {
            unless_panicked(engine.record(&event, now()));
        }
        cpu_nanos() - start
    })
}

// ---- Masking

/// A masked text depends only on the text and is not much longer than it. Its hash does
/// not depend on how the text is split.
pub fn masking(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for kind in [MaskKind::Result, MaskKind::Error] {
        let masked = masked(&text, kind);
        // A mask is one byte and replaces at least one byte. Cut marks are extra.
        assert!(
            masked.len() <= text.len() + 256,
            "{} of {}",
            masked.len(),
            text.len()
        );
        let mut pieces = Pieces(Vec::new());
        mask::hash_masked(&text, kind, &mut pieces);
        assert!(
            pieces.0.starts_with(&masked),
            "what is hashed is the masked text"
        );
    }
    let mut kept = Vec::new();
    mask::strip_media(&text, &mut |piece: &[u8]| kept.extend_from_slice(piece));
    assert!(kept.len() <= text.len() + 256);
}

fn masked(text: &str, kind: MaskKind) -> Vec<u8> {
    let mut masked = Vec::new();
    mask::mask(text, kind, &mut |piece| masked.extend_from_slice(piece));
    masked
}

/// A hasher that keeps its input.
struct Pieces(Vec<u8>);

impl std::hash::Hasher for Pieces {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

// ---- Hooks

/// Payloads of agents' hooks: a line `AGENT EVENT`, then the payload. Whatever it says, the
/// events made of it are within the bounds of the API.
pub fn hook(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (head, body) = text.split_once('\n').unwrap_or_default();
    let (agent, event) = head.split_once(' ').unwrap_or_default();
    let (Some(agent), Ok(body)) = (ingest::find_agent(agent), serde_json::from_str(body)) else {
        return;
    };
    let query = HookQuery {
        event: event.to_owned(),
        session: "s".to_owned(),
        ..HookQuery::default()
    };
    let tenant = Tenant::default();
    let Ok(payload) = HookPayload::new(agent, &tenant, &query, "[unstuck] ", &body) else {
        return;
    };
    assert!(payload.labels().values().all(|value| value.len() <= 256));
    with_engine(|engine| {
        for input in (agent.inputs)(&payload) {
            match input {
                Input::Event(event) => {
                    assert!(event.event_id.len() <= 128 && event.round_id.len() <= 128);
                    drop(unless_panicked(engine.record(&event, now())));
                }
                Input::Delta(delta) => drop(unless_panicked(engine.record_delta(&delta, now()))),
                Input::Ask(asked) => {
                    assert!((1..=128).contains(&asked.call.tool.len()));
                    engine.check_call(&payload.session, &payload.sub_agent, &asked.call);
                }
                Input::Outcome { .. } | Input::Cost(_) | Input::End => {}
            }
        }
    });
}

// ---- Traces

/// Lines as read by `replay`. A line gives the same event as the wire format, or is
/// refused for the same reason.
pub fn trace_lines(input: &[u8]) {
    with_engine(|engine| {
        for line in input.split(|byte| *byte == b'\n').take(64) {
            match TraceLine::parse(line) {
                Ok(TraceLine::Event(event)) => drop(unless_panicked(engine.record(&event, now()))),
                Ok(TraceLine::Delta(delta)) => {
                    drop(unless_panicked(engine.record_delta(&delta, now())))
                }
                Err(fault) => assert!(!fault.to_string().is_empty()),
            }
        }
    });
    if let Ok(event) = pb::Event::decode(input)
        && let Ok(json) = serde_json::to_string(&event)
    {
        let line = TraceLine::parse(json.as_bytes());
        match (Event::try_from(event), line) {
            (Ok(sent), Ok(TraceLine::Event(read))) => {
                assert_eq!(format!("{sent:?}"), format!("{read:?}"), "{json}");
            }
            (Err(_), Err(_)) => {}
            (sent, read) => panic!("{:?}, {:?}: {json}", sent.is_ok(), read.is_ok()),
        }
    }
}

// ---- Transcripts

/// A file of any bytes, read in every format: each session has a start before its events
/// and one end, its events can be recorded, and the file is as it was.
pub fn transcript(input: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session-x.jsonl");
    fs::write(&path, input).unwrap();
    detect_format(&path);
    for format in FORMATS {
        let mut is_open = false;
        let transcript = Transcript::new(format, vec![path.clone()]);
        with_engine(|engine| {
            transcript.read(&mut |item| match item {
                TranscriptItem::Start(start) => {
                    assert!(!is_open && !start.session_id.is_empty(), "{}", format.name);
                    is_open = true;
                }
                TranscriptItem::Event(found) => {
                    assert!(is_open, "{}", format.name);
                    let at = found.event.time.unwrap_or_else(now);
                    drop(unless_panicked(engine.record(&found.event, at.min(now()))));
                }
                TranscriptItem::End(end) => {
                    assert!(is_open && end.events > 0, "{}", format.name);
                    is_open = false;
                }
                TranscriptItem::Problem(problem) => assert!(!problem.what.is_empty()),
            });
        });
        assert!(!is_open, "{}", format.name);
    }
    assert_eq!(fs::read(&path).unwrap(), input, "nothing is written");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

// ---- Configuration

/// A configuration file is accepted, or refused with one line without control
/// characters.
pub fn config(input: &[u8]) {
    if let Err(error) = setup::config(input) {
        let line = error.to_string();
        assert!(
            !line.is_empty() && !line.chars().any(char::is_control),
            "{line:?}"
        );
    }
}

// ---- The audit log

/// A store with damaged files is refused, or has all its terminations. One that was
/// opened opens again with the same state.
///
/// An even first byte damages the file `head`, an odd one the database and its
/// write-ahead log: the file protects them, so that not both may be damaged. The rest are
/// changes.
pub fn audit_log(input: &[u8]) {
    let Some((form, changes)) = input.split_first() else {
        return;
    };
    let damaged: &[&str] = match form % 2 {
        0 => &["head"],
        _ => &["unstuck.db", "unstuck.db-wal"],
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, intact) in intact_store() {
        let is_damaged = damaged.contains(&name);
        let bytes = if is_damaged {
            changed(intact.clone(), changes, name)
        } else {
            intact.clone()
        };
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let verified = verify(dir.path());
    let Ok((store, recovered)) = open(dir.path()) else {
        assert!(verified.is_err(), "verified, and does not open");
        return;
    };
    assert_eq!(names(&recovered), ["a", "b", "c"], "a termination is lost");
    drop(store);
    let (_, again) = open(dir.path()).expect("what was opened opens again");
    assert_eq!(names(&again), names(&recovered));
}

fn open(
    dir: &Path,
) -> Result<(Store, unstuck::domain::RecoveredState), unstuck::store::StoreError> {
    let settings = Settings {
        dir: dir.to_owned(),
        verdicts_days_max: 30,
        bytes_max: Settings::BYTES_MIN,
        queue_max: 16,
        sync_secs_max: 60,
        key_file: Default::default(),
    };
    Store::open(StoreOptions {
        settings: &settings,
        audit: AuditSettings { text: false },
        tombstone_age_max: Duration::from_secs(7 * 24 * 60 * 60),
        tombstones_max: 1_000_000,
        now: now(),
        on_fatal: Box::new(|error| panic!("{error}")),
    })
}

/// The terminated sessions.
fn names(recovered: &unstuck::domain::RecoveredState) -> Vec<String> {
    let sessions = recovered.sessions.iter();
    let mut names: Vec<String> = sessions.map(|(id, _)| id.to_string()).collect();
    names.sort_unstable();
    names
}

/// The files of a store with three terminations as a killed process leaves them, by name.
fn intact_store() -> impl Iterator<Item = (&'static str, &'static Vec<u8>)> {
    static FILES: LazyLock<[(&str, Vec<u8>); 3]> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path()).expect("an empty directory is begun");
        let config = setup::config("").unwrap();
        let (engine, _) = setup::engine(config, RunMode::Live, store.verdict_sink());
        let request = OperatorRequest {
            reason: "it loops",
            operator: "ann",
        };
        for session in ["a", "b", "c"] {
            engine.terminate_session(&SessionId::parse(session).unwrap(), &request, now());
        }
        while !store.is_durable(store.last_verdict_id()) {
            std::thread::yield_now();
        }
        ["unstuck.db", "unstuck.db-wal", "head"]
            .map(|name| (name, fs::read(dir.path().join(name)).unwrap()))
    });
    FILES.iter().map(|(name, bytes)| (*name, bytes))
}

/// Changes of one byte each: the file by the first bit of an offset of 24 bits, and the
/// change; one by zero truncates.
fn changed(mut bytes: Vec<u8>, changes: &[u8], name: &str) -> Vec<u8> {
    let is_wal = name.ends_with("-wal");
    for change in changes.chunks_exact(4) {
        let offset = u32::from_le_bytes([change[0], change[1], change[2], 0]);
        if name != "head" && (offset % 2 == 1) != is_wal {
            continue;
        }
        let offset = (offset / 2) as usize % (bytes.len() + 1);
        match (bytes.get_mut(offset), change[3]) {
            (Some(_), 0) => bytes.truncate(offset),
            (Some(byte), by) => *byte ^= by,
            (None, by) => bytes.push(by),
        }
    }
    bytes
}
