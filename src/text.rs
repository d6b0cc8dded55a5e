//! Text algorithms that know nothing of events.
//!
//! - `harness`: a result without what the agent's harness adds to it.
//! - `echo`: an answer without the echo of the arguments.
//! - `mask`: a result or an error with the parts taken out that change on every call.
//! - `repetition`: finds text that repeats while it is being written.
//! - `tokens`: words as hashes, and sketches of turns.
//! - `phrases`: finds configured phrases in a stream of text.
//! - `shell_words`: splits a command line into words and operators.
//! - `sql`, `outage`, `failure_report`, `status`: recognise a statement that changes data,
//!   an outage of another system, the report of a failed run, and a status of something
//!   that is under way or dead.
//! - `answer`: whether an answer says nothing, no, or something; `ack`: results without
//!   information.
//! - `no_change`: recognises the answer of a write that changed nothing.
//! - `query_words`: the words of a search query, whatever their order.
//! - `answer_names`: what a prose answer names: files, numbers.
//! - `figures`: the counts and measurements in an error.
//! - `similarity`: how similar two turns are, by their words or by a model.
//! - `json_hash`: a hash of a JSON value that ignores key order and number format.
//! - `key`: keyed signatures; `memo`: a lock-free cache of values computed from texts.
//! - `work_budget`: the bound on the work that a text may cause.
//! - `simd`, `unicode`, `mixing`: what the others are built from.
//!
//! Uses: domain.

pub mod ack;
pub mod answer;
pub mod answer_names;
pub mod echo;
pub mod failure_report;
pub mod figures;
pub mod harness;
pub mod json_hash;
pub mod key;
pub mod mask;
pub mod memo;
mod mixing;
pub mod no_change;
pub mod outage;
mod phrases;
pub mod query_words;
mod repetition;
pub mod shell_words;
mod simd;
mod similarity;
pub mod sql;
pub mod status;
pub mod tokens;
mod unicode;
pub(crate) mod work_budget;

pub use key::{HashKey, KeySeeds};
pub use phrases::{PhraseMatcher, TooManyPhrases};
pub use repetition::RepetitionTracker;
pub use similarity::{Model, ModelError, WordOverlap, load_model};
pub use tokens::Sketcher;
// Clients compute the key of a call too.
pub(crate) use unstuck_client::call_key;
