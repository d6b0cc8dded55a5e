use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::{
    domain::{AgentId, Args, Cost, Event, EventBody, Labels, RecoveredState, ToolCall},
    engine::{OperatorRequest, RecordOutcome, RunMode},
    testing,
    text::KeySeeds,
};

const SEEDS: KeySeeds = KeySeeds([3, 5]);

fn engine(run_mode: RunMode, variables: &[(&str, &str)]) -> Engine {
    testing::engine(testing::config(variables), run_mode, Box::new(|_| {}))
}

fn after(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + secs)
}

fn session(id: &str) -> SessionId {
    SessionId::parse(id).unwrap()
}

/// A call of the session, equal to all others.
fn call(engine: &Engine, id: &str, event_id: &str, secs: u64) -> RecordOutcome {
    let call = ToolCall {
        tool: "lookup".to_owned(),
        args: Args::Text("{\"order\":7}".to_owned()),
        result: Some("not found".to_owned()),
        ..ToolCall::default()
    };
    let event = Event {
        session: session(id),
        event_id: event_id.to_owned(),
        time: None,
        agent: AgentId::default(),
        round_id: String::new(),
        state_hash: String::new(),
        cost: Cost::default(),
        body: EventBody::Call(call),
    };
    engine.record(&event, after(secs)).unwrap()
}

/// A session with a label and two equal calls: the next one is a loop.
fn nearly_looping(run_mode: RunMode) -> FrozenSession {
    let engine = engine(run_mode, &[]);
    let labels = Labels::from([("team".to_owned(), "payments".to_owned())]);
    engine
        .open_session(&session("s"), "", labels, after(0))
        .unwrap();
    call(&engine, "s", "e1", 1);
    call(&engine, "s", "e2", 2);
    engine.freezer().freeze(&session("s")).unwrap()
}

#[test]
fn another_process_with_the_same_key_goes_on() {
    let frozen = nearly_looping(RunMode::Resumed(SEEDS));
    let engine = engine(RunMode::Resumed(SEEDS), &[]);
    assert_eq!(engine.freezer().thaw(&frozen, after(3)), ThawOutcome::Whole);
    let view = engine.get(&session("s")).unwrap();
    assert_eq!((view.events, view.labels.len()), (2, 1));
    assert!(call(&engine, "s", "e2", 4).duplicate);
    assert!(call(&engine, "s", "e3", 4).verdict.is_some());
    assert!(engine.state_bytes() > 0);
}

#[test]
fn with_another_key_only_the_counts_are_restored() {
    let frozen = nearly_looping(RunMode::Resumed(SEEDS));
    let engine = engine(RunMode::Live, &[]);
    let outcome = engine.freezer().thaw(&frozen, after(3));
    assert_eq!(outcome, ThawOutcome::HeadOnly(Some(ThawError::Key)));
    assert_eq!(engine.get(&session("s")).unwrap().events, 2);
    assert!(!call(&engine, "s", "e2", 4).duplicate);
    assert!(call(&engine, "s", "e3", 4).verdict.is_none());
}

#[test]
fn with_other_detectors_the_window_is_not_used() {
    let mut frozen = nearly_looping(RunMode::Replay);
    // After the version and the key.
    frozen.window.as_mut().unwrap()[1 + 8] ^= 1;
    let engine = engine(RunMode::Replay, &[]);
    let outcome = engine.freezer().thaw(&frozen, after(3));
    assert_eq!(outcome, ThawOutcome::HeadOnly(Some(ThawError::Detectors)));
}

#[test]
fn bytes_of_another_version_and_damaged_ones_are_ignored() {
    let frozen = nearly_looping(RunMode::Replay);
    let engine = engine(RunMode::Replay, &[]);
    let thaw = |change: &dyn Fn(&mut FrozenSession)| {
        let mut changed = frozen.clone();
        change(&mut changed);
        let outcome = engine.freezer().thaw(&changed, after(3));
        let view = engine.get(&session("s")).unwrap();
        assert_eq!(view.labels, frozen.labels);
        call(&engine, "s", "e4", 4);
        engine.freezer().release(&session("s"));
        outcome
    };
    assert_eq!(
        thaw(&|frozen| frozen.window.as_mut().unwrap()[0] = 99),
        ThawOutcome::HeadOnly(Some(ThawError::Version))
    );
    assert_eq!(
        thaw(&|frozen| frozen.head[0] = 99),
        ThawOutcome::ProfileOnly(ThawError::Version)
    );
    assert_eq!(
        thaw(&|frozen| frozen.head.truncate(30)),
        ThawOutcome::ProfileOnly(ThawError::Damaged)
    );
    assert_eq!(
        thaw(&|frozen| frozen.window.as_mut().unwrap().push(0)),
        ThawOutcome::HeadOnly(Some(ThawError::Damaged))
    );
    assert_eq!(
        thaw(&|frozen| frozen.window = None),
        ThawOutcome::HeadOnly(None)
    );
    // Any prefix: no panic, and the session can be used.
    for len in 0..frozen.head.len() {
        thaw(&|frozen| frozen.head.truncate(len));
    }
}

