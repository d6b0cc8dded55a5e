//! Text algorithms that know nothing of events: masking, repetition, shell
//! words, tokens, sketches, phrases and keyed hashes.
//!
//! Uses: domain.

mod block;
pub mod canonical;
pub mod key;
mod listener;
mod lowest;
pub mod mask;
pub mod memo;
mod repeats;
mod script;
pub mod shell_words;
mod sketch;
mod stem;
mod token;
pub mod words;

pub use key::Key;
pub use listener::{Listener, TooManyPhrases};
pub use repeats::Watcher;
pub use sketch::Sketcher;
