//! `budget`: the session reaches a cap on its use.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_share};
use crate::domain::{
    DetectorExplanation, DetectorOutcome, EscalationLevel, Finding, Observation, Sig, Totals,
    UsageDelta,
};

/// Fires when: the session has used `warn_share` of a cap, and again when it has
/// used all of it. Caps exist for events, turns, tokens, US dollars and seconds.
///
/// Resets when: never. All agents of the session share one budget, and neither a
/// message of the user nor a new run returns what was used. Each threshold is
/// crossed on exactly one event, so the detector has no state.
///
/// Cost: two comparisons per cap that is set.
///
/// Defaults: no caps, because only the operator knows what a session may cost.
#[derive(Default, Serialize, Deserialize)]
pub struct Budget;

/// `[detect.budget]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub events_max: u32,
    pub turns_max: u32,
    pub tokens_max: u64,
    pub cost_usd_max: f64,
    pub wall_secs_max: u64,
    pub warn_share: f64,
}

/// Tolerance for sums of cents: as floating point numbers, .04 must still count
/// as four fifths of .05.
const ROUNDING: f64 = 1e-9;

/// A threshold of a cap that was crossed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReachedCap {
    /// The unit of the cap: "events", "US dollars".
    pub unit: &'static str,
    pub used: f64,
    pub cap: f64,
    level: EscalationLevel,
}

impl Settings {
    /// Whether any cap is set.
    pub fn has_caps(&self) -> bool {
        self.usage_by_cap(Totals::default())
            .iter()
            .any(|(_, cap, _)| *cap > 0.0)
    }

    /// The worst threshold that was crossed since the last observation.
    pub fn reached_cap(&self, used: &UsageDelta) -> Option<ReachedCap> {
        let [before, now] = [self.usage_by_cap(used.before), self.usage_by_cap(used.now)];
        let crossed = before.into_iter().zip(now).filter_map(|(before, now)| {
            let (unit, cap, used) = now;
            let (_, _, used_before) = before;
            let is_past = |used: f64, share: f64| used >= cap * share * (1.0 - ROUNDING);
            let crosses = |share| cap > 0.0 && !is_past(used_before, share) && is_past(used, share);
            let level = if crosses(1.0) {
                EscalationLevel::Hard
            } else if crosses(self.warn_share) {
                EscalationLevel::Soft
            } else {
                return None;
            };
            Some(ReachedCap {
                unit,
                used,
                cap,
                level,
            })
        });
        crossed.max_by(|a, b| {
            a.level
                .cmp(&b.level)
                .then_with(|| (a.used / a.cap).total_cmp(&(b.used / b.cap)))
        })
    }

