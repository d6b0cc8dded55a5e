//! The loads: what is sent, how, and what must be reached.

use super::rig::{
    drive::{End, Load, Pace},
    mix::{Envelope, Kind, Script},
};

/// Unary calls that are open at a time.
const CALLS: usize = 16;
/// Streams that carry text.
const TEXT_STREAMS: usize = 8;
/// Events of a stream that may wait for their answer when it is pipelined:
/// enough to keep the server busy, and few enough to fit the windows.
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

/// What must be reached beside the floor.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// So much of its calls a second, and at most 1.15 of its 99th percentile.
    Calls(f64),
    /// So much of the events that it handles in a second of a core.
    Core(f64),
}

/// At most this much of the floor's 99th percentile.
pub const P99_BAR: f64 = 1.15;

impl Scenario {
    pub fn all() -> serde_json::Result<Vec<Self>> {
        let mut all = Vec::new();
        for kind in [Kind::Healthy, Kind::Looping] {
            let events = Script::events(kind)?;
            all.extend(Self::of_events(kind, &events));
            for (bytes, batch, bar) in [
                (7, 1, Some(Bar::Core(0.75))),
                (7, 32, Some(Bar::Core(0.5))),
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
        let unary = Bar::Calls(0.95);
        let mut all = vec![
            scenario("unary", Envelope::RecordEvent, CALLS, 1, 1, unary),
            scenario("ping-pong", Envelope::StreamEvents, 1, 1, 1, unary),
        ];
        for (batch, bar) in [(1, Bar::Core(0.55)), (64, Bar::Core(0.45))] {
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
            end,
            run,
        }
    }
}
