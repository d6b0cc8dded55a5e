use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_share};
use crate::domain::{
    DetectorExplanation, DetectorOutcome, Finding, LadderRung, Observation, Sig, Totals, UsageDelta,
};

/// Fires when a session has used `warn_share` of a cap, and again when it has
/// used all of it: events, turns, tokens, US dollars, seconds.
///
/// The whole session has one budget. It never resets: neither a user nor a new
/// run gives back what was spent. Each bar of a cap is passed on one event only,
/// so there is nothing to remember.
///
/// Cost: two comparisons a cap that is set. There are no caps by default: what a
/// session may cost is its operator's to say.
#[derive(Default)]
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

/// Sums of cents are off by a little: .04 is four fifths of .05.
const ROUNDING: f64 = 1e-9;

/// A bar of a cap that was passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReachedCap {
    /// What is counted: "events", "US dollars".
    pub unit: &'static str,
    pub used: f64,
    pub cap: f64,
    rung: LadderRung,
}

impl Settings {
    /// There is any cap at all.
    pub fn has_caps(&self) -> bool {
        self.usage_by_cap(Totals::default())
            .iter()
            .any(|(_, cap, _)| *cap > 0.0)
    }

    /// The worst bar that was passed since the last observation.
    pub fn reached_cap(&self, used: &UsageDelta) -> Option<ReachedCap> {
        let [before, now] = [self.usage_by_cap(used.before), self.usage_by_cap(used.now)];
        let passed = before.into_iter().zip(now).filter_map(|(before, now)| {
            let (unit, cap, used) = now;
            let past = |used: f64, share: f64| used >= cap * share * (1.0 - ROUNDING);
            let reached = |share| cap > 0.0 && !past(before.2, share) && past(used, share);
            let bar = match (reached(1.0), reached(self.warn_share)) {
                (true, _) => LadderRung::Hard,
                (false, true) => LadderRung::Soft,
                (false, false) => return None,
            };
            Some(ReachedCap {
                unit,
                used,
                cap,
                rung: bar,
            })
        });
        passed.max_by(|a, b| {
            let shares = || (a.used / a.cap).total_cmp(&(b.used / b.cap));
            a.rung.cmp(&b.rung).then_with(shares)
        })
    }

    /// Each cap, and what was used of it.
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
            let why = format!("{usd} could never be spent: 0 is no cap");
            return Err(NeverFires::new("cost_usd_max", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        let caps = settings.usage_by_cap(Totals::default()).into_iter();
        let caps = caps.filter(|(_, cap, _)| *cap > 0.0);
        let caps: Vec<String> = caps.map(|(unit, cap, _)| format!("{cap} {unit}")).collect();
        let threshold = match caps.is_empty() {
            true => "no cap is set".to_owned(),
            false => format!("{} of {}, then all", settings.warn_share, caps.join(", ")),
        };
        DetectorExplanation {
            rule: "the session, all its agents together, has used up what it was given",
            threshold,
            avoided_by: "a larger cap, or a reset, which begins the count anew",
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
            rung: Some(reached.rung),
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

/// Each bar of each cap is told of its own.
fn loop_key(reached: &ReachedCap) -> Sig {
    let mut hasher = DefaultHasher::new();
    ("budget", reached.unit, reached.rung as u8).hash(&mut hasher);
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

    fn passed(before: Totals, now: Totals) -> Option<(&'static str, LadderRung)> {
        let passed = SETTINGS.reached_cap(&UsageDelta { before, now })?;
        Some((passed.unit, passed.rung))
    }

    fn tokens(tokens: i64) -> Totals {
        Totals { tokens, ..START }
    }

    #[test]
    fn each_bar_is_passed_on_one_event() {
        assert_eq!(passed(tokens(0), tokens(799)), None);
        assert_eq!(
            passed(tokens(799), tokens(800)),
            Some(("tokens", LadderRung::Soft))
        );
        assert_eq!(passed(tokens(800), tokens(999)), None);
        assert_eq!(
            passed(tokens(999), tokens(1_000)),
            Some(("tokens", LadderRung::Hard))
        );
        assert_eq!(passed(tokens(1_000), tokens(9_999)), None);
    }

    #[test]
    fn a_leap_over_both_bars_is_the_last() {
        assert_eq!(
            passed(tokens(0), tokens(5_000)),
            Some(("tokens", LadderRung::Hard))
        );
    }

    #[test]
    fn every_cap_counts_its_own() {
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
            assert_eq!(passed(START, now), Some((unit, LadderRung::Soft)));
        }
    }

    #[test]
    fn of_two_on_one_event_the_worse_is_told() {
        let now = Totals {
            events: 100,
            turns: 9,
            tokens: 2_000,
            ..START
        };
        assert_eq!(passed(START, now), Some(("tokens", LadderRung::Hard)));
    }

    #[test]
    fn without_a_cap_there_is_nothing_to_pass() {
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
    fn settings_that_can_never_fire_are_refused() {
        let refuses = |warn_share, cost_usd_max| {
            Budget::check(&Settings {
                warn_share,
                cost_usd_max,
                ..SETTINGS
            })
            .is_err()
        };
        assert!(!refuses(1.0, 0.0));
        assert!(refuses(0.0, 1.0));
        assert!(refuses(1.1, 1.0));
        assert!(refuses(f64::NAN, 1.0));
        assert!(refuses(0.8, -1.0));
    }
}
