//! Properties that hold for every input. Each function takes bytes and panics if a
//! property does not hold. `cargo fuzz` generates inputs (`scripts/fuzz`);
//! `tests/it/fuzzed.rs` runs the same functions over `corpus/`, so that they stay
//! up to date.

use std::{
    cell::RefCell,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use unstuck::{
    cli::TraceLine,
    config::{Config, ConfigError, DEFAULTS, Layers, TABLE_KEYS},
    domain::{Delta, Event, RepetitionSettings, SessionId, Verdict, VerdictId},
    engine::{Engine, RecordError, RecordOutcome, RunMode},
    pb,
    store::{AuditSettings, Settings, Store, StoreOptions, verify},
    telemetry::Metrics,
    text::{
        HashKey, RepetitionTracker,
        mask::{self, MaskKind},
    },
};

/// The arrival time of all events.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// The built-in configuration with these overrides.
fn settings(toml: &[u8]) -> Result<Config, ConfigError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, toml).unwrap();
    Config::new(&Layers::load(DEFAULTS, TABLE_KEYS, Some(file.path()), [])?)
}

fn engine() -> Engine {
    let config = settings(b"").unwrap();
    let metrics = Metrics::new(config.profiles.detector_names()).unwrap();
    Engine::new(
        config.profiles,
        config.tools,
        config.engine,
        Arc::new(metrics),
        RunMode::Replay,
        Box::new(|_| {}),
    )
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
            "all is let go of"
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
    let whole = with_engine(|engine| written(engine, &turns, &[]));
    let pieces = with_engine(|engine| written(engine, &turns, cuts));
    for (whole, pieces) in whole.iter().zip(&pieces) {
        assert_eq!(
            whole.any, pieces.any,
            "one cut was told of a loop, the other not"
        );
        if pieces.early {
            // From here on the two differ, because only one got a verdict.
            return;
        }
        assert_eq!(whole.end, pieces.end);
    }
}

/// The verdict on a turn.
struct Told {
    any: bool,
    /// There was a verdict before its end.
    early: bool,
    end: String,
}

fn written(engine: &Engine, turns: &[&str], cuts: &[u8]) -> Vec<Told> {
    let say = |(n, text): (usize, &&str)| {
        let place = |cut: &u8| text.floor_char_boundary(usize::from(*cut) * text.len() / 255);
        let mut places: Vec<usize> = cuts.iter().map(place).chain([0, text.len()]).collect();
        places.sort_unstable();
        let last = places.len() - 2;
        let mut told = Told {
            any: false,
            early: false,
            end: String::new(),
        };
        for (k, ends) in places.windows(2).enumerate() {
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
            told.any |= verdict.is_some();
            if k == last {
                let recorded = recorded.as_ref().expect("the end of a turn is answered");
                told.end = format!("{:?} {:?}", recorded.index, verdict.map(nameless));
            } else {
                told.early |= verdict.is_some();
            }
        }
        told
    };
    turns.iter().enumerate().map(say).collect()
}

/// A verdict without its id.
fn nameless(verdict: &Verdict) -> Verdict {
    Verdict {
        id: VerdictId(0),
        ..verdict.clone()
    }
}

// ---- Work

/// The work on a text is bounded by its bytes, however it is cut. The first byte chooses
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

// ---- Configuration

/// A configuration file is accepted, or refused with one line without control
/// characters.
pub fn config(input: &[u8]) {
    if let Err(error) = settings(input) {
        let line = error.to_string();
        assert!(
            !line.is_empty() && !line.chars().any(char::is_control),
            "{line:?}"
        );
    }
}

// ---- The audit log

