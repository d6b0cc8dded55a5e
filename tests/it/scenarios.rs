//! Behaviour of agents: which cases must cause a verdict and which must not. See
//! `scenarios/README.md` for reported cases, and `behaviours/README.md` for those that were
//! written rule by rule.

use std::{collections::BTreeSet, sync::Arc};

use serde::Deserialize;
use unstuck::{
    domain::{Action, Verdict},
    engine::RunMode,
};

use crate::play::{Line, Player};

const CASES: &str = include_str!("scenarios/cases.jsonl");

const BEHAVIOURS: [&str; 6] = [
    include_str!("behaviours/sameness.jsonl"),
    include_str!("behaviours/progress.jsonl"),
    include_str!("behaviours/words.jsonl"),
    include_str!("behaviours/fresh.jsonl"),
    include_str!("behaviours/objects.jsonl"),
    include_str!("behaviours/answers.jsonl"),
];
/// The ids of the behaviours that do not hold yet, one per line.
const BEHAVIOURS_NOT_HELD: &str = include_str!("behaviours/not-held.txt");

/// The cases that pass today. The test fails when one of them fails, and when another
/// one passes: then add it here.
#[rustfmt::skip]
const PASSING: &[&str] = &[
    // Cases with a verdict.
    "ex-005", "ex-007", "ex-017", "poll-002", "poll-007", "poll-013", "poll-015", "fail-003",
    "fail-004", "fail-008", "fail-010", "fail-013", "fail-015", "fail-018", "fail-025",
    "cyc-002", "cyc-003", "cyc-010", "cyc-013", "cyc-016", "rd-004", "rd-005", "rd-010",
    "rd-011", "wr-001", "wr-007", "wr-009", "ch-003", "ch-005", "ch-008", "ch-011", "ch-013",
    "ses-003", "ses-005", "ses-009", "ses-010", "ses-013", "turn-005", "turn-006", "turn-011",
    "turn-012", "turn-016", "turn-017", "turn-018", "turn-020", "txt-004", "txt-006", "txt-008",
    "txt-028", "txt-033", "txt-035", "txt-036", "txt-039", "txt-041",
    // Cases without a verdict.
    "ex-011", "poll-011", "poll-012", "poll-014", "fail-009", "fail-011", "fail-019",
    "fail-021", "fail-023", "cyc-005", "cyc-006", "cyc-007", "cyc-009", "cyc-015", "rd-003",
    "rd-009", "wr-002", "wr-004", "wr-005", "ch-007", "ch-009", "br-004", "ses-002", "ses-004",
    "ses-006", "ses-008", "txt-013", "txt-018", "txt-024", "txt-025", "txt-026", "txt-037",
    "txt-040", "turn-004", "turn-010",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    tier: Tier,
    description: String,
    expect: Expect,
    loop_kind: String,
    #[serde(default, rename = "notes")]
    _notes: String,
    #[serde(rename = "source")]
    _source: String,
    #[serde(default)]
    config_toml: String,
    expect_level: Option<Level>,
    expect_alerts_at_most: Option<usize>,
    expect_no_alert_after_event: Option<i32>,
    trace: Vec<serde_json::Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Tier {
    Core,
    Boundary,
    Stretch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expect {
    Fire,
    Quiet,
}

/// Of the strongest verdict.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Info,
    Warn,
    Escalate,
    Block,
    Terminate,
}

impl Level {
    fn allows(self, strongest: Action) -> bool {
        match self {
            Self::Info => strongest <= Action::Warn,
            Self::Warn => strongest < Action::Terminate,
            Self::Escalate => strongest >= Action::Checkpoint,
            Self::Block => strongest >= Action::Ask,
            Self::Terminate => strongest == Action::Terminate,
        }
    }
}

impl Case {
    /// How the result differs from the expectation.
    fn fault(&self) -> Option<String> {
        let mut player = match Player::with(&self.config_toml, RunMode::Replay) {
            Ok(player) => player,
            Err(refused) => return Some(format!("its settings are refused: {refused}")),
        };
        let lines = self.trace.iter().map(|line| Line::parse(line).unwrap());
        let verdicts = player.verdicts(&lines.collect::<Vec<_>>());
        let acted = |verdict: &Arc<Verdict>| Some((verdict.effective_action()?, verdict.clone()));
        let acted: Vec<_> = verdicts.iter().filter_map(acted).collect();
        let strongest = acted.iter().map(|(action, _)| *action).max();

        let describe = |(action, verdict): &(Action, Arc<Verdict>)| {
            let event = verdict.event_index.unwrap_or(-1);
            format!("{action} by {} on event {event}", verdict.detector)
        };
        let list = || acted.iter().map(describe).collect::<Vec<_>>().join(", ");
        match (self.expect, strongest) {
            (Expect::Quiet, Some(_)) => return Some(list()),
            (Expect::Fire, None) => return Some("nothing fires".to_owned()),
            (Expect::Quiet, None) | (Expect::Fire, Some(_)) => {}
        }
        if let (Some(level), Some(strongest)) = (self.expect_level, strongest)
            && !level.allows(strongest)
        {
            return Some(format!("{strongest} is not of level {level:?}"));
        }
        if self
            .expect_alerts_at_most
            .is_some_and(|most| acted.len() > most)
        {
            return Some(format!("too many: {}", list()));
        }
        let last = acted
            .iter()
            .filter_map(|(_, verdict)| verdict.event_index)
            .max();
        if self
            .expect_no_alert_after_event
            .is_some_and(|end| last > Some(end))
        {
            return Some(format!("too late: {}", list()));
        }
        None
    }
}

#[test]
fn the_passing_scenarios_are_the_ones_listed() {
    let cases: Vec<Case> = CASES
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let faults: Vec<_> = cases.iter().map(|case| (case, case.fault())).collect();
    print_summary(&faults);

    let listed: BTreeSet<&str> = PASSING.iter().copied().collect();
    assert_eq!(listed.len(), PASSING.len(), "an id stands in PASSING twice");
    check_listed(&faults, &listed);
}

#[test]
fn all_behaviours_hold_but_the_ones_listed() {
    let lines = BEHAVIOURS.iter().flat_map(|set| set.lines());
    let cases: Vec<Case> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let faults: Vec<_> = cases.iter().map(|case| (case, case.fault())).collect();
    print_summary(&faults);
    let not_held: BTreeSet<&str> = BEHAVIOURS_NOT_HELD.lines().collect();
    for id in &not_held {
        assert!(cases.iter().any(|case| case.id == *id), "there is no {id}");
    }
    let ids = cases.iter().map(|case| case.id.as_str());
    let listed = ids.filter(|id| !not_held.contains(id)).collect();
    check_listed(&faults, &listed);
}

/// Panics if a listed case does not hold, or another one does.
fn check_listed(faults: &[(&Case, Option<String>)], listed: &BTreeSet<&str>) {
    for id in listed {
        let is_case = faults.iter().any(|(case, _)| case.id == *id);
        assert!(is_case, "there is no case {id}");
    }
    for (case, fault) in faults {
        match (listed.contains(case.id.as_str()), fault) {
            (true, None) | (false, Some(_)) => {}
            (true, Some(fault)) => {
                panic!(
                    "{} does not hold any more: {fault} ({})",
                    case.id, case.description
                )
            }
            (false, None) => panic!("{} holds: list it as such ({})", case.id, case.description),
        }
    }
}

/// Prints how many cases pass, by tier and expectation, and those that fail.
fn print_summary(faults: &[(&Case, Option<String>)]) {
    println!("{:<10}{:>8}{:>8}", "held of", "fire", "quiet");
    for tier in [Tier::Core, Tier::Boundary, Tier::Stretch] {
        let count = |expect| {
            let of = faults
                .iter()
                .filter(|(case, _)| (case.tier, case.expect) == (tier, expect));
            let held = of.clone().filter(|(_, fault)| fault.is_none());
            format!("{}/{}", held.count(), of.count())
        };
        let [fire, quiet] = [Expect::Fire, Expect::Quiet].map(count);
        println!(
            "{:<10}{fire:>8}{quiet:>8}",
            format!("{tier:?}").to_lowercase()
        );
    }
    println!();
    for (case, fault) in faults {
        if let Some(fault) = fault {
            println!(
                "{:<10}{:<22}{fault}: {}",
                case.id, case.loop_kind, case.description
            );
        }
    }
}
