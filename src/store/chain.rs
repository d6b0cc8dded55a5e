//! The hash chain of the audit log, and the sum that protects the tombstones.

use crate::domain::{ChainHash, ChainHead, VerdictId};

/// The head of a log without records.
pub(super) const START: ChainHead = ChainHead {
    record: 0,
    hash: ChainHash([0; 32]),
};

pub(super) fn parse_hash(text: &str) -> Option<ChainHash> {
    let hash = blake3::Hash::from_hex(text).ok()?;
    Some(ChainHash(*hash.as_bytes()))
}

/// The head after one more record.
pub(super) fn next_head(head: &ChainHead, id: VerdictId, kind: u8, body: &[u8]) -> ChainHead {
    let record = head.record + 1;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head.hash.0);
    hasher.update(&record.to_le_bytes());
    hasher.update(&id.0.to_be_bytes());
    hasher.update(&[kind]);
    hasher.update(body);
    ChainHead {
        record,
        hash: ChainHash(*hasher.finalize().as_bytes()),
    }
}

/// The sum of the hashes of all terminations in force. It changes if one of them is
/// lost, altered or added outside of a commit, and it is cheap to maintain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TombstoneSum(pub u128);

impl TombstoneSum {
    pub fn add(&mut self, id: VerdictId, body: &[u8]) {
        self.0 = self.0.wrapping_add(digest(id, body));
    }

    pub fn subtract(&mut self, id: VerdictId, body: &[u8]) {
        self.0 = self.0.wrapping_sub(digest(id, body));
    }
}

fn digest(id: VerdictId, body: &[u8]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&id.0.to_be_bytes());
    hasher.update(body);
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    u128::from_le_bytes(bytes)
}
