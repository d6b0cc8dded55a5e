//! Invented sessions of many kinds of agents. `plausible/healthy.ndjson` has work that looks
//! repetitive and is not, such as a linter after each edit or a file read page by page: it
//! must cause no verdict. `plausible/looping.ndjson` has loops of every kind, with other
//! tools, languages and counts than the scenarios: each must be found.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::play::{Line, Player};

/// The sessions of a file, and the first detector in each session with a verdict.
fn watch(name: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/plausible");
    let ndjson = fs::read_to_string(path.join(name)).unwrap();
    let mut player = Player::new();
    let (mut sessions, mut verdicts) = (BTreeSet::new(), BTreeMap::new());
    for line in Line::read(&ndjson) {
        let session = match &line {
            Line::Event(event) => &event.session_id,
            Line::Delta(delta) => &delta.session_id,
        };
        sessions.insert(session.clone());
        let answer = player.play(&line);
        if let Some(verdict) = answer.and_then(|answer| answer.verdict) {
            let first = verdicts.entry(session.clone());
            first.or_insert_with(|| format!("{}: {}", verdict.detector, verdict.pattern));
        }
    }
    (sessions, verdicts)
}

#[test]
fn no_healthy_session_gets_a_verdict() {
    let (sessions, verdicts) = watch("healthy.ndjson");
    assert!(sessions.len() >= 180, "{}", sessions.len());
    assert_eq!(verdicts, BTreeMap::new());
}

#[test]
fn every_looping_session_is_found() {
    let (sessions, verdicts) = watch("looping.ndjson");
    assert!(sessions.len() >= 125, "{}", sessions.len());
    let found: BTreeSet<String> = verdicts.into_keys().collect();
    let missed: Vec<_> = sessions.difference(&found).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