    /// For each cap its unit, its value (0: not set) and what was used of it.
    fn usage_by_cap(&self, used: Totals) -> [(&'static str, f64, f64); 5] {
        [
            ("events", self.events_max.into(), used.events as f64),
            ("turns", self.turns_max.into(), used.turns as f64),
            ("tokens", self.tokens_max as f64, used.tokens as f64),
            ("US dollars", self.cost_usd_max, used.usd),
            ("seconds", self.wall_secs_max as f64, used.secs as f64),
        ]
    }
}

impl Detector for Budget {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let (share, usd) = (settings.warn_share, settings.cost_usd_max);
        check_share("warn_share", share)?;
        if usd < 0.0 {
            let why = format!("{usd} is negative; 0 means no cap");
            return Err(NeverFires::new("cost_usd_max", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        let caps: Vec<String> = settings
            .usage_by_cap(Totals::default())
            .into_iter()
            .filter(|(_, cap, _)| *cap > 0.0)
            .map(|(unit, cap, _)| format!("{cap} {unit}"))
            .collect();
        let threshold = if caps.is_empty() {
            "no cap is set".to_owned()
        } else {
            format!("{} of {}, then all", settings.warn_share, caps.join(", "))
        };
        DetectorExplanation {
            rule: "the session, with all its agents, has used up its budget",
            threshold,
            would_not_fire_if: "a larger cap, or a reset, which restarts the count",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        if !settings.has_caps() {
            return DetectorOutcome::NotApplicable;
        }
        let Some(reached) = settings.reached_cap(&now.usage) else {
            return DetectorOutcome::NoMatch;
        };
        // The count is in whole units: templates print `used` and `cap` instead.
        let count = reached.used as i32;
        DetectorOutcome::from_finding(Finding {
            level: Some(reached.level),
            ..Finding::new(
                count,
                smallvec![now.at.index],
                smallvec![loop_key(&reached)],
            )
        })
    }

    fn reset(&mut self) {}

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Every threshold of every cap is a loop of its own, so each is reported.
fn loop_key(reached: &ReachedCap) -> Sig {
    let mut hasher = DefaultHasher::new();
    ("budget", reached.unit, reached.level as u8).hash(&mut hasher);
    Sig::new(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        events_max: 100,
        turns_max: 10,
        tokens_max: 1_000,
        cost_usd_max: 2.0,
        wall_secs_max: 60,
        warn_share: 0.8,
    };

    const START: Totals = Totals {
        events: 0,
        turns: 0,
        tokens: 0,
        usd: 0.0,
        secs: 0,
    };

    fn reached(before: Totals, now: Totals) -> Option<(&'static str, EscalationLevel)> {
        let cap = SETTINGS.reached_cap(&UsageDelta { before, now })?;
        Some((cap.unit, cap.level))
    }

    fn tokens(tokens: i64) -> Totals {
        Totals { tokens, ..START }
    }

    #[test]
    fn each_threshold_is_crossed_on_one_event() {
        assert_eq!(reached(tokens(0), tokens(799)), None);
        assert_eq!(
            reached(tokens(799), tokens(800)),
            Some(("tokens", EscalationLevel::Soft))
        );
        assert_eq!(reached(tokens(800), tokens(999)), None);
        assert_eq!(
            reached(tokens(999), tokens(1_000)),
            Some(("tokens", EscalationLevel::Hard))
        );
        assert_eq!(reached(tokens(1_000), tokens(9_999)), None);
    }

    #[test]
    fn crossing_both_thresholds_at_once_reports_the_second() {
        assert_eq!(
            reached(tokens(0), tokens(5_000)),
            Some(("tokens", EscalationLevel::Hard))
        );
    }

    #[test]
    fn every_cap_has_its_own_unit() {
        let cases = [
            (
                Totals {
                    events: 80,
                    ..START
                },
                "events",
            ),
            (Totals { turns: 8, ..START }, "turns"),
            (tokens(800), "tokens"),
            (Totals { usd: 1.6, ..START }, "US dollars"),
            (Totals { secs: 48, ..START }, "seconds"),
        ];
        for (now, unit) in cases {
            assert_eq!(reached(START, now), Some((unit, EscalationLevel::Soft)));
        }
    }

    #[test]
    fn the_worst_of_two_crossed_caps_is_reported() {
        let now = Totals {
            events: 100,
            turns: 9,
            tokens: 2_000,
            ..START
        };
        assert_eq!(reached(START, now), Some(("tokens", EscalationLevel::Hard)));
    }

    #[test]
    fn without_a_cap_no_threshold_is_crossed() {
        let none = Settings {
            events_max: 0,
            turns_max: 0,
            tokens_max: 0,
            cost_usd_max: 0.0,
            wall_secs_max: 0,
            ..SETTINGS
        };
        let used = UsageDelta {
            before: START,
            now: tokens(i64::MAX),
        };
        assert!(!none.has_caps() && none.reached_cap(&used).is_none());
        assert!(SETTINGS.has_caps());
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |warn_share, cost_usd_max| {
            Budget::check(&Settings {
                warn_share,
                cost_usd_max,
                ..SETTINGS
            })
            .is_err()
        };
        assert!(!rejects(1.0, 0.0));
        assert!(rejects(0.0, 1.0));
        assert!(rejects(1.1, 1.0));
        assert!(rejects(f64::NAN, 1.0));
        assert!(rejects(0.8, -1.0));
    }
}
