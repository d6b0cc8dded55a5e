//! Keyed signatures. Calls and outcomes are compared by their hashes alone, and the input
//! is untrusted: without the key two different texts with one signature cannot be
//! constructed.

use std::hash::{BuildHasher, Hasher};

use foldhash::{
    SharedSeed, fast,
    quality::{FoldHasher, SeedableRandomState},
};

use crate::domain::Sig;

/// The key of all signatures. The server derives it from its secret, or draws a random one
/// when it starts; a replay uses a fixed one, so that a trace always prints the same.
#[derive(Clone, Debug)]
pub struct HashKey {
    /// For texts that are hashed in pieces.
    state: SeedableRandomState,
    /// One seed per kind, for texts that are hashed at once. Most texts of a call are
    /// short; a hasher that accepts further pieces costs several times as much for them.
    seeds: [u64; SignatureKind::COUNT],
    shared_seed: &'static SharedSeed,
}

macro_rules! signature_kinds {
    ($($kind:ident),* $(,)?) => {
        /// What a signature is of. It is part of the hash, so that a path never equals a
        /// command.
        #[derive(Clone, Copy)]
        pub(crate) enum SignatureKind {
            $($kind),*
        }

        impl SignatureKind {
            /// Counted from the list itself: every kind has a seed.
            const COUNT: usize = [$(Self::$kind),*].len();
        }
    };
}

// The order is part of the hashes: add new kinds at the end.
signature_kinds! {
    Call,
    Target,
    Content,
    State,
    Round,
    Outcome,
    Name,
    Json,
    JsonText,
    JsonNumber,
    JsonEntry,
    JsonObject,
    JsonList,
    Words,
    Tool,
    Response,
    Error,
    Result,
    Rule,
    Text,
    Draft,
    Identity,
}

/// The seeds of a key that outlives the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySeeds(pub [u64; 2]);

/// Without the seeds, which are secret.
impl std::fmt::Debug for KeySeeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySeeds")
    }
}

impl HashKey {
    /// The key of these seeds. Each call leaks some 50 bytes, because hashers refer to
    /// the seed for as long as the process runs.
    pub fn from_seeds(KeySeeds([seed, shared]): KeySeeds) -> Self {
        Self::new(seed, Box::leak(Box::new(SharedSeed::from_u64(shared))))
    }

    pub fn random() -> Self {
        let seed = std::collections::hash_map::RandomState::new().hash_one(0);
        Self::new(seed, SharedSeed::global_random())
    }

    pub fn fixed() -> Self {
        Self::new(0, SharedSeed::global_fixed())
    }

    fn new(seed: u64, shared_seed: &'static SharedSeed) -> Self {
        let state = SeedableRandomState::with_seed(seed, shared_seed);
        let seeds = std::array::from_fn(|kind| state.hash_one(kind));
        Self {
            state,
            seeds,
            shared_seed,
        }
    }

    /// The signature of an id within a kind of ids, such as event ids or turn ids.
    pub fn id_signature(&self, kind: &str, agent: &str, id: &str) -> Sig {
        let mut hasher = self.hasher(SignatureKind::Name);
        for part in [kind, agent, id] {
            hasher.write_usize(part.len());
            hasher.write(part.as_bytes());
        }
        Sig::new(hasher.finish())
    }

    /// The signature of a turn that is being streamed. Computed for each delta.
    pub fn draft_signature(&self, turn_id: &str) -> Sig {
        let mut hasher = self.hasher(SignatureKind::Draft);
        hasher.write(turn_id.as_bytes());
        Sig::new(hasher.finish())
    }

    pub(crate) fn hasher(&self, kind: SignatureKind) -> FoldHasher<'static> {
        let mut hasher = self.state.build_hasher();
        hasher.write_u8(kind as u8);
        hasher
    }

    #[inline]
    fn seeded_hasher(&self, kind: SignatureKind) -> fast::FoldHasher<'static> {
        fast::FoldHasher::with_seed(self.seeds[kind as usize], self.shared_seed)
    }

    /// The hash of a whole text.
    #[inline]
    pub(crate) fn hash_text(&self, kind: SignatureKind, text: &str) -> u64 {
        let mut hasher = self.seeded_hasher(kind);
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    /// The hash of two numbers, in this order.
    #[inline]
    pub(crate) fn hash_pair(&self, kind: SignatureKind, first: u64, second: u64) -> u64 {
        let mut hasher = self.seeded_hasher(kind);
        hasher.write_u128(u128::from(first) << 64 | u128::from(second));
        hasher.finish()
    }

    pub(crate) fn signature_if_present(&self, kind: SignatureKind, text: &str) -> Option<Sig> {
        (!text.is_empty()).then(|| self.signature(kind, text, 0))
    }

    /// The signature of what was hashed together with its owner.
    pub(crate) fn finish_signature(&self, mut hasher: FoldHasher<'static>, owner: &str) -> Sig {
        hasher.write_usize(owner.len());
        hasher.write(owner.as_bytes());
        Sig::new(hasher.finish())
    }

    #[inline]
    pub(crate) fn signature(&self, kind: SignatureKind, text: &str, number: u64) -> Sig {
        Sig::new(self.hash_pair(kind, self.hash_text(kind, text), number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_kind_has_a_seed_of_its_own() {
        use SignatureKind::{Draft, Identity};
        let key = HashKey::fixed();
        assert_ne!(key.hash_text(Draft, "x"), key.hash_text(Identity, "x"));
        assert_ne!(key.hash_pair(Draft, 1, 2), key.hash_pair(Identity, 1, 2));
    }
}
