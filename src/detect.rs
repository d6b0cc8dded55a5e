//! The detectors: pure state machines over observations. No clock, no lock, no
//! I/O, nothing that can fail: the same observations give the same findings.
//!
//! To add one: a file here with a type that implements [`Detector`], a line in
//! the registry below, a section in `config/default.toml`, a trace in
//! `tests/it/traces/`, a page in `docs/detectors/` with a row in the README. The
//! layering test fails until all are there.
//!
//! Uses: domain.

mod active_runs;
mod heap;
mod history;
mod lazy_detector;
mod lru_map;
mod registry;
mod streak;

pub use history::{CallEntry, CallText, History, TurnEntry};

use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::domain::{
    CallKind, DetectorExplanation, DetectorId, DetectorOutcome, Observation, Phrase, Precedence,
};
use lazy_detector::LazyDetector;
use registry::{registry, state_type};

/// One way of being stuck.
///
/// The settings are an argument and not a field, so that a session's state
/// holds no copy of them.
pub trait Detector: Default {
    /// Its own keys of `[detect.<name>]`.
    type Settings: DeserializeOwned + Clone + std::fmt::Debug;

    /// Refuses settings that can never fire, with the arithmetic.
    fn check(settings: &Self::Settings) -> Result<(), NeverFires>;

    /// The phrases that it listens for in turns.
    fn phrases(_settings: &Self::Settings) -> impl Iterator<Item = &Phrase> {
        std::iter::empty()
    }

    /// Says why it fires, with these settings.
    fn explain(settings: &Self::Settings) -> DetectorExplanation;

    /// What it says while it remembers nothing, where this observation leaves it
    /// nothing to remember; `None`: it is to look. Asked of those that are held
    /// `in LazyDetector`.
    fn quick_check(_now: &Observation) -> Option<DetectorOutcome> {
        None
    }

    /// Looks at `now`, which is not yet part of `past`.
    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Self::Settings,
    ) -> DetectorOutcome;

    /// A loop with these events was reported and has ended: they count no more,
    /// save in a run that was found and goes on. Left out where a detector counts
    /// what no other does, or asks the history.
    fn consume(&mut self, _cited: &[i32]) {}

    /// Counts start anew: a user spoke, or the session was started again.
    fn reset(&mut self);

    /// What it holds beside itself: it counts as session state.
    fn heap_bytes(&self) -> usize;
}

/// A setting with which a detector could never find anything.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct NeverFires {
    /// The key within `[detect.<name>]`.
    pub key: &'static str,
    /// Another key that it does not agree with.
    pub other_key: Option<&'static str>,
    pub why: String,
}

impl NeverFires {
    pub(crate) fn new(key: &'static str, why: String) -> Self {
        Self {
            key,
            other_key: None,
            why,
        }
    }

    /// The fault may lie with the other key as well.
    pub(crate) fn with_other_key(self, other: &'static str) -> Self {
        Self {
            other_key: Some(other),
            ..self
        }
    }
}

/// Refuses a count below 2: one occurrence is not a loop.
fn check_count(key: &'static str, count: u32, occurrence: &str) -> Result<(), NeverFires> {
    if count >= 2 {
        return Ok(());
    }
    let why = format!("must be at least 2, not {count}: one {occurrence} is not a loop");
    Err(NeverFires::new(key, why))
}

/// Refuses a share that is not above 0 and at most 1; NaN is neither.
fn check_share(key: &'static str, share: f64) -> Result<(), NeverFires> {
    if share > 0.0 && share <= 1.0 {
        return Ok(());
    }
    let why = format!("{share} is not above 0 and at most 1");
    Err(NeverFires::new(key, why))
}

// In the order of rank: of findings that cite equally many calls the first
// describes the loop. Those `in LazyDetector` most sessions give nothing to count.
registry! {
    budget: Budget,
    infra_outage: InfraOutage in LazyDetector,
    polling: Polling in LazyDetector,
    fan_out: FanOut in LazyDetector,
    patch_spiral: PatchSpiral in LazyDetector,
    edit_revert: EditRevert in LazyDetector,
    write_churn: WriteChurn,
    read_loop: ReadLoop,
    test_fail_loop: TestFailLoop,
    cycle: Cycle,
    exact_repeat: ExactRepeat,
    interleaved_repeat: InterleavedRepeat,
    error_streak: ErrorStreak,
    near_repeat: NearRepeat,
    stagnation: Stagnation,
    compaction_loop: CompactionLoop in LazyDetector,
    repetition: Repetition,
    greeting: Greeting in LazyDetector,
    monologue: Monologue in LazyDetector,
    similar_turns: SimilarTurns in LazyDetector,
}

/// Rules are ranked right after this detector.
const RULES_AFTER: &str = "compaction_loop";

/// The most rules there may be: each costs every event something.
pub const RULES_MAX: usize = 32;
// Their ids follow those of the detectors above, and sets of ids are bits.
const _: () = assert!(NAMES.len() + RULES_MAX <= DetectorId::COUNT_MAX);

/// What a rule's name begins with among the detectors.
pub const RULE_PREFIX: &str = "rule:";

/// How a detector or rule stands among the others.
pub fn precedence(id: DetectorId) -> Precedence {
    let before = NAMES
        .iter()
        .take_while(|name| **name != RULES_AFTER)
        .count()
        + 1;
    let rank = match id.index() {
        rule if rule >= NAMES.len() => before + rule - NAMES.len(),
        detector if detector < before => detector,
        detector => detector + RULES_MAX,
    };
    Precedence {
        rank: rank.try_into().unwrap_or(u8::MAX),
        session_wide: NAMES.get(id.index()) == Some(&"budget"),
    }
}

impl Settings {
    /// Whether the budget has caps, and so must see every event.
    pub fn has_caps(&self) -> bool {
        self.budget.enabled && self.budget.own.has_caps()
    }

    /// What a call of this kind counts as: any other, where its kind is not kept
    /// apart.
    pub fn effective_kind(&self, kind: CallKind) -> CallKind {
        let is_separate = match kind {
            CallKind::Ordinary => true,
            CallKind::Poll => self.polling.own.apart,
            CallKind::Outage => self.infra_outage.own.apart,
        };
        if is_separate {
            kind
        } else {
            CallKind::Ordinary
        }
    }

    /// A detector of calls that are not kept apart never sees one.
    fn check_excluded_kinds(&self) -> Result<(), (&'static str, NeverFires)> {
        let kinds = [
            ("polling", self.polling.enabled, self.polling.own.apart),
            (
                "infra_outage",
                self.infra_outage.enabled,
                self.infra_outage.own.apart,
            ),
        ];
        for (name, enabled, apart) in kinds {
            if enabled && !apart {
                let why = "calls that are not kept apart are left to the other detectors, \
                           so it never finds any: set enabled = false as well";
                return Err((
                    name,
                    NeverFires::new("apart", why.to_owned()).with_other_key("enabled"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod testing;
