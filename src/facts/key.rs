use std::hash::{BuildHasher, Hasher};

use foldhash::{
    SharedSeed,
    quality::{FoldHasher, SeedableRandomState},
};

use crate::domain::Sig;

/// The key of all signatures. The server draws one at random when it starts;
/// replay uses a fixed one, so that the same trace always prints the same.
#[derive(Clone, Debug)]
pub struct Key {
    state: SeedableRandomState,
}

/// What a signature is of, so that a path never equals a command.
#[derive(Clone, Copy)]
pub(super) enum Tag {
    Call,
    Target,
    Content,
    State,
    Round,
    Outcome,
    Name,
    Json,
    Words,
    Tool,
    Said,
    Error,
    Result,
    Rule,
    Text,
    Draft,
}

impl Key {
    pub fn random() -> Self {
        let seed = std::collections::hash_map::RandomState::new().hash_one(0);
        Self {
            state: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
        }
    }

    pub fn fixed() -> Self {
        Self {
            state: SeedableRandomState::with_seed(0, SharedSeed::global_fixed()),
        }
    }

    /// The signature of an id within its kind: event ids, turn ids.
    pub fn name(&self, kind: &str, agent: &str, id: &str) -> Sig {
        let mut hasher = self.hasher(Tag::Name);
        for part in [kind, agent, id] {
            hasher.write_usize(part.len());
            hasher.write(part.as_bytes());
        }
        Sig::new(hasher.finish())
    }

    /// The signature of a text that is being written: asked for with each piece.
    pub fn draft(&self, turn_id: &str) -> Sig {
        let mut hasher = self.hasher(Tag::Draft);
        hasher.write(turn_id.as_bytes());
        Sig::new(hasher.finish())
    }

    pub(super) fn hasher(&self, tag: Tag) -> FoldHasher<'static> {
        let mut hasher = self.state.build_hasher();
        hasher.write_u8(tag as u8);
        hasher
    }

    pub(super) fn known(&self, tag: Tag, text: &str) -> Option<Sig> {
        if text.is_empty() {
            return None;
        }
        let mut hasher = self.hasher(tag);
        hasher.write(text.as_bytes());
        Some(Sig::new(hasher.finish()))
    }

    /// The signature of what was hashed, and of whose it is.
    pub(super) fn finish(&self, mut hasher: FoldHasher<'static>, owner: &str) -> Sig {
        hasher.write_usize(owner.len());
        hasher.write(owner.as_bytes());
        Sig::new(hasher.finish())
    }

    pub(super) fn pair(&self, tag: Tag, text: &str, number: u64) -> Sig {
        let mut hasher = self.hasher(tag);
        hasher.write(text.as_bytes());
        hasher.write_u64(number);
        Sig::new(hasher.finish())
    }
}
