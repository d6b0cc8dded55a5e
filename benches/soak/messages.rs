//! The brokers' messages. Each is a copy of an encoded template with other names in
//! it, because the generator must cost little beside the service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prost::{Message, bytes::Bytes, encoding};
use unstuck::pb::{
    self, Event, RecordEventRequest, StreamEventsRequest, event::Body, tool_call::Arguments,
};

/// Events in a message of a stream.
pub const BATCH: usize = 8;
/// Live sessions. All brokers send events of the same ones.
const SESSIONS: u64 = 100;
/// Events after which new sessions replace them. The old ones become idle.
const GENERATION: u64 = 50_000;
/// One event in this many has a new agent, which exceeds `agents_max`.
const NEW_AGENT_INTERVAL: u64 = 8;
/// A long result costs the service time and the generator little.
const RESULT_BYTES: usize = 2_000;

/// Placeholders in a template, as long as the names that replace them.
const SESSION: &str = "@@@@@@@@";
const AGENT: &str = "!!!!!!!!";
const WORD: &str = "%%%%%%%%";
const LETTERS: usize = WORD.len();

/// Counts events of all brokers. Makes every call different, so that none is a loop.
static EVENTS: AtomicU64 = AtomicU64::new(0);

pub struct Messages {
    template: Vec<u8>,
    /// Byte offsets of the placeholders of each event.
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
        Self::from_template(request.encode_to_vec())
    }

    /// For single calls.
    pub fn singles() -> Self {
        let request = RecordEventRequest {
            event: Some(event(SESSION, AGENT, WORD)),
        };
        Self::from_template(request.encode_to_vec())
    }

    fn from_template(template: Vec<u8>) -> Self {
        let sessions = offsets(&template, SESSION);
        let agents = offsets(&template, AGENT);
        // A word is in the arguments and in the result of a call.
        let words: Vec<_> = offsets(&template, WORD)
            .chunks(2)
            .map(|two| [two[0], two[1]])
            .collect();
        assert_eq!([agents.len(), words.len()], [sessions.len(); 2]);
        Self {
            sessions,
            agents,
            words,
            template,
        }
    }

    /// The next message; with a sequence if it is sent on a stream.
    pub fn next(&self, sequence: Option<i32>) -> Bytes {
        let mut bytes = self.template.clone();
        for ((session, agent), words) in self.sessions.iter().zip(&self.agents).zip(&self.words) {
            let n = EVENTS.fetch_add(1, Relaxed);
            let generation = n / GENERATION * SESSIONS;
            put(&mut bytes, *session, generation + n % SESSIONS);
            let is_new_agent = n.is_multiple_of(NEW_AGENT_INTERVAL);
            put(&mut bytes, *agent, if is_new_agent { n } else { 0 });
            for word in words {
                put(&mut bytes, *word, n);
            }
        }
        if let Some(sequence) = sequence {
            // The field is in the template too. The last occurrence counts.
            encoding::int32::encode(1, &sequence, &mut bytes);
        }
        bytes.into()
    }
}

/// A single event of this session.
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

fn offsets(template: &[u8], placeholder: &str) -> Vec<usize> {
    template
        .windows(placeholder.len())
        .enumerate()
        .filter(|(_, window)| *window == placeholder.as_bytes())
        .map(|(offset, _)| offset)
        .collect()
}

/// Writes a number in letters. Digits are masked by the service, and so may be
/// what looks hexadecimal.
fn put(bytes: &mut [u8], offset: usize, mut number: u64) {
    for letter in &mut bytes[offset..offset + LETTERS] {
        *letter = b'g' + (number % 20) as u8;
        number /= 20;
    }
}
