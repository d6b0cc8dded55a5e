use std::hash::{BuildHasher, Hasher};

use foldhash::{
    SharedSeed, fast,
    quality::{FoldHasher, SeedableRandomState},
};

use crate::domain::Sig;

/// The key of all signatures. The server draws one at random when it starts;
/// replay uses a fixed one, so that the same trace always prints the same.
#[derive(Clone, Debug)]
pub struct HashKey {
    /// For what is hashed piece by piece.
    state: SeedableRandomState,
    /// A seed for each tag, and what all share: for what is hashed at once. Most
    /// of a call is short texts, for which a hasher that must be ready for more
    /// pieces costs several times as much.
    seeds: [u64; SignatureKind::COUNT],
    shared_seed: &'static SharedSeed,
}

/// What a signature is of, so that a path never equals a command.
#[derive(Clone, Copy)]
pub(crate) enum SignatureKind {
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
    /// The last one.
    Text,
    Draft,
}

impl SignatureKind {
    const COUNT: usize = Self::Text as usize + 1;
}

impl HashKey {
    pub fn random() -> Self {
        let seed = std::collections::hash_map::RandomState::new().hash_one(0);
        Self::new(seed, SharedSeed::global_random())
    }

    pub fn fixed() -> Self {
        Self::new(0, SharedSeed::global_fixed())
    }

    fn new(seed: u64, shared: &'static SharedSeed) -> Self {
        let state = SeedableRandomState::with_seed(seed, shared);
        let seeds = std::array::from_fn(|tag| state.hash_one(tag));
        Self {
            state,
            seeds,
            shared_seed: shared,
        }
    }

    /// The signature of an id within its kind: event ids, turn ids.
    pub fn id_signature(&self, kind: &str, agent: &str, id: &str) -> Sig {
        let mut hasher = self.hasher(SignatureKind::Name);
        for part in [kind, agent, id] {
            hasher.write_usize(part.len());
            hasher.write(part.as_bytes());
        }
        Sig::new(hasher.finish())
    }

    /// The signature of a text that is being written: asked for with each piece.
    pub fn draft_signature(&self, turn_id: &str) -> Sig {
        let mut hasher = self.hasher(SignatureKind::Draft);
        hasher.write(turn_id.as_bytes());
        Sig::new(hasher.finish())
    }

    pub(crate) fn hasher(&self, tag: SignatureKind) -> FoldHasher<'static> {
        let mut hasher = self.state.build_hasher();
        hasher.write_u8(tag as u8);
        hasher
    }

    #[inline]
    fn seeded_hasher(&self, tag: SignatureKind) -> fast::FoldHasher<'static> {
        fast::FoldHasher::with_seed(self.seeds[tag as usize], self.shared_seed)
    }

    /// The hash of a whole text.
    #[inline]
    pub(crate) fn hash_text(&self, tag: SignatureKind, text: &str) -> u64 {
        let mut hasher = self.seeded_hasher(tag);
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    /// The hash of two numbers, in this order.
    #[inline]
    pub(crate) fn hash_pair(&self, tag: SignatureKind, first: u64, second: u64) -> u64 {
        let mut hasher = self.seeded_hasher(tag);
        hasher.write_u128(u128::from(first) << 64 | u128::from(second));
        hasher.finish()
    }

    pub(crate) fn signature_if_present(&self, tag: SignatureKind, text: &str) -> Option<Sig> {
        (!text.is_empty()).then(|| self.signature(tag, text, 0))
    }

    /// The signature of what was hashed, and of whose it is.
    pub(crate) fn finish_signature(&self, mut hasher: FoldHasher<'static>, owner: &str) -> Sig {
        hasher.write_usize(owner.len());
        hasher.write(owner.as_bytes());
        Sig::new(hasher.finish())
    }

    #[inline]
    pub(crate) fn signature(&self, tag: SignatureKind, text: &str, number: u64) -> Sig {
        Sig::new(self.hash_pair(tag, self.hash_text(tag, text), number))
    }
}
