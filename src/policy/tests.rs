use std::time::{Duration, SystemTime};

use smallvec::smallvec;

use super::*;
use crate::domain::{
    Action, AgentId, DetectorId, EscalationLevel, EventPosition, Finding, Level, Precedence, Sig,
    Waste,
};

const A: DetectorId = DetectorId(0);
const B: DetectorId = DetectorId(1);

fn settings(soft: Action, hard: Action, terminate_after: u32) -> Settings {
    let ladder = |name: &str| Escalation {
        name: name.into(),
        precedence: Precedence::default(),
        enabled: true,
        soft,
        hard,
        final_action: hard,
        terminate_after,
        trend_half_life_events: 10,
        warn_share: None,
    };
    Settings {
        trend: TrendSettings {
            alpha: 0.3,
            saturation: 0.5,
            cooldown: 5,
            trend_half_life_events: 20,
            throttle_secs: 5,
            throttle_secs_max: 300,
            refusals_escalate: 3,
            refusals_terminate: 6,
        },
        escalations: vec![ladder("a"), ladder("b")],
        shadow: false,
    }
}

/// The outcome of a detector on one event of a script: not applicable (`-`), no match
/// (`.`), or the loop of a letter: upper case if the event completes the pattern, lower
/// case if it extends it.
struct PolicyHarness {
    policy: AgentPolicy,
    settings: Settings,
    index: i32,
    loop_events: i32,
}

impl PolicyHarness {
    fn new(settings: Settings) -> Self {
        Self {
            policy: AgentPolicy::default(),
            settings,
            index: 0,
            loop_events: 0,
        }
    }

    fn play(&mut self, script: &str) -> Vec<Option<Decision>> {
        script.chars().map(|step| self.step(step)).collect()
    }

    fn step(&mut self, step: char) -> Option<Decision> {
        let extends = step.is_ascii_lowercase();
        let findings = if step.is_alphabetic() {
            self.loop_events = if extends { self.loop_events + 1 } else { 3 };
            let first = if extends { self.index } else { self.index - 2 };
            vec![(
                A,
                finding(step, self.loop_events, extends, first..=self.index),
            )]
        } else {
            vec![]
        };
        self.decide(if step == '-' { 0 } else { 1 }, &findings)
    }

    fn decide(&mut self, checked: u64, findings: &[(DetectorId, Finding)]) -> Option<Decision> {
        let index = self.index;
        self.index += 1;
        let results = DetectorResults {
            agent: &AgentId::default(),
            at: moment(index, u64::try_from(index).unwrap()),
            checked,
            findings,
            totals: waste_of_events(i64::from(index) + 1),
            loop_capacity: &crate::domain::Capacity::new(32),
        };
        let policy_outcome = self.policy.decide(&results, &self.settings, |first| {
            waste_of_events(first.into())
        });
        policy_outcome.and_then(|policy_outcome| policy_outcome.decision)
    }
}

fn waste_of_events(events: i64) -> Waste {
    Waste {
        events,
        tokens: 10 * events,
        cached_tokens: 9 * events,
        usd: 0.0,
    }
}

fn moment(index: i32, secs: u64) -> EventPosition {
    EventPosition {
        index,
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(secs),
        progress: 0,
        state_changes: 0,
        calls: 0,
        round: None,
    }
}

fn finding(
    name: char,
    count: i32,
    extends: bool,
    events: std::ops::RangeInclusive<i32>,
) -> Finding {
    Finding {
        count,
        period: 1,
        similarity: 1.0,
        confidence: 1.0,
        level: None,
        action_max: None,
        consecutive: false,
        extends,
        events: events.collect(),
        loop_key: smallvec![Sig::new(name.to_ascii_lowercase().into())],
        calls: smallvec![Sig::new(name.to_ascii_lowercase().into())],
    }
}

/// The actions on a script, a letter each: `w`arn, `B`lock, `T`erminate, …
#[track_caller]
fn check(settings: Settings, script: &str, expected: &str) {
    let name = |decision: &Option<Decision>| match decision.as_ref().map(|decision| decision.action)
    {
        None => '.',
        Some(Action::Alert) => 'a',
        Some(Action::Warn) => 'w',
        Some(Action::Block) => 'B',
        Some(Action::Terminate) => 'T',
        Some(_) => '?',
    };
    let decisions = PolicyHarness::new(settings).play(script);
    assert_eq!(
        decisions.iter().map(name).collect::<String>(),
        expected,
        "{script}"
    );
}

