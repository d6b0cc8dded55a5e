//! The loads and their targets.

use std::time::Duration;

use super::load_generator::{
    drive::{End, Load, Pace},
    mix::{Envelope, Kind, Script},
};

/// Concurrent unary calls.
const CALLS: usize = 16;
/// Streams that carry text.
const TEXT_STREAMS: usize = 8;
/// Unanswered events per pipelined stream: enough to keep the server busy, few enough
/// for the flow-control windows.
const EVENTS_UNANSWERED: usize = 512;

pub struct Scenario {
    pub name: String,
    pub kind: Kind,
    pub envelope: Envelope,
    pub batch: usize,
    pub bar: Option<Bar>,
    streams: usize,
    unanswered_max: usize,
    script: Script,
}

/// The target, relative to the bare server.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// This share of its calls per second, and at most 1.15 of its 99th percentile.
    Calls(f64),
    /// This share of its events per CPU second.
    Core(f64),
}

/// The limit for the 99th percentile, as a multiple of the bare server's.
pub const P99_BAR: f64 = 1.15;

impl Scenario {
    pub fn all() -> serde_json::Result<Vec<Self>> {
        let mut all = Vec::new();
        for kind in [Kind::Healthy, Kind::Looping] {
            let events = Script::events(kind)?;
            all.extend(Self::of_events(kind, &events));
            for (bytes, batch, bar) in [
                (7, 1, Some(Bar::Core(0.28))),
                (7, 32, Some(Bar::Core(0.25))),
                (200, 1, None),
            ] {
                all.push(Self {
                    name: format!("deltas of {bytes} bytes, {batch} a message"),
                    kind,
                    envelope: Envelope::StreamDeltas,
                    batch,
                    bar,
                    streams: TEXT_STREAMS,
                    unanswered_max: usize::MAX,
                    script: Script::deltas(kind, bytes)?,
                });
            }
        }
        Ok(all)
    }

    fn of_events(kind: Kind, script: &Script) -> Vec<Self> {
        let scenario = |name: &str, envelope, streams, unanswered_max, batch, bar| Self {
            name: name.to_owned(),
            kind,
            envelope,
            batch,
            bar: Some(bar),
            streams,
            unanswered_max,
            script: script.clone(),
        };
        let mut all = vec![
            scenario("unary", Envelope::RecordEvent, CALLS, 1, 1, Bar::Calls(0.8)),
            scenario(
                "ping-pong",
                Envelope::StreamEvents,
                1,
                1,
                1,
                Bar::Calls(0.85),
            ),
        ];
        for (batch, bar) in [(1, Bar::Core(0.28)), (64, Bar::Core(0.25))] {
            for streams in [1, 8, 64] {
                let noun = if streams == 1 { "stream" } else { "streams" };
                let name = format!("pipelined, {streams} {noun}, {batch} a message");
                let unanswered_max = EVENTS_UNANSWERED / batch;
                all.push(scenario(
                    &name,
                    Envelope::StreamEvents,
                    streams,
                    unanswered_max,
                    batch,
                    bar,
                ));
            }
        }
        all
    }

    pub fn load(&self, pace: Pace, end: End, run: usize) -> Load {
        Load {
            script: self.script.clone(),
            envelope: self.envelope,
            batch: self.batch,
            streams: self.streams,
            unanswered_max: self.unanswered_max,
            pace,
            overdue: Duration::ZERO,
            end,
            run,
        }
    }
}
