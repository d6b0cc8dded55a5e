//! The detectors: pure state machines over observations. They have no clock, no
//! lock and no I/O, and cannot fail: the same observations give the same
//! findings.
//!
//! ARCHITECTURE.md lists the steps to add a detector, with the test that asks for each.
//!
//! A detector's doc says when it fires, when it resets, what it costs per event
//! and where its defaults come from. All of them reset on a message of the user
//! (except `test_fail_loop` and `budget`) and on a new run.
//!
//! Uses: domain.

mod active_runs;
mod heap;
mod history;
mod lazy_detector;
mod lru_map;
mod registry;
mod streak;

pub use history::{CallEntry, CallText, History, RefusedCall, TurnEntry};

use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::domain::{
    BUDGET, CallKind, DetectorExplanation, DetectorId, DetectorOutcome, Evidence, Observation,
    ObservationBody, Phrase, Precedence,
};
use lazy_detector::LazyDetector;
use registry::{registry, state_type};

/// One kind of loop.
///
/// The settings are an argument and not a field, so that a session's state
/// stores no copy of them.
///
/// Shared parts: call-based with a count: use `Streak` and implement `consume`;
/// path-based: `LruMap`; with other calls between: `ActiveRuns`.
pub trait Detector: Default {
    /// The keys of `[detect.<name>]` that only this detector has.
    type Settings: DeserializeOwned + Clone + std::fmt::Debug;

    /// Rejects settings with which the detector can never fire; the error shows
    /// the arithmetic.
    fn check(settings: &Self::Settings) -> Result<(), NeverFires>;

    /// The phrases that the detector searches for in turns.
    fn phrases(_settings: &Self::Settings) -> impl Iterator<Item = &Phrase> {
        std::iter::empty()
    }

    /// Explains to a person when the detector fires with these settings.
    fn explain(settings: &Self::Settings) -> DetectorExplanation;

    /// Explains verdicts with this evidence. A detector with several rules names only
    /// those that matched.
    fn explain_matches(settings: &Self::Settings, _evidence: &[&Evidence]) -> DetectorExplanation {
        Self::explain(settings)
    }

    /// For a detector that has no state yet: the outcome if this observation
    /// cannot start any; `None` if `observe` must run and the state be allocated.
    /// Called only for detectors registered `in LazyDetector`.
    fn quick_check(_now: &Observation) -> Option<DetectorOutcome> {
        None
    }

    /// Updates the state with `now`, which is not yet part of `past`.
    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Self::Settings,
    ) -> DetectorOutcome;

    /// Drops the events that a reported and ended loop cites from the counts, except
    /// from a run that this detector found itself, which can still be extended. A
    /// detector need not implement this if no other detector counts its events, or if
    /// it reads them from the history, which marks cited calls itself.
    fn consume(&mut self, _cited: &[i32]) {}

    /// Restarts all counts, on a message of the user or a new run.
    fn reset(&mut self);

    /// On a message of the user. Only counts of one call that fails again and again with
    /// the same error may survive it: the user has not helped it.
    fn reset_for_user(&mut self) {
        self.reset();
    }

    /// Heap bytes of the state, without `size_of::<Self>()`. Part of the
    /// session's memory use.
    fn heap_bytes(&self) -> usize;
}

/// A setting with which a detector can never fire.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct NeverFires {
    /// The key within `[detect.<name>]`.
    pub key: &'static str,
    /// Another key that conflicts with it.
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

    /// Names a second key that may be the wrong one.
    pub(crate) fn with_other_key(self, other: &'static str) -> Self {
        Self {
            other_key: Some(other),
            ..self
        }
    }
}

/// The quick check of a detector that considers only turns.
#[inline]
fn skip_unless_turn(now: &Observation) -> Option<DetectorOutcome> {
    let is_turn = matches!(now.body, ObservationBody::Turn(_));
    (!is_turn).then_some(DetectorOutcome::NotApplicable)
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

// In the order of rank: among findings that cite equally many calls, the one of
// the first detector describes the loop. Detectors that have nothing to count in
// most sessions are wrapped `in LazyDetector`, so they use no memory there.
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

/// The operator's rules rank right after this detector.
const RULES_AFTER: &str = "compaction_loop";

/// Upper bound for the number of rules, because each one costs time on every
/// event.
pub const RULES_MAX: usize = 32;
// Rule ids follow the detector ids, and sets of ids are bits of a `u64`.
const _: () = assert!(NAMES.len() + RULES_MAX <= DetectorId::COUNT_MAX);

/// Prefix of a rule's name where detectors are named.
pub const RULE_PREFIX: &str = "rule:";

/// The precedence of a detector or rule among the others.
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
        session_wide: NAMES.get(id.index()) == Some(&BUDGET),
    }
}

impl Settings {
    /// Whether the budget has caps. If so, it must observe every event.
    pub fn has_caps(&self) -> bool {
        self.budget.enabled && self.budget.own.has_caps()
    }

    /// The kind that a call counts as. Polls and outages count as ordinary calls
    /// if the settings do not exclude them from the other detectors.
    pub fn effective_kind(&self, kind: CallKind) -> CallKind {
        let is_separate = match kind {
            CallKind::Ordinary => true,
            CallKind::Poll => self.polling.own.exclude_from_others,
            CallKind::Outage => self.infra_outage.own.exclude_from_others,
        };
        if is_separate {
            kind
        } else {
            CallKind::Ordinary
        }
    }

    /// Rejects a detector of polls or outages that is enabled while these count
    /// as ordinary calls, because it would never observe one.
    fn check_excluded_kinds(&self) -> Result<(), (&'static str, NeverFires)> {
        let kinds = [
            (
                "polling",
                self.polling.enabled,
                self.polling.own.exclude_from_others,
            ),
            (
                "infra_outage",
                self.infra_outage.enabled,
                self.infra_outage.own.exclude_from_others,
            ),
        ];
        for (name, enabled, excluded) in kinds {
            if enabled && !excluded {
                let why = "without it these calls are left to the other detectors, so this one \
                           never fires: set enabled = false as well";
                return Err((
                    name,
                    NeverFires::new("exclude_from_others", why.to_owned())
                        .with_other_key("enabled"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod testing;
