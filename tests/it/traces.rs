//! One trace per detector, in `traces/<detector>.ndjson`, in the format of `unstuck replay`.
//! The id of an event tells the expected verdict:
//!
//! - `"event_id": "e07=warn"`: a WARN by the file's detector, as the one that describes the
//!   loop or as one of those in `also`;
//! - `"event_id": "e07=warn:cycle"`: a WARN by another detector.
//!
//! For deltas it is the id of the turn, which may expect several: `"turn_id":
//! "t2=warn,break"`. No other event has a verdict. A file has several sessions: some that
//! loop, and at least one that comes close and does not.
//!
//! A `traces/<detector>.toml` beside the trace has the settings of a detector that is off by
//! default.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use unstuck::{
    domain::{Action, Verdict},
    engine::RunMode,
};

use crate::play::{Line, Player};

/// A verdict that the trace expects or that was issued.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TraceVerdict {
    session: String,
    event_id: String,
    action: Action,
    detector: String,
}

#[test]
fn every_trace_gets_its_expected_verdicts() {
    for (detector, path) in files() {
        let lines = Line::read(&fs::read_to_string(&path).unwrap());
        assert_eq!(
            actual_verdicts(player(&path), &lines, &detector),
            expected_verdicts(&lines, &detector),
            "{}",
            path.display()
        );
    }
}

#[test]
fn every_trace_has_a_session_that_loops_and_one_that_does_not() {
    for (detector, path) in files() {
        let lines = Line::read(&fs::read_to_string(&path).unwrap());
        let sessions: BTreeSet<_> = lines.iter().map(|line| names(line).0).collect();
        let expected = expected_verdicts(&lines, &detector).into_iter();
        let own = expected.filter(|expected| expected.detector == detector);
        let looping: BTreeSet<_> = own.map(|expected| expected.session).collect();
        assert!(
            !looping.is_empty() && looping.len() < sessions.len(),
            "{}: {} of {} sessions announce a verdict of {detector}; \
             add one that loops and one that nearly does",
            path.display(),
            looping.len(),
            sessions.len(),
        );
    }
}

/// Each page links to its trace and quotes the trace's first verdict as
/// `> WARN: <pattern>`.
#[test]
fn every_detectors_page_quotes_the_first_verdict_of_its_trace() {
    for (detector, path) in files() {
        let lines = Line::read(&fs::read_to_string(&path).unwrap());
        let verdicts = player(&path).verdicts(&lines);
        let page = format!("docs/detectors/{detector}.md");
        let text = fs::read_to_string(root().join(&page)).unwrap_or_default();
        let Some(verdict) = verdicts.first() else {
            continue;
        };
        assert_eq!(*verdict.detector, *detector, "{}", path.display());
        let action = verdict.action.unwrap().name().to_uppercase();
        let quote = format!("> {action}: {}", verdict.pattern);
        assert!(
            text.lines().any(|line| line == quote),
            "{page}: needs the line {quote}"
        );
        let link = format!("(../../tests/it/traces/{detector}.ndjson)");
        assert!(text.contains(&link), "{page}: needs a link to its trace");
    }
}

/// With the settings in the file beside a trace, if any.
fn player(trace: &Path) -> Player {
    let settings = fs::read_to_string(trace.with_extension("toml")).unwrap_or_default();
    Player::with(&settings, RunMode::Replay).unwrap()
}

/// The detectors and their traces.
fn files() -> Vec<(String, PathBuf)> {
    let folder = root().join("tests/it/traces");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "ndjson"))
        .map(|path| {
            let name = path.file_stem().unwrap_or_default();
            (name.to_string_lossy().into_owned(), path)
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "there are traces");
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The session, and the id that may have an expected verdict.
fn names(line: &Line) -> (&str, &str) {
    match line {
        Line::Event(event) => (&event.session_id, &event.event_id),
        Line::Delta(delta) => (&delta.session_id, &delta.turn_id),
    }
}

fn expected_verdicts(lines: &[Line], own: &str) -> Vec<TraceVerdict> {
    let mut known = BTreeSet::new();
    let mut expected = Vec::new();
    // Each delta of a turn has the turn's id; its expected verdict is listed once.
    for (session, event_id) in lines.iter().map(names).filter(|names| known.insert(*names)) {
        let (_, verdicts) = event_id.split_once('=').unwrap_or_default();
        for verdict in verdicts.split(',').filter(|verdict| !verdict.is_empty()) {
            let (action, detector) = verdict.split_once(':').unwrap_or((verdict, own));
            expected.push(TraceVerdict {
                session: session.to_owned(),
                event_id: event_id.to_owned(),
                action: action.parse().unwrap(),
                detector: detector.to_owned(),
            });
        }
    }
    expected
}

fn actual_verdicts(mut player: Player, lines: &[Line], own: &str) -> Vec<TraceVerdict> {
    let mut actual = Vec::new();
    let mut known = BTreeSet::new();
    for line in lines {
        let Some(recorded) = player.play(line).filter(|recorded| !recorded.duplicate) else {
            continue;
        };
        // Events after a termination are answered with it.
        if let Some(verdict) = recorded.verdict.filter(|verdict| known.insert(verdict.id)) {
            let (session, event_id) = names(line);
            actual.push(TraceVerdict {
                session: session.to_owned(),
                event_id: event_id.to_owned(),
                action: verdict
                    .effective_action()
                    .expect("the default profile enforces"),
                detector: matching_detector(&verdict, own).to_owned(),
            });
        }
    }
    actual
}

/// The file's own detector if it found the loop, else the one that describes it.
fn matching_detector<'a>(verdict: &'a Verdict, own: &'a str) -> &'a str {
    if verdict.other_detectors.iter().any(|other| **other == *own) {
        own
    } else {
        &verdict.detector
    }
}
