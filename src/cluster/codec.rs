//! Sessions, events and acts as sealed bytes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::{Message, bytes::Bytes};

use super::{
    exchange::{
        ActCommand, FIELD_SESSION, FIELD_SNOOZE, KIND_AGENT, KIND_RESET, KIND_SNOOZE,
        KIND_TERMINATION,
    },
    keys::session_key,
    seal::ClusterSealer,
};
use crate::{
    domain::{Effect, Event, FrozenSession, SessionId, Verdict, VerdictId, VerdictRecord},
    engine::SharedSession,
    store::{decode_record, encode_record},
};

/// Decodes an event of the API for this session.
pub type DecodeEvent = fn(&SessionId, &[u8]) -> Option<Event>;

/// An event that a state does not have yet.
#[derive(Clone, Debug)]
pub struct EventRecord {
    pub index: i32,
    /// When it arrived.
    pub at: SystemTime,
    /// The message of the API.
    pub bytes: Bytes,
}

/// The first byte of an element of a session's list.
const STATE: u8 = b'S';
const RECORD: u8 = b'R';
/// What acts and verdicts are sealed for.
const VERDICT_CONTEXT: &[u8] = b"verdict";

#[derive(Clone, PartialEq, Message)]
struct StateRecord {
    #[prost(string, tag = "1")]
    profile: String,
    #[prost(btree_map = "string, string", tag = "2")]
    labels: BTreeMap<String, String>,
    #[prost(uint64, tag = "3")]
    last_seen_nanos: u64,
    #[prost(bytes = "vec", tag = "4")]
    head: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    window: Vec<u8>,
    #[prost(int32, tag = "6")]
    events: i32,
}

#[derive(Clone, PartialEq, Message)]
struct SharedEvent {
    #[prost(int32, tag = "1")]
    index: i32,
    #[prost(uint64, tag = "2")]
    at_nanos: u64,
    #[prost(bytes = "bytes", tag = "3")]
    event: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct SharedVerdict {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    record: Vec<u8>,
    #[prost(bool, tag = "3")]
    durable: bool,
}

/// The content of a session's list.
#[derive(Debug, Default)]
pub struct SavedSession {
    /// There is a state or an event.
    pub has_state: bool,
    /// The events that are counted in it.
    pub events: i32,
    /// The events behind the state.
    pub tail: usize,
    pub shared: SharedSession,
    /// Elements that could not be read.
    pub unreadable: usize,
}

pub struct Codec {
    sealer: ClusterSealer,
    decode_event: DecodeEvent,
}

impl Codec {
    pub fn new(sealer: ClusterSealer, decode_event: DecodeEvent) -> Self {
        Self {
            sealer,
            decode_event,
        }
    }

    /// `None`: it cannot be sealed.
    pub fn encode_state(&self, frozen: FrozenSession, events: i32) -> Option<Vec<u8>> {
        let context = session_key(&frozen.id);
        let record = StateRecord {
            profile: frozen.profile.to_string(),
            labels: (*frozen.labels).clone(),
            last_seen_nanos: nanos(frozen.last_seen),
            head: frozen.head,
            window: frozen.window.unwrap_or_default(),
            events,
        };
        self.seal(STATE, &context, &record.encode_to_vec())
    }

    pub fn encode_event(&self, session: &str, record: &EventRecord) -> Option<Vec<u8>> {
        let message = SharedEvent {
            index: record.index,
            at_nanos: nanos(record.at),
            event: record.bytes.clone(),
        };
        self.seal(RECORD, session, &message.encode_to_vec())
    }

    fn seal(&self, kind: u8, context: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = vec![kind];
        self.sealer.seal(context.as_bytes(), bytes, &mut sealed)?;
        Some(sealed)
    }

    /// Reads a session's list: the last state, and the events after it.
    pub fn decode_list(&self, id: &SessionId, list: &[Vec<u8>]) -> SavedSession {
        let mut saved = SavedSession::default();
        let context = session_key(id);
        for element in list.iter().filter(|element| !element.is_empty()) {
            let read = self.decode_element(id, &context, element, &mut saved);
            if read.is_none() {
                saved.unreadable += 1;
            }
        }
        saved.tail = saved.shared.events.len();
        saved
    }

