//! The messages: events and deltas of recorded sessions, encoded.

use std::sync::Arc;

use prost::{
    Message,
    bytes::{BufMut, Bytes, BytesMut},
    encoding::{WireType, encode_key, encode_varint},
};
use unstuck::pb::{Delta, Event, event::Body};

const HEALTHY: &str = include_str!("../../mixes/healthy.ndjson");
const LOOPING: &str = include_str!("../../mixes/looping.ndjson");
const TURNS: &str = include_str!("../../mixes/turns.ndjson");

/// Concurrent sessions of a stream. Its messages alternate between them.
const SESSIONS: usize = 64;
/// `0000-00-00-000000`: run, stream, session, number of restarts.
const ID_BYTES: usize = 17;
/// The offset of the value of field 1, which comes first: after its key and length.
const ID_AT: usize = 2;
/// The repeated text of a looping session, and how often it repeats.
const REPEATED_TEXT_BYTES: usize = 80;
const REPEATED_TEXT_COUNT: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Healthy,
    Looping,
}

/// What one session sends from start to end.
#[derive(Clone)]
pub struct Script(Arc<[Item]>);

struct Item {
    /// An event or delta without its session id.
    bytes: Vec<u8>,
    /// A delta is answered only at the end of a text.
    is_answered: bool,
}

impl Script {
    pub fn events(kind: Kind) -> serde_json::Result<Self> {
        let lines = match kind {
            Kind::Healthy => HEALTHY,
            Kind::Looping => LOOPING,
        };
        let events = lines.lines().map(|line| {
            let mut event: Event = serde_json::from_str(line)?;
            event.session_id = "0".repeat(ID_BYTES);
            Ok(Item {
                bytes: event.encode_to_vec(),
                is_answered: true,
            })
        });
        events.collect::<serde_json::Result<_>>().map(Self)
    }

    /// Texts in deltas of at most this many bytes.
    pub fn deltas(kind: Kind, bytes_max: usize) -> serde_json::Result<Self> {
        let mut deltas = Vec::new();
        for (n, line) in TURNS.lines().enumerate() {
            let event: Event = serde_json::from_str(line)?;
            let Some(Body::Turn(turn)) = event.body else {
                continue;
            };
            let text = match kind {
                Kind::Healthy => turn.text,
                Kind::Looping => with_repeated_text(&turn.text),
            };
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.floor_char_boundary(bytes_max.max(4)));
                rest = after;
                let delta = Delta {
                    session_id: "0".repeat(ID_BYTES),
                    turn_id: format!("turn-{n}"),
                    text: piece.to_owned(),
                    end_of_turn: rest.is_empty(),
                    ..Delta::default()
                };
                deltas.push(Item {
                    bytes: delta.encode_to_vec(),
                    is_answered: delta.end_of_turn,
                });
            }
        }
        Ok(Self(deltas.into()))
    }
}

fn with_repeated_text(text: &str) -> String {
    let repeated = &text[..text.floor_char_boundary(REPEATED_TEXT_BYTES)];
    format!("{text}{}", repeated.repeat(REPEATED_TEXT_COUNT))
}

/// The message type that carries the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope {
    RecordEvent,
    StreamEvents,
    StreamDeltas,
}

/// The messages of one stream, without end.
pub struct Source {
    script: Script,
    envelope: Envelope,
    batch: usize,
    sequence: u64,
    /// The number of sent items.
    turn: usize,
    sessions: Vec<Session>,
}

/// A session that restarts with a new id at the end of its script.
struct Session {
    id: [u8; ID_BYTES],
    at: usize,
    laps: usize,
}

pub struct Outgoing {
    pub bytes: Bytes,
    /// The number of responses it gets.
    pub responses: usize,
}

impl Source {
    pub fn new(
        script: Script,
        envelope: Envelope,
        batch: usize,
        run: usize,
        stream: usize,
    ) -> Self {
        // Each starts at another position of the script.
        let begin = |n| Session::new(run, stream, n, n * script.0.len() / SESSIONS);
        let sessions = (0..SESSIONS).map(begin).collect();
        Self {
            script,
            envelope,
            batch,
            sequence: 0,
            turn: 0,
            sessions,
        }
    }

    pub fn message(&mut self) -> Outgoing {
        self.sequence += 1;
        let mut bytes = BytesMut::with_capacity(self.batch * 512);
        let field = match self.envelope {
            Envelope::RecordEvent | Envelope::StreamDeltas => 1,
            Envelope::StreamEvents => {
                encode_key(1, WireType::Varint, &mut bytes);
                encode_varint(self.sequence, &mut bytes);
                2
            }
        };
        let mut ends = 0;
        for _ in 0..self.batch {
            ends += usize::from(self.put_next(field, &mut bytes));
        }
        Outgoing {
            bytes: bytes.freeze(),
            responses: match self.envelope {
                Envelope::RecordEvent | Envelope::StreamEvents => 1,
                Envelope::StreamDeltas => ends,
            },
        }
    }

    /// Adds an item of the next session. Returns whether it is answered.
    fn put_next(&mut self, field: u32, bytes: &mut BytesMut) -> bool {
        let session = &mut self.sessions[self.turn % SESSIONS];
        self.turn += 1;
        let item = &self.script.0[session.at];
        encode_key(field, WireType::LengthDelimited, bytes);
        encode_varint(item.bytes.len() as u64, bytes);
        let start = bytes.len();
        bytes.put_slice(&item.bytes);
        bytes[start + ID_AT..][..ID_BYTES].copy_from_slice(&session.id);
        session.at += 1;
        if session.at == self.script.0.len() {
            session.restart();
        }
        item.is_answered
    }
}

impl Session {
    fn new(run: usize, stream: usize, session: usize, at: usize) -> Self {
        let mut id = [0; ID_BYTES];
        let name = format!("{:04}-{stream:02}-{session:02}-000000", run % 10_000);
        id.copy_from_slice(name.as_bytes());
        Self { id, at, laps: 0 }
    }

    fn restart(&mut self) {
        self.at = 0;
        self.laps += 1;
        let laps = format!("{:06}", self.laps % 1_000_000);
        self.id[ID_BYTES - laps.len()..].copy_from_slice(laps.as_bytes());
    }
}