/// A damaged log is read up to the damage, or refused. A log that was opened once opens
/// again with the same state.
///
/// The first byte selects what the rest is: a log, an anchor, records in frames with
/// valid hashes, or changes to a valid log.
pub fn audit_log(input: &[u8]) {
    let Some((form, rest)) = input.split_first() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).expect("an empty directory is begun"));
    let log = dir.path().join("audit-00000001.log");
    match form % 4 {
        0 => fs::write(log, rest).unwrap(),
        1 => fs::write(dir.path().join("anchor"), rest).unwrap(),
        2 => fs::write(log, sealed(rest)).unwrap(),
        _ => fs::write(log, changed(sound(), rest)).unwrap(),
    }
    let verified = verify(dir.path());
    let Ok((store, standing)) = open(dir.path()) else {
        assert!(verified.is_err(), "verified, and does not open");
        return;
    };
    assert!(verified.is_ok(), "opens, and is not verified");
    let page = store.read_audit_log(None, 1_000, |_| true);
    assert!(page.is_ok(), "{page:?}");
    drop(store);
    assert!(
        verify(dir.path()).unwrap().is_intact(),
        "what was damaged is set aside"
    );
    let (_, again) = open(dir.path()).expect("what was opened opens again");
    assert_eq!(names(&again), names(&standing));
}

fn open(
    dir: &Path,
) -> Result<(Store, unstuck::domain::RecoveredState), unstuck::store::StoreError> {
    let settings = Settings {
        dir: dir.to_owned(),
        verdicts_days_max: 30,
        bytes_max: Settings::BYTES_MIN,
        queue_max: 16,
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

/// The terminated sessions, and the snoozed ones with their end.
fn names(standing: &unstuck::domain::RecoveredState) -> Vec<String> {
    let session = |(id, folded): &(SessionId, unstuck::domain::EncodedRecord)| {
        format!("{id:?} {:?} {:?}", folded.id, folded.decode().is_some())
    };
    let sessions = standing.sessions.iter().map(session);
    let agents = standing
        .agents
        .iter()
        .map(|(id, agent, _)| format!("{id:?} {agent:?}"));
    let snoozes = standing.snoozes.iter().map(|snooze| format!("{snooze:?}"));
    let mut names: Vec<String> = sessions.chain(agents).chain(snoozes).collect();
    names.sort_unstable();
    names
}

/// Frames with valid hashes around arbitrary records. Repeats the format of
/// `src/store/frame.rs`.
fn sealed(mut rest: &[u8]) -> Vec<u8> {
    let mut log = Vec::new();
    let mut before = [0; 32];
    let mut number = 0u128;
    while let Some((head, behind)) = rest.split_first_chunk::<2>() {
        let (body, next) = behind.split_at(usize::from(head[1]).min(behind.len()));
        rest = next;
        number += 1;
        let mut payload = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        payload.push(head[0] % 5);
        // Ids from now on; older ones do not belong to the log.
        let millis = now().duration_since(UNIX_EPOCH).unwrap().as_millis() + number;
        payload.extend_from_slice(&(millis << 80).to_be_bytes());
        payload.extend_from_slice(body);
        let mut frame = b"UNS1".to_vec();
        frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(&before);
        before = *blake3::Hasher::new()
            .update(&frame)
            .update(&payload)
            .finalize()
            .as_bytes();
        frame.extend_from_slice(&before);
        frame.extend_from_slice(&payload);
        log.extend_from_slice(&frame);
    }
    log
}

/// Three terminations in the format that `sealed` expects.
fn sound() -> Vec<u8> {
    let mut records = Vec::new();
    for session in ["a", "b", "c"] {
        // Field 1, the session id.
        let body = [&[0x0a, 1], session.as_bytes()].concat();
        records.extend_from_slice(&[1, body.len() as u8]);
        records.extend_from_slice(&body);
    }
    sealed(&records)
}

/// Changes of one byte each at a 16-bit offset; a change by zero truncates.
fn changed(mut log: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match (log.get_mut(place), change[2]) {
            (Some(_), 0) => log.truncate(place),
            (Some(byte), by) => *byte ^= by,
            (None, by) => log.push(by),
        }
    }
    log
}
