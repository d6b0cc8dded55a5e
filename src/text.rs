//! Text algorithms that know nothing of events: masking, repetition, shell
//! words, tokens, sketches, phrases and keyed hashes.
//!
//! Uses: domain.

mod bottom_k;
pub mod json_hash;
pub mod key;
pub mod mask;
pub mod memo;
mod phrases;
mod repetition;
pub mod shell_words;
mod simd;
mod sketch;
mod stem;
mod token;
mod unicode;
pub mod words;

pub use key::HashKey;
pub use phrases::{PhraseMatcher, TooManyPhrases};
pub use repetition::RepetitionTracker;
pub use sketch::Sketcher;
