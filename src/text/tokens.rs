//! Words as hashes, so that two texts can be compared without keeping either.
//!
//! - `token`: the hash of one whitespace-separated token of a turn.
//! - `stem`: the hash of a word's first letters, so that inflected forms are equal.
//! - `bottom_k`: keeps the k lowest hashes of a stream, a fair sample of its words.
//! - `sketcher`: reads a turn's text once and produces its sketch from the three above.
//! - `argument_words`: the words of a tool call's arguments, numbers left out.
//!
//! None of these hashes has a key. A sample of the lowest hashes must be the same on
//! a server and in a replay, or one trace could give two verdicts. An agent that makes
//! words collide only makes its own turns look alike, which repeating them does too.

mod argument_words;
mod bottom_k;
mod sketcher;
mod stem;
mod token;

pub(crate) use argument_words::ArgumentWords;
pub use sketcher::Sketcher;