fn warn_block() -> Settings {
    settings(Action::Warn, Action::Block, 0)
}

#[test]
fn a_loop_is_reported_once_softly() {
    check(warn_block(), "..X......", "..w......");
}

#[test]
fn a_loop_that_goes_on_until_it_is_chronic_is_reported_hard_once() {
    check(warn_block(), "..Xxxxxxx", "..wB.....");
}

#[test]
fn weak_evidence_never_leads_above_its_action() {
    let mut harness = PolicyHarness::new(settings(Action::Break, Action::Escalate, 4));
    let mut decide = |count, extends, events| {
        let weak = Finding {
            action_max: Some(Action::Warn),
            ..finding('A', count, extends, events)
        };
        let decision = harness.decide(1, &[(A, weak)]);
        decision.map(|decision| decision.action)
    };
    assert_eq!(decide(3, false, 0..=0), Some(Action::Warn));
    let later: Vec<_> = (4..12).map(|n| decide(n, true, n..=n)).collect();
    assert_eq!(later, [None; 8]);
}

#[test]
fn a_gap_ends_the_count_of_consecutive_events() {
    let mut harness = PolicyHarness::new(settings(Action::Warn, Action::Escalate, 5));
    let mut play = |counts: &[i32]| -> Vec<Option<Action>> {
        let decide = |count: &i32| {
            let index = harness.index;
            let consecutive = Finding {
                consecutive: true,
                ..finding('A', *count, *count > 3, index..=index)
            };
            let findings = [(A, consecutive)];
            let findings = if *count < 3 { &[] } else { &findings[..] };
            let decision = harness.decide(1, findings);
            decision.map(|decision| decision.action)
        };
        counts.iter().map(decide).collect()
    };
    assert_eq!(play(&[3, 4])[0], Some(Action::Warn));
    assert_eq!(play(&[0, 3, 4]), [None, Some(Action::Escalate), None]);
    assert_eq!(play(&[0, 3, 4]), [None, Some(Action::Escalate), None]);
    assert_eq!(play(&[5]), [Some(Action::Terminate)]);
}

#[test]
fn a_loop_that_comes_back_is_reported_hard_however_late() {
    check(warn_block(), "..X..............X", "..w..............B");
}

#[test]
fn a_new_loop_gets_its_own_first_verdict() {
    check(warn_block(), "..Xx..Yy..Z", "..wB..wB..w");
}

#[test]
fn a_loop_with_enough_events_terminates_the_session() {
    let ending = || settings(Action::Warn, Action::Block, 6);
    check(ending(), "..Xxxx", "..wB.T");
}

#[test]
fn the_first_verdict_of_a_loop_is_soft_however_many_events_it_has() {
    let mut bench = PolicyHarness::new(settings(Action::Warn, Action::Block, 6));
    let mut laps = finding('x', 3, false, 0..=20);
    laps.period = 7;
    let first = bench.decide(1, &[(A, laps.clone())]).unwrap();
    assert_eq!(first.action, Action::Warn);
    laps.extends = true;
    let rest: Vec<Action> = (0..3)
        .filter_map(|_| bench.decide(1, &[(A, laps.clone())]))
        .map(|decision| decision.action)
        .collect();
    assert_eq!(rest, [Action::Block, Action::Terminate]);
}

#[test]
fn runs_of_a_loop_add_up_but_its_end_is_announced() {
    let ending = || settings(Action::Warn, Action::Block, 6);
    check(ending(), "..X...X", "..w...B");
    check(ending(), "..X...Xx", "..w...BT");
}

#[test]
fn events_before_a_user_message_do_not_count() {
    let mut bench = PolicyHarness::new(settings(Action::Warn, Action::Block, 6));
    bench.play("..Xx");
    bench.policy.reset();
    let last = bench.play("..Xx").pop().flatten();
    assert!(last.is_none_or(|decision| decision.action < Action::Terminate));
}