#[test]
fn a_terminated_or_expired_session_is_not_thawed() {
    let frozen = nearly_looping(RunMode::Replay);
    let engine = engine(RunMode::Replay, &[]);
    let request = OperatorRequest {
        reason: "it loops",
        operator: "ann",
    };
    engine.terminate_session(&session("s"), &request, after(3));
    assert_eq!(
        engine.freezer().thaw(&frozen, after(3)),
        ThawOutcome::Occupied
    );
    let idle = Duration::from_secs(86_400);
    let other = FrozenSession {
        id: session("other"),
        ..frozen
    };
    let expired = engine.freezer().thaw(&other, other.last_seen + idle);
    assert_eq!(expired, ThawOutcome::Expired);
    assert_eq!(engine.live_sessions(), 0);
}

#[test]
fn no_more_sessions_are_thawed_than_the_limits_allow() {
    let frozen = nearly_looping(RunMode::Replay);
    let engine = engine(RunMode::Replay, &[("UNSTUCK__LIMITS__SESSIONS_MAX", "2")]);
    let outcomes = ["a", "b", "c"].map(|id| {
        let id = session(id);
        engine.freezer().thaw(
            &FrozenSession {
                id,
                ..frozen.clone()
            },
            after(3),
        )
    });
    let expected = [ThawOutcome::Whole, ThawOutcome::Whole, ThawOutcome::NoRoom];
    assert_eq!(outcomes, expected);
}

#[test]
fn a_session_without_room_says_that_its_state_was_lost() {
    let frozen = nearly_looping(RunMode::Replay);
    let engine = engine(RunMode::Replay, &[("UNSTUCK__LIMITS__SESSIONS_MAX", "1")]);
    for id in ["a", "b"] {
        let frozen = FrozenSession {
            id: session(id),
            ..frozen.clone()
        };
        engine.freezer().thaw(&frozen, after(3));
    }
    engine.end_session(&session("a"), after(4)).unwrap();
    assert!(call(&engine, "b", "", 5).state_lost);
    assert!(call(&engine, "b", "", 6).state_lost);
    engine.end_session(&session("b"), after(7)).unwrap();
    assert!(!call(&engine, "b", "", 8).state_lost);
}

#[test]
fn beyond_the_sessions_without_room_that_are_remembered_any_may_be_one() {
    let frozen = nearly_looping(RunMode::Replay);
    let engine = engine(RunMode::Replay, &[("UNSTUCK__LIMITS__SESSIONS_MAX", "1")]);
    for n in 0..18 {
        let frozen = FrozenSession {
            id: session(&n.to_string()),
            ..frozen.clone()
        };
        engine.freezer().thaw(&frozen, after(3));
    }
    engine.end_session(&session("0"), after(4)).unwrap();
    assert!(call(&engine, "17", "", 5).state_lost);
}

#[test]
fn after_a_removal_of_saved_sessions_any_may_be_lost_until_it_is_opened_or_expired() {
    let engine = engine(RunMode::Replay, &[]);
    let recovered = RecoveredState {
        sessions_removed: Some(after(0)),
        ..RecoveredState::default()
    };
    engine.restore(recovered, after(1), after(1));
    assert!(call(&engine, "a", "", 2).state_lost);
    engine
        .open_session(&session("b"), "lenient", Labels::default(), after(3))
        .unwrap();
    assert!(!call(&engine, "b", "", 4).state_lost);
    let expired = 30 * 24 * 60 * 60;
    assert!(!call(&engine, "c", "", expired).state_lost);
}

#[test]
fn sessions_with_verdicts_come_first_then_the_most_recently_active() {
    let engine = engine(RunMode::Replay, &[]);
    for n in 0..3 {
        call(&engine, "looping", "", n);
    }
    call(&engine, "old", "", 10);
    call(&engine, "new", "", 20);
    let order = engine.freezer().sessions_by_importance();
    let order: Vec<_> = order.iter().map(SessionId::as_str).collect();
    assert_eq!(order, ["looping", "new", "old"]);
}

#[test]
fn a_head_is_frozen_once_for_each_change() {
    let engine = engine(RunMode::Replay, &[]);
    call(&engine, "s", "", 0);
    assert_eq!(engine.freezer().changed_sessions(), [session("s")]);
    assert!(
        engine
            .freezer()
            .freeze_changed_head(&session("s"))
            .is_some()
    );
    assert_eq!(engine.freezer().changed_sessions(), []);
    assert_eq!(engine.freezer().freeze_changed_head(&session("s")), None);
    engine.apply_snooze(&session("s"), after(9));
    let frozen = engine.freezer().freeze_changed_head(&session("s")).unwrap();
    assert_eq!(frozen.window, None);
    engine.freezer().mark_changed(&session("s"));
    assert_eq!(engine.freezer().changed_sessions(), [session("s")]);
}

#[test]
fn every_event_marks_its_session_as_changed() {
    let engine = engine(RunMode::Replay, &[]);
    for n in 0..3 {
        call(&engine, "s", "", n);
        assert!(
            engine
                .freezer()
                .freeze_changed_head(&session("s"))
                .is_some()
        );
    }
}

#[test]
fn a_head_has_nothing_that_an_agent_wrote() {
    let engine = engine(RunMode::Replay, &[]);
    for n in 0..5 {
        call(&engine, "s", "", n);
    }
    let frozen = engine.freezer().freeze(&session("s")).unwrap();
    let contains = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    assert!(contains(frozen.window.as_ref().unwrap(), b"lookup"));
    assert!(!contains(&frozen.head, b"lookup"));
}