    fn decode_element(
        &self,
        id: &SessionId,
        context: &str,
        element: &[u8],
        saved: &mut SavedSession,
    ) -> Option<()> {
        let (kind, sealed) = element.split_first()?;
        let bytes = self.sealer.open(context.as_bytes(), sealed)?;
        match *kind {
            STATE => {
                let record = StateRecord::decode(&*bytes).ok()?;
                saved.has_state = true;
                saved.events = record.events;
                saved.shared = SharedSession {
                    frozen: Some(FrozenSession {
                        id: id.clone(),
                        profile: record.profile.into(),
                        labels: Arc::new(record.labels),
                        last_seen: time(record.last_seen_nanos),
                        head: record.head,
                        window: Some(record.window).filter(|window| !window.is_empty()),
                    }),
                    events: Vec::new(),
                };
            }
            RECORD => {
                let record = SharedEvent::decode(&*bytes).ok()?;
                // A state that was saved later may have it already.
                if record.index >= saved.events {
                    let event = (self.decode_event)(id, &record.event)?;
                    saved.shared.events.push((event, time(record.at_nanos)));
                    saved.has_state = true;
                    saved.events = record.index.saturating_add(1);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// A verdict for the feed or an act. `durable`: it is on the disk of this replica.
    pub fn encode_verdict(&self, record: &VerdictRecord, durable: bool) -> Option<Vec<u8>> {
        let message = SharedVerdict {
            id: record.verdict.id.0.to_be_bytes().to_vec(),
            record: encode_record(record),
            durable: durable || record.verdict.durable,
        };
        let mut sealed = Vec::new();
        self.sealer
            .seal(VERDICT_CONTEXT, &message.encode_to_vec(), &mut sealed)?;
        Some(sealed)
    }

    pub fn decode_verdict(&self, sealed: &[u8]) -> Option<VerdictRecord> {
        let bytes = self.sealer.open(VERDICT_CONTEXT, sealed)?;
        let message = SharedVerdict::decode(&*bytes).ok()?;
        let id = VerdictId(u128::from_be_bytes(message.id.try_into().ok()?));
        let record = decode_record(id, &message.record)?;
        let verdict = Verdict {
            durable: message.durable,
            is_foreign: true,
            ..Arc::unwrap_or_clone(record.verdict)
        };
        Some(VerdictRecord {
            verdict: Arc::new(verdict),
            ..record
        })
    }

    /// The command of an act. `None`: the verdict changes no session, or has expired.
    pub fn encode_act(
        &self,
        record: &VerdictRecord,
        durable: bool,
        (now, tombstone_age_max): (SystemTime, Duration),
    ) -> Option<ActCommand> {
        let verdict = &record.verdict;
        let retained_until = verdict.id.time() + tombstone_age_max;
        let (field, kind, until) = match record.effect {
            Effect::Terminated if verdict.agent.is_main() => {
                (FIELD_SESSION.to_owned(), KIND_TERMINATION, retained_until)
            }
            Effect::Terminated => {
                let field = format!("g:{}", verdict.agent.as_str());
                (field, KIND_AGENT, retained_until)
            }
            Effect::Reset => (FIELD_SESSION.to_owned(), KIND_RESET, retained_until),
            Effect::Snoozed(until) => (FIELD_SNOOZE.to_owned(), KIND_SNOOZE, until),
            Effect::None | Effect::Disobeyed | Effect::Rated { .. } => return None,
        };
        let left = until.duration_since(now).ok()?;
        let mut value = vec![kind];
        value.extend_from_slice(format!("{:032x}", verdict.id.0).as_bytes());
        value.extend_from_slice(&self.encode_verdict(record, durable)?);
        Some(ActCommand {
            session: verdict.session.clone(),
            field,
            id: verdict.id,
            value,
            ttl_millis: u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1),
        })
    }

    /// The reverse, of the value.
    pub fn decode_act(&self, value: &[u8]) -> Option<VerdictRecord> {
        self.decode_verdict(value.get(ACT_HEADER_BYTES..)?)
    }
}

/// The kind and the id.
pub(super) const ACT_HEADER_BYTES: usize = 1 + 32;

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn time(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}
