//! The requests of streams with their events and deltas still encoded. They are
//! decoded one by one, so that one that cannot be decoded is answered in its own
//! result and the stream's other sessions continue.

use prost::{Message, bytes::Bytes};

use super::InvalidArgument;

/// The `ErrorInfo` reason of an entry that cannot be decoded.
pub(super) const UNDECODABLE: &str = "UNDECODABLE";

/// `StreamEventsRequest` on the wire.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedEventsRequest {
    #[prost(int32, tag = "1")]
    pub sequence: i32,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub events: Vec<Bytes>,
}

/// `StreamDeltasRequest` on the wire.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedDeltasRequest {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub deltas: Vec<Bytes>,
}

/// An entry of a batch. If it cannot be decoded, the message has the fields before
/// the one at fault.
pub(super) struct DecodedEntry<M> {
    pub message: M,
    pub result: Result<(), InvalidArgument>,
}

/// Decodes the entry at this position of the list.
pub(super) fn decode_entry<M: Message + Default>(
    list: &str,
    position: usize,
    bytes: Bytes,
) -> DecodedEntry<M> {
    let mut message = M::default();
    let result = message.merge(bytes).map_err(|error| {
        InvalidArgument::with_reason(UNDECODABLE, &format!("{list}[{position}]"), error)
    });
    DecodedEntry { message, result }
}
