//! What brokers send. A message is a copy of one that was made before, with other
//! names in it: the generator must cost little beside the service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prost::{Message, bytes::Bytes, encoding};
use unstuck::pb::{
    self, Event, RecordEventRequest, StreamEventsRequest, event::Body, tool_call::Arguments,
};

/// Events in a message of a stream.
pub const BATCH: usize = 8;
/// Sessions that are live; all brokers together send events of them.
const SESSIONS: u64 = 100;
/// After so many events they are others, and those are left to be idle.
const GENERATION: u64 = 50_000;
/// One event in so many is of another agent, for which there is no room.
const VISITORS: u64 = 8;
/// A long result is work for the service and none for its client.
const RESULT_BYTES: usize = 2_000;

/// What stands in a template where a name is to be, of as many letters.
const SESSION: &str = "@@@@@@@@";
const AGENT: &str = "!!!!!!!!";
const WORD: &str = "%%%%%%%%";
const LETTERS: usize = WORD.len();

/// Counts events of all brokers, so that every call is another: no loop.
static EVENTS: AtomicU64 = AtomicU64::new(0);

pub struct Messages {
    template: Vec<u8>,
    /// Where the names of each event stand.
    sessions: Vec<usize>,
    agents: Vec<usize>,
    words: Vec<[usize; 2]>,
}

impl Messages {
    /// For a stream.
    pub fn batches() -> Self {
        let request = StreamEventsRequest {
            sequence: 0,
            events: vec![event(SESSION, AGENT, WORD); BATCH],
        };
        Self::of(request.encode_to_vec())
    }

    /// For single calls.
    pub fn singles() -> Self {
        let request = RecordEventRequest {
            event: Some(event(SESSION, AGENT, WORD)),
        };
        Self::of(request.encode_to_vec())
    }

    fn of(template: Vec<u8>) -> Self {
        let places = |what: &str| -> Vec<usize> {
            let found = template.windows(what.len()).enumerate();
            found
                .filter(|(_, window)| *window == what.as_bytes())
                .map(|(place, _)| place)
                .collect()
        };
        let (sessions, agents, words) = (places(SESSION), places(AGENT), places(WORD));
        let words: Vec<_> = words.chunks(2).map(|two| [two[0], two[1]]).collect();
        assert_eq!([agents.len(), words.len()], [sessions.len(); 2]);
        Self {
            sessions,
            agents,
            words,
            template,
        }
    }

    /// The next one, with a sequence where it is one of a stream.
    pub fn next(&self, sequence: Option<i32>) -> Bytes {
        let mut bytes = self.template.clone();
        for ((session, agent), words) in self.sessions.iter().zip(&self.agents).zip(&self.words) {
            let n = EVENTS.fetch_add(1, Relaxed);
            let generation = n / GENERATION * SESSIONS;
            put(&mut bytes, *session, generation + n % SESSIONS);
            let is_visitor = n.is_multiple_of(VISITORS);
            put(&mut bytes, *agent, if is_visitor { n } else { 0 });
            for word in words {
                put(&mut bytes, *word, n);
            }
        }
        if let Some(sequence) = sequence {
            // Of a field that comes twice the last one counts.
            encoding::int32::encode(1, &sequence, &mut bytes);
        }
        bytes.into()
    }
}

/// An event by itself, of this session.
pub fn single(session: &str) -> Event {
    let mut word = [0; LETTERS];
    put(&mut word, 0, EVENTS.fetch_add(1, Relaxed));
    event(session, "", std::str::from_utf8(&word).unwrap())
}

fn event(session: &str, agent: &str, word: &str) -> Event {
    let line = "all of these lines were read and none of them was found wanting\n";
    let result = line.repeat(RESULT_BYTES / line.len());
    Event {
        session_id: session.to_owned(),
        agent_id: agent.to_owned(),
        body: Some(Body::ToolCall(pb::ToolCall {
            tool: "lookup_setting".to_owned(),
            arguments: Some(Arguments::ArgsJson(format!("{{\"name\": \"{word}\"}}"))),
            outcome: pb::Outcome::Ok.into(),
            result: Some(format!("{word} {result}")),
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// A number in letters: digits would be masked, and so might what looks like
/// hexadecimal ones.
fn put(into: &mut [u8], place: usize, mut number: u64) {
    for letter in &mut into[place..place + LETTERS] {
        *letter = b'g' + (number % 20) as u8;
        number /= 20;
    }
}
