//! The frame: the unit of one write and one sync.
//!
//! ```text
//! magic 4 | payload length 4 | hash of the frame before 32 | own hash 32 | payload
//! payload: entries of  length 4 | kind 1 | verdict id 16 | body
//! ```
//! Numbers are little-endian, ids big-endian. The own hash is BLAKE3 over the rest of
//! the frame. A frame can therefore be checked alone, and frames form a chain.

use std::io::{self, Read};

use crate::domain::VerdictId;

pub(super) type Hash = [u8; 32];

/// The hash that the first frame of a chain refers to.
pub(super) const GENESIS: Hash = [0; 32];

const MAGIC: [u8; 4] = *b"UNS1";
const HEADER_BYTES: usize = 72;
const ENTRY_HEADER_BYTES: usize = 21;
/// The most bytes of a payload that is written. A greater length in a header is damage,
/// and no memory is allocated for it.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One record of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEntry<'a> {
    pub kind: u8,
    pub id: VerdictId,
    pub body: &'a [u8],
}

impl LogEntry<'_> {
    pub fn append_to(&self, payload: &mut Vec<u8>) {
        let bytes = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        payload.extend_from_slice(&bytes.to_le_bytes());
        payload.push(self.kind);
        payload.extend_from_slice(&self.id.0.to_be_bytes());
        payload.extend_from_slice(self.body);
    }
}

/// Encodes a frame with this payload. Returns it with its hash.
pub(super) fn seal(before: &Hash, payload: &[u8]) -> (Vec<u8>, Hash) {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&bytes.to_le_bytes());
    frame.extend_from_slice(before);
    let hash = hash(&frame, payload);
    frame.extend_from_slice(&hash);
    frame.extend_from_slice(payload);
    (frame, hash)
}

fn hash(header: &[u8], payload: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header);
    hasher.update(payload);
    *hasher.finalize().as_bytes()
}

/// A complete frame.
pub(super) struct Frame<'a> {
    pub before: Hash,
    pub hash: Hash,
    payload: &'a [u8],
}

impl Frame<'_> {
    pub fn bytes(&self) -> u64 {
        (HEADER_BYTES + self.payload.len()) as u64
    }

    /// The entries. The iterator stops early if an entry does not fit into the payload.
    /// A frame that this program wrote has no such entry, and the hash proves that it is
    /// unchanged.
    pub fn entries(&self) -> impl Iterator<Item = LogEntry<'_>> {
        let mut rest = self.payload;
        std::iter::from_fn(move || {
            let (header, behind) = rest.split_at_checked(ENTRY_HEADER_BYTES)?;
            let (bytes, named) = header.split_first_chunk::<4>()?;
            let (kind, id) = named.split_first()?;
            let bytes = usize::try_from(u32::from_le_bytes(*bytes)).ok()?;
            let (body, next) = behind.split_at_checked(bytes)?;
            rest = next;
            Some(LogEntry {
                kind: *kind,
                id: VerdictId(u128::from_be_bytes(id.try_into().ok()?)),
                body,
            })
        })
    }
}

/// Reads frames in sequence.
pub(super) struct Frames<R> {
    from: R,
    buffer: Vec<u8>,
}

/// The result of reading one frame.
pub(super) enum Next<'a> {
    Frame(Frame<'a>),
    /// The end of the file.
    End,
    /// Bytes that are not a complete frame.
    Damage,
}

impl<R: Read> Frames<R> {
    pub fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
        }
    }

    pub fn next(&mut self) -> io::Result<Next<'_>> {
        self.buffer.clear();
        let header = self.read(HEADER_BYTES)?;
        if header == 0 {
            return Ok(Next::End);
        }
        let Some(payload_bytes) = payload_bytes(&self.buffer) else {
            return Ok(Next::Damage);
        };
        self.read(payload_bytes)?;
        Ok(whole(&self.buffer).map_or(Next::Damage, Next::Frame))
    }

    /// Reads this many more bytes, or all that are left.
    fn read(&mut self, bytes: usize) -> io::Result<usize> {
        let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.from
            .by_ref()
            .take(wanted)
            .read_to_end(&mut self.buffer)
    }
}

/// The frame at the beginning of these bytes, if it is complete.
fn whole(bytes: &[u8]) -> Option<Frame<'_>> {
    let payload_bytes = payload_bytes(bytes)?;
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let payload = rest.get(..payload_bytes)?;
    let (hashed, own) = header.split_at_checked(HEADER_BYTES - 32)?;
    let own: Hash = own.try_into().ok()?;
    let before: Hash = hashed.get(8..)?.try_into().ok()?;
    (hash(hashed, payload) == own).then_some(Frame {
        before,
        hash: own,
        payload,
    })
}

fn payload_bytes(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_BYTES)?.strip_prefix(&MAGIC)?;
    let bytes = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
    let bytes = usize::try_from(bytes).ok()?;
    (bytes <= PAYLOAD_BYTES_MAX).then_some(bytes)
}

/// Whether these bytes contain a complete frame. If such a frame follows damage, durable
/// data is damaged, because a frame is written only after the one before it is durable.
pub(super) fn holds_a_frame(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(at) = rest.windows(MAGIC.len()).position(|four| four == MAGIC) {
        if whole(&rest[at..]).is_some() {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_frames() -> (Vec<u8>, usize) {
        let mut payload = Vec::new();
        for (kind, body) in [(1, &b"one"[..]), (2, b"")] {
            let id = VerdictId(u128::from(kind));
            LogEntry { kind, id, body }.append_to(&mut payload);
        }
        let (mut bytes, hash) = seal(&GENESIS, &payload);
        let first = bytes.len();
        bytes.extend(seal(&hash, b"").0);
        (bytes, first)
    }

    #[test]
    fn what_was_sealed_is_read_again() {
        let (bytes, _) = two_frames();
        let mut frames = Frames::new(&*bytes);
        let Next::Frame(first) = frames.next().unwrap() else {
            panic!("a frame")
        };
        let entries: Vec<_> = first.entries().map(|e| (e.kind, e.id.0, e.body)).collect();
        assert_eq!(entries, [(1, 1, &b"one"[..]), (2, 2, b"")]);
        let hash = first.hash;
        assert!(matches!(frames.next().unwrap(), Next::Frame(f) if f.before == hash));
        assert!(matches!(frames.next().unwrap(), Next::End));
    }

    #[test]
    fn any_changed_or_missing_byte_is_damage() {
        let (bytes, first) = two_frames();
        for at in 0..first {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(matches!(
                Frames::new(&*changed).next().unwrap(),
                Next::Damage
            ));
            assert!(holds_a_frame(&changed), "the second is whole");
        }
        for end in 1..first {
            let cut = &bytes[..end];
            assert!(matches!(Frames::new(cut).next().unwrap(), Next::Damage));
            assert!(!holds_a_frame(cut));
        }
    }
}
