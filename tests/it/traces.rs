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

/// A verdict, as the trace announces it or as it was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    session: String,
    event_id: String,
    action: Action,
    detector: String,
}

#[test]
fn every_trace_gets_the_verdicts_it_announces() {
    for (detector, path) in files() {
        let lines = Line::read(&fs::read_to_string(&path).unwrap());
        assert_eq!(
            given(player(&path), &lines, &detector),
            announced(&lines, &detector),
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
        let told = announced(&lines, &detector).into_iter();
        let own = told.filter(|told| told.detector == detector);
        let looping: BTreeSet<_> = own.map(|told| told.session).collect();
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

/// With the settings that stand beside a trace, if any.
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

/// The session, and the id that may announce a verdict.
fn names(line: &Line) -> (&str, &str) {
    match line {
        Line::Event(event) => (&event.session_id, &event.event_id),
        Line::Delta(delta) => (&delta.session_id, &delta.turn_id),
    }
}

fn announced(lines: &[Line], own: &str) -> Vec<Told> {
    let mut known = BTreeSet::new();
    let mut told = Vec::new();
    // A turn's id stands in every piece of it, and announces once.
    for (session, event_id) in lines.iter().map(names).filter(|names| known.insert(*names)) {
        let (_, verdicts) = event_id.split_once('=').unwrap_or_default();
        for verdict in verdicts.split(',').filter(|verdict| !verdict.is_empty()) {
            let (action, detector) = verdict.split_once(':').unwrap_or((verdict, own));
            told.push(Told {
                session: session.to_owned(),
                event_id: event_id.to_owned(),
                action: action.parse().unwrap(),
                detector: detector.to_owned(),
            });
        }
    }
    told
}

fn given(mut player: Player, lines: &[Line], own: &str) -> Vec<Told> {
    let mut given = Vec::new();
    let mut known = BTreeSet::new();
    for line in lines {
        let Some(recorded) = player.play(line).filter(|recorded| !recorded.duplicate) else {
            continue;
        };
        // What comes after a termination is answered with it.
        if let Some(verdict) = recorded.verdict.filter(|verdict| known.insert(verdict.id)) {
            let (session, event_id) = names(line);
            given.push(Told {
                session: session.to_owned(),
                event_id: event_id.to_owned(),
                action: verdict
                    .effective_action()
                    .expect("the default profile enforces"),
                detector: seen_by(&verdict, own).to_owned(),
            });
        }
    }
    given
}

/// The file's own detector where it has seen the loop, else who describes it.
fn seen_by<'a>(verdict: &'a Verdict, own: &'a str) -> &'a str {
    if verdict.other_detectors.iter().any(|other| **other == *own) {
        own
    } else {
        &verdict.detector
    }
}