#[test]
fn alerts_of_new_loops_wait_for_the_cooldown() {
    let alert = || settings(Action::Alert, Action::Block, 0);
    check(alert(), "..X..Y....", "..a.......");
    check(alert(), "..X......Y", "..a......a");
}

#[test]
fn an_alert_held_back_is_issued_later_if_its_loop_is_still_active() {
    let alert = || settings(Action::Alert, Action::Alert, 0);
    check(alert(), "..X..Yyyy", "..a....a.");
    check(alert(), "..X..Y---", "..a....a.");
    check(alert(), "..X..Y.--", "..a......");
}

#[test]
fn events_that_no_detector_checks_end_no_loop() {
    check(warn_block(), "..X-----x", "..w......");
}

#[test]
fn findings_on_one_event_are_one_loop_described_by_the_widest() {
    let mut bench = PolicyHarness::new(warn_block());
    let mut wide = finding('x', 4, false, 0..=3);
    wide.calls.push(Sig::new(99));
    let narrow = finding('x', 3, false, 1..=3);
    let decision = bench.decide(3, &[(A, narrow.clone()), (B, wide)]).unwrap();
    assert_eq!(
        (decision.detector, decision.other_detectors.as_slice()),
        (B, [A].as_slice())
    );
    let decision = PolicyHarness::new(warn_block())
        .decide(3, &[(A, narrow.clone()), (B, narrow)])
        .unwrap();
    assert_eq!(decision.detector, A, "equally wide: the lower rank");
}

#[test]
fn another_detector_that_cites_the_same_call_sees_the_same_loop() {
    let mut bench = PolicyHarness::new(warn_block());
    let first = bench.decide(1, &[(A, finding('x', 3, false, 0..=2))]);
    let mut wider = finding('x', 4, false, 0..=3);
    wider.calls.push(Sig::new(99));
    let again = bench.decide(2, &[(B, wider)]);
    assert!(first.is_some());
    assert!(again.is_none(), "{again:?}");
}

#[test]
fn a_loop_keeps_its_name_and_counts_its_cost_from_its_first_event() {
    let mut bench = PolicyHarness::new(warn_block());
    let decisions: Vec<Decision> = bench.play("....Xx").into_iter().flatten().collect();
    assert_eq!(decisions[0].loop_id, decisions[1].loop_id);
    assert_eq!(decisions[0].wasted, waste_of_events(3));
    assert_eq!(decisions[1].wasted, waste_of_events(4));
    assert_eq!(decisions[1].evidence.event_indexes, [2, 3, 4, 5]);
}

#[test]
fn events_between_two_runs_of_a_loop_are_not_wasted_cost() {
    let mut bench = PolicyHarness::new(warn_block());
    let last = bench.play("..X.......X").pop().flatten().unwrap();
    assert_eq!(last.wasted, waste_of_events(6));
}

#[test]
fn loops_of_different_agents_have_different_names() {
    let cites = [Sig::new(1), Sig::new(2)];
    let name =
        |agent: &str, cites: &[Sig]| loop_history::compute_loop_id(&AgentId::new(agent), cites);
    assert_ne!(name("", &cites), name("sub", &cites));
    assert_eq!(
        name("", &cites),
        name("", &[Sig::new(2), Sig::new(1), Sig::new(2)])
    );
}

#[test]
fn a_throttled_loop_that_comes_back_waits_longer_before_it_escalates() {
    let waits = settings(Action::Throttle, Action::Ask, 0);
    let decisions = PolicyHarness::new(waits).play("..X..X..X..X");
    let decisions: Vec<_> = decisions.iter().flatten().collect();
    let actions: Vec<Action> = decisions.iter().map(|decision| decision.action).collect();
    assert_eq!(
        actions,
        [
            Action::Throttle,
            Action::Throttle,
            Action::Throttle,
            Action::Ask
        ]
    );
    let secs: Vec<u64> = decisions
        .iter()
        .filter_map(|decision| decision.retry_after)
        .map(|wait| wait.as_secs())
        .collect();
    assert_eq!(secs, [5, 10, 20]);
}

