//! Plays events through an engine in the process. The time is the time of the events, not
//! of a clock.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Deserialize;
use unstuck::{
    config::ConfigError,
    domain::{Delta, Event, Verdict, VerdictId},
    engine::{Engine, RecordOutcome, RunMode},
    pb,
};

use crate::setup;

/// A line of a trace: an event, or a piece of text.
#[derive(Clone, Debug)]
pub enum Line {
    Event(Box<pb::Event>),
    Delta(pb::Delta),
}

impl Line {
    pub fn parse(line: &serde_json::Value) -> Result<Self, serde_json::Error> {
        match line.get("delta") {
            Some(delta) => Ok(Self::Delta(pb::Delta::deserialize(delta)?)),
            None => Ok(Self::Event(Box::new(pb::Event::deserialize(line)?))),
        }
    }

    /// The lines of an NDJSON file.
    #[track_caller]
    pub fn read(ndjson: &str) -> Vec<Self> {
        let parse = |line: &str| {
            let parsed = serde_json::from_str(line).and_then(|line| Self::parse(&line));
            parsed.unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        ndjson.lines().map(parse).collect()
    }
}

/// An engine and the time of its last event.
pub struct Player {
    pub engine: Engine,
    pub now: SystemTime,
    /// The names of its detectors and rules.
    pub detectors: Vec<String>,
}

impl Player {
    /// With the defaults.
    pub fn new() -> Self {
        Self::with("", RunMode::Replay).unwrap()
    }

    /// With a user's settings over the defaults. The environment variables of the
    /// test process are ignored.
    pub fn with(config_toml: &str, run_mode: RunMode) -> Result<Self, ConfigError> {
        let config = setup::config(config_toml)?;
        Ok(Self {
            detectors: config
                .profiles
                .detector_names()
                .map(str::to_owned)
                .collect(),
            engine: setup::engine_without_sink(config, run_mode),
            now: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        })
    }

    /// The answer; `None` for a delta without a verdict.
    #[track_caller]
    pub fn play(&mut self, line: &Line) -> Option<RecordOutcome> {
        match line {
            Line::Event(event) => Some(self.event(event)),
            Line::Delta(delta) => {
                let delta = Delta::try_from(delta.clone()).unwrap();
                self.engine.record_delta(&delta, self.now).unwrap()
            }
        }
    }

    #[track_caller]
    pub fn event(&mut self, event: &pb::Event) -> RecordOutcome {
        let event = Event::try_from(event.clone()).unwrap();
        self.now = event.time.unwrap_or(self.now);
        self.engine.record(&event, self.now).unwrap()
    }

    /// Each verdict once, in the order of issue.
    #[track_caller]
    pub fn verdicts(&mut self, lines: &[Line]) -> Vec<Arc<Verdict>> {
        let mut known = HashSet::new();
        let answers = lines.iter().filter_map(|line| self.play(line));
        let verdicts = answers.filter_map(|recorded| recorded.verdict);
        verdicts
            .filter(|verdict| known.insert(verdict.id))
            .collect()
    }
}

/// A verdict without its ids: two engines with different hash keys agree on this.
pub fn summary(verdict: &Verdict) -> String {
    let mut nameless = Verdict {
        id: VerdictId(0),
        loop_id: None,
        ..verdict.clone()
    };
    // It is of the arguments exactly as they were sent.
    for member in &mut nameless.members {
        member.call_key = None;
    }
    format!("{nameless:?}")
}
