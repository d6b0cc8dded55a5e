//! The detectors: pure state machines over observations. No clock, no lock, no
//! I/O, nothing that can fail: the same observations give the same findings.
//!
//! To add one: a file here with a type that implements [`Detector`], a line in
//! the registry below, a section in `config/default.toml`, a trace in
//! `tests/it/traces/`. The layering test fails until all are there.
//!
//! Uses: domain.

mod history;
mod registry;

pub use history::{Entry, History, TurnEntry, Words};

use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::domain::{Look, Observation};
use registry::registry;

/// One way of being stuck.
///
/// The settings are an argument and not a field, so that a session's state
/// holds no copy of them.
pub trait Detector: Default {
    /// Its own keys of `[detect.<name>]`.
    type Settings: DeserializeOwned + Clone + std::fmt::Debug;

    /// Refuses settings that can never fire, with the arithmetic.
    fn check(settings: &Self::Settings) -> Result<(), Futile>;

    /// Looks at `now`, which is not yet part of `past`.
    fn observe(&mut self, now: &Observation, past: &History, settings: &Self::Settings) -> Look;

    /// Counts start anew: a user spoke, or the session was started again.
    fn reset(&mut self);
}

/// A setting with which a detector could never find anything.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct Futile {
    /// The key within `[detect.<name>]`.
    pub key: &'static str,
    pub why: String,
}

impl Futile {
    fn new(key: &'static str, why: String) -> Self {
        Self { key, why }
    }
}

// In the order of rank: of findings that cite equally many calls the first
// describes the loop.
registry! {
    exact_repeat: ExactRepeat,
    similar_turns: SimilarTurns,
}

#[cfg(test)]
mod testing;