#[test]
fn the_wait_of_a_throttle_has_a_limit() {
    let waits = settings(Action::Throttle, Action::Throttle, 0);
    let decisions = PolicyHarness::new(waits).play(&"..X".repeat(9));
    let last = decisions.into_iter().flatten().next_back().unwrap();
    assert_eq!(last.retry_after, Some(Duration::from_secs(300)));
}

#[test]
fn two_matches_in_a_row_are_chronic_until_the_trend_has_halved() {
    let mut bench = PolicyHarness::new(warn_block());
    bench.play("..Xx");
    let trend = bench.policy.trend(A).unwrap();
    assert!((trend.ema - 0.51).abs() < 1e-6);
    assert_eq!(trend.level, Level::Chronic);
    bench.play(".");
    let level = |bench: &PolicyHarness| bench.policy.trend(A).unwrap().level;
    assert_eq!(level(&bench), Level::Chronic, "0.357, no longer above");
    bench.play(".");
    assert_eq!(level(&bench), Level::Blip, "0.2499, below half of it");
    bench.play(&".".repeat(20));
    assert_eq!(bench.policy.trend(A), None);
}

#[test]
fn a_trend_fades_with_time_but_not_in_a_short_pause() {
    let after = |secs| {
        let settings = warn_block();
        let mut trends = trend::Trends::default();
        let (first, second) = (moment(0, 0), moment(1, secs));
        trends.update(first, None, 1, 1, &settings);
        trends.update(second, Some(first.time), 1, 1, &settings);
        trends.get(A).unwrap().ema
    };
    assert!((after(60) - 0.51).abs() < 1e-6);
    assert!((after(660) - (0.3 + 0.7 * 0.15)).abs() < 1e-6);
}

#[test]
fn loops_are_bounded_and_the_oldest_ended_loop_is_evicted() {
    let mut bench = PolicyHarness::new(warn_block());
    for n in 0..100u64 {
        let mut found = finding('x', 3, false, 0..=2);
        found.loop_key = smallvec![Sig::new(1_000 + n)];
        found.calls.clear();
        assert!(bench.decide(1, &[(A, found)]).is_some());
    }
    let mut found = finding('x', 3, false, 0..=2);
    found.loop_key = smallvec![Sig::new(1_000)];
    found.calls.clear();
    let decision = bench.decide(1, &[(A, found)]).unwrap();
    assert_eq!(decision.action, Action::Warn, "forgotten, so new");
}

/// The decisions about a loop whose detector sets the severity: one letter per
/// finding, `s`oft, `h`ard, `l`ast, each of the run before unless a gap (` `)
/// is in between.
#[track_caller]
fn check_bars(script: &str, expected: &[Action]) {
    let mut settings = settings(Action::Warn, Action::Break, 0);
    settings.escalations[0].final_action = Action::Escalate;
    let mut bench = PolicyHarness::new(settings);
    let mut extends = false;
    let mut decisions = Vec::new();
    for step in script.chars() {
        let bar = match step {
            's' => EscalationLevel::Soft,
            'h' => EscalationLevel::Hard,
            'l' => EscalationLevel::Final,
            _ => {
                bench.decide(1, &[]);
                extends = false;
                continue;
            }
        };
        let mut found = finding('x', 3, extends, 0..=2);
        found.level = Some(bar);
        decisions.extend(bench.decide(1, &[(A, found)]));
        extends = true;
    }
    let actions: Vec<Action> = decisions.iter().map(|decision| decision.action).collect();
    assert_eq!(actions, expected, "{script}");
}

#[test]
fn a_detectors_own_threshold_decides_and_not_the_trend() {
    check_bars("ssssss", &[Action::Warn]);
    check_bars("sshhll", &[Action::Warn, Action::Break, Action::Escalate]);
    check_bars("sl", &[Action::Warn, Action::Escalate]);
}

#[test]
fn a_loop_that_starts_hard_is_reported_as_hard() {
    check_bars("h", &[Action::Break]);
    check_bars("lsh", &[Action::Escalate]);
}

#[test]
fn a_loop_that_comes_back_is_reported_a_rung_higher() {
    check_bars("s s s", &[Action::Warn, Action::Break, Action::Escalate]);
    check_bars("s l", &[Action::Warn, Action::Escalate]);
}

