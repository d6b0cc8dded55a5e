//! `infra_outage`: the agent retries against a service that is down.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, streak::Streak};
use crate::domain::{
    CallKind, DetectorExplanation, DetectorOutcome, Finding, Observation, ObservationBody, Sig,
    serde_time,
};

/// Fires when: `count` calls in a row meet a rate limit, a server error or a dead
/// connection, without backoff. A retry after a pause of at least 1.5 times the
/// previous one is backoff and does not count. The calls of a round count once.
/// Other detectors skip these events, because the outage is not the agent's loop.
///
/// Resets when: a call gets through. Polls neither count nor reset.
///
/// Cost: one comparison per call.
///
/// Defaults: three calls in a row without a growing pause are a retry loop
/// without backoff.
#[derive(Default, Serialize, Deserialize)]
pub struct InfraOutage {
    streak: Streak,
    /// The first call that met the outage. It is the loop key.
    first_call: Option<Sig>,
    round: Option<Sig>,
    #[serde(with = "serde_time::option")]
    last_time: Option<SystemTime>,
    last_gap: Option<Duration>,
}

/// `[detect.infra_outage]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// Outages do not count for other detectors. If false, they count like any call.
    pub exclude_from_others: bool,
}

/// A pause that grows by at least this factor is backoff.
const BACKOFF_FACTOR_MIN: f64 = 1.5;

impl Detector for InfraOutage {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "failure")
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "calls in a row meet a rate limit, a server error or a dead connection",
            threshold: format!("{} in a row", settings.count),
            would_not_fire_if: "a successful call, or pauses that grow by half before each retry",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        let ObservationBody::Call(facts) = &now.body else {
            return Some(DetectorOutcome::NotApplicable);
        };
        match facts.kind {
            CallKind::Ordinary => Some(DetectorOutcome::NoMatch),
            CallKind::Poll => Some(DetectorOutcome::NotApplicable),
            CallKind::Outage => None,
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let ObservationBody::Call(facts) = &now.body else {
            return DetectorOutcome::NotApplicable;
        };
        if facts.kind == CallKind::Poll {
            return DetectorOutcome::NotApplicable;
        }
        if facts.kind != CallKind::Outage {
            self.reset();
            return DetectorOutcome::NoMatch;
        }
        let round = std::mem::replace(&mut self.round, now.at.round);
        if round.is_some() && round == now.at.round {
            return DetectorOutcome::NotApplicable;
        }
        let gap = self
            .last_time
            .replace(now.at.time)
            .and_then(|last| now.at.time.duration_since(last).ok());
        let before = std::mem::replace(&mut self.last_gap, gap);
        let backs_off = matches!((before, gap), (Some(before), Some(gap))
            if gap > Duration::ZERO && gap.as_secs_f64() >= BACKOFF_FACTOR_MIN * before.as_secs_f64());
        if backs_off || !self.streak.push(now.at, facts.call) {
            return DetectorOutcome::NotApplicable;
        }
        // The first call names the outage, whichever calls meet it later.
        let first = *self
            .first_call
            .get_or_insert(facts.call.unwrap_or(facts.masked_outcome));
        match self.streak.finding_at_threshold(settings.count) {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                confidence: 0.9,
                loop_key: smallvec![first],
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }

    fn reset(&mut self) {
        self.streak.clear();
        self.first_call = None;
        self.round = None;
        self.last_time = None;
        self.last_gap = None;
    }

    fn heap_bytes(&self) -> usize {
        self.streak.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, calls, user};

    const SETTINGS: Settings = Settings {
        count: 3,
        exclude_from_others: true,
    };

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<InfraOutage>(&SETTINGS), expected);
    }

    fn outages(secs: &[u64]) -> Script {
        secs.iter().map(|secs| call("get").outage().at(*secs)).sum()
    }

    #[test]
    fn the_third_in_a_row_is_found_and_each_further_one() {
        let script = outages(&[0, 1, 2, 3]);
        assert_eq!(script.counts::<InfraOutage>(&SETTINGS), [0, 0, 3, 4]);
        check_letters(outages(&[0, 1, 2, 3]), "..!+");
        check_letters(outages(&[0, 0, 0]), "..!");
    }

    #[test]
    fn a_growing_pause_is_backoff() {
        check_letters(outages(&[0, 1, 3, 7, 15, 31]), "..    ");
        check_letters(outages(&[0, 2, 5, 8, 11]), ".. !+");
    }

    #[test]
    fn a_clock_that_runs_backwards_is_not_a_pause() {
        check_letters(outages(&[9, 8, 7]), "..!");
    }

    #[test]
    fn a_call_that_gets_through_resets() {
        check_letters(
            outages(&[0, 1]) + call("x").at(2) + outages(&[3, 4]),
            ".....",
        );
        check_letters(
            outages(&[0, 1]) + call("x").fails("404").at(2) + outages(&[3]),
            "....",
        );
        check_letters(outages(&[0, 1]) + user() + outages(&[2]), ".. .");
    }

    #[test]
    fn a_wait_in_between_does_not_reset() {
        check_letters(
            outages(&[0, 1]) + call("sleep").poll().at(1) + outages(&[2]),
            ".. !",
        );
    }

    #[test]
    fn different_calls_meet_the_same_outage() {
        check_letters(calls("a b c d").outage(), "..!+");
        let many: Script = (0..40).map(|n| call(&n.to_string()).outage()).sum();
        let found = many.findings::<InfraOutage>(&SETTINGS);
        assert!(
            found
                .iter()
                .all(|finding| finding.loop_key == found[0].loop_key)
        );
    }

    #[test]
    fn a_parallel_batch_counts_once_and_is_not_a_pause() {
        check_letters(calls("a b c d").outage().round("1"), ".   ");
        let batch = |n: u64| calls("a b c").outage().at(n).round(&n.to_string());
        check_letters([0, 1, 2].map(batch).into_iter().sum(), ".  .  !  ");
        check_letters([0, 1, 3, 7].map(batch).into_iter().sum(), ".  .        ");
    }

    #[test]
    fn evidence_cites_the_calls_that_met_the_outage() {
        let found = (call("x") + outages(&[0, 1, 2, 3])).findings::<InfraOutage>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[1].events.as_slice(), [4]);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(InfraOutage::check(&SETTINGS).is_ok());
        assert!(
            InfraOutage::check(&Settings {
                count: 1,
                ..SETTINGS
            })
            .is_err()
        );
    }
}