#[test]
fn without_a_last_rung_the_hard_one_is_the_last() {
    let ladder = ladder(Action::Warn, Action::Block, 3, 0)
        .to_escalation("x", Precedence::default(), 20)
        .unwrap();
    assert_eq!(
        [
            EscalationLevel::Soft,
            EscalationLevel::Hard,
            EscalationLevel::Final
        ]
        .map(|bar| ladder.action_at(bar)),
        [Action::Warn, Action::Block, Action::Block]
    );
}

fn ladder(soft: Action, hard: Action, count: u32, terminate_after: u32) -> EscalationSettings {
    EscalationSettings {
        enabled: true,
        count,
        window: Some(10),
        soft,
        hard,
        final_action: None,
        warn_share: None,
        terminate_after,
        pattern: String::new(),
        correction: String::new(),
    }
}

#[test]
fn a_rung_that_can_never_be_reached_is_refused() {
    let key = |ladder: EscalationSettings| {
        ladder
            .to_escalation("x", Precedence::default(), 20)
            .err()
            .map(|error| error.key)
    };
    assert_eq!(key(ladder(Action::Warn, Action::Block, 3, 20)), None);
    assert_eq!(key(ladder(Action::Warn, Action::Block, 3, 0)), None);
    assert_eq!(
        key(ladder(Action::Block, Action::Warn, 3, 20)),
        Some("soft")
    );
    assert_eq!(
        key(ladder(Action::Warn, Action::Block, 3, 2)),
        Some("terminate_after")
    );
    let mut weak = ladder(Action::Warn, Action::Block, 3, 20);
    weak.final_action = Some(Action::Ask);
    assert_eq!(key(weak), Some("hard"));
}

#[test]
fn a_run_that_goes_on_is_the_same_loop_whatever_ended_it_for_another_detector() {
    let mut bench = PolicyHarness::new(warn_block());
    let of = |name, extends, events| finding(name, 3, extends, events);
    let both = [(A, of('x', false, 0..=2)), (B, of('x', false, 0..=2))];
    assert!(bench.decide(3, &both).is_some());
    // A finds nothing: for it the loop has ended.
    assert!(bench.decide(1, &[]).is_none());
    let mut longer = of('x', true, 2..=2);
    longer.loop_key = smallvec![Sig::new(7), Sig::new('x'.into())];
    assert!(bench.decide(2, &[(B, longer)]).is_none(), "reported before");
    assert!(bench.decide(2, &[(B, of('y', false, 3..=5))]).is_some());
}

#[test]
fn events_of_a_reported_loop_are_consumed_once_it_has_ended() {
    let mut bench = PolicyHarness::new(warn_block());
    bench.index = 2;
    bench.play("X");
    assert!(bench.policy.take_consumed_events().is_empty(), "it stands");
    bench.play("x.");
    assert_eq!(bench.policy.take_consumed_events(), [0, 1, 2, 3]);
    assert!(bench.policy.take_consumed_events().is_empty(), "once");
}

#[test]
fn a_loop_stays_active_while_its_detector_finds_another() {
    let mut bench = PolicyHarness::new(warn_block());
    bench.index = 2;
    bench.play("XY");
    assert!(bench.policy.take_consumed_events().is_empty(), "both stand");
    bench.play(".");
    assert_eq!(bench.policy.take_consumed_events(), [0, 1, 2, 1, 2, 3]);
}

#[test]
fn the_used_share_of_a_budget_is_the_reason() {
    let mut settings = settings(Action::Ask, Action::Terminate, 0);
    settings.escalations[0].precedence.session_wide = true;
    settings.escalations[0].warn_share = Some(0.8);
    let mut bench = PolicyHarness::new(settings);
    let mut reason = |name, bar| {
        let mut finding = finding(name, 80, false, 0..=0);
        finding.level = Some(bar);
        bench
            .decide(1, &[(A, finding)])
            .map(|decision| decision.reason)
    };
    assert_eq!(
        reason('s', EscalationLevel::Soft).as_deref(),
        Some("80 % of the session's budget is used")
    );
    assert_eq!(
        reason('h', EscalationLevel::Hard).as_deref(),
        Some("the session's budget is used up")
    );
}
