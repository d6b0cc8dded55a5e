//! Properties that hold for every history of events.

use std::cell::RefCell;

use pbjson_types::Timestamp;
use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    strategy::ValueTree,
    test_runner::{FileFailurePersistence, TestRunner},
};
use prost::Message;
use unstuck::{
    domain::{Action, Delta, Event, SessionId},
    engine::{RecordOutcome, RunMode},
    pb::{self, event::Body, tool_call::Arguments},
};

use crate::play::{Line, Player, summary};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// A step of a session. Few tools, few arguments and few results, so that
/// loops are common.
#[derive(Clone, Debug)]
enum Step {
    Call {
        tool: &'static str,
        args: u8,
        outcome: &'static str,
        round: Option<u8>,
    },
    Say(&'static str),
    User,
    System,
    Marker(pb::MarkerKind),
}

/// A step and the agent that does it.
type Act = (Step, &'static str);

const TOOLS: &[&str] = &["read_file", "write_file", "bash"];
const OUTCOMES: &[&str] = &["ok", "still 3 left", "error: no such file", "blocked"];
const TEXTS: &[&str] = &[
    "let me look at the file again",
    "let me look at the file once again",
    "step 4 of 9 is done",
    "step 5 of 9 is done",
    "",
];
const AGENTS: &[&str] = &["", "", "", "helper"];

fn step() -> impl Strategy<Value = Step> {
    let round = prop_oneof![4 => Just(None), 1 => (0..3u8).prop_map(Some)];
    let call = (select(TOOLS), 0..2u8, select(OUTCOMES), round);
    prop_oneof![
        12 => call.prop_map(|(tool, args, outcome, round)| Step::Call { tool, args, outcome, round }),
        8 => select(TEXTS).prop_map(Step::Say),
        1 => Just(Step::User),
        1 => Just(Step::System),
        1 => select(&[pb::MarkerKind::Compaction, pb::MarkerKind::NewRun]).prop_map(Step::Marker),
    ]
}

/// Steps in a row are often the same.
fn acts() -> impl Strategy<Value = Vec<Act>> {
    let run = ((step(), select(AGENTS)), 1..9usize);
    let repeat = |(act, times): (Act, usize)| std::iter::repeat_n(act, times);
    vec(run, 1..9).prop_map(move |runs| runs.into_iter().flat_map(repeat).collect())
}

/// The acts as events of a session, one every three seconds.
fn events(session: &str, acts: &[Act]) -> Vec<pb::Event> {
    let event = |(n, (step, agent)): (usize, &Act)| pb::Event {
        session_id: session.to_owned(),
        event_id: format!("e{n}"),
        agent_id: (*agent).to_owned(),
        time: Some(Timestamp {
            seconds: 1_700_000_000 + 3 * n as i64,
            nanos: 0,
        }),
        round_id: match step {
            Step::Call {
                round: Some(round), ..
            } => format!("r{round}"),
            _ => String::new(),
        },
        usage: Some(pb::Usage {
            input_tokens: 100,
            output_tokens: 10,
            cached_input_tokens: 50,
            cost_usd: 0.0,
        }),
        body: Some(body(step)),
        ..pb::Event::default()
    };
    acts.iter().enumerate().map(event).collect()
}

fn body(step: &Step) -> Body {
    match step {
        Step::Call {
            tool,
            args,
            outcome,
            ..
        } => Body::ToolCall(call(tool, *args, outcome)),
        Step::Say(text) => turn(pb::Role::Agent, text),
        Step::User => turn(pb::Role::User, "go on"),
        Step::System => turn(pb::Role::System, "remember the rules"),
        Step::Marker(kind) => Body::Marker(pb::Marker {
            kind: (*kind).into(),
            context_tokens: 0,
        }),
    }
}

fn turn(role: pb::Role, text: &str) -> Body {
    Body::Turn(pb::Turn {
        role: role.into(),
        text: text.to_owned(),
        ..pb::Turn::default()
    })
}

fn call(tool: &str, args: u8, outcome: &str) -> pb::ToolCall {
    let args =
        format!(r#"{{"path": "src/{args}.rs", "limit": {args}, "deep": {{"a": 1, "b": [2]}}}}"#);
    let (kind, error) = match outcome.strip_prefix("error: ") {
        Some(error) => (pb::Outcome::Error, error),
        None if outcome == "blocked" => (pb::Outcome::Blocked, ""),
        None => (pb::Outcome::Ok, ""),
    };
    pb::ToolCall {
        tool: tool.to_owned(),
        arguments: Some(Arguments::ArgsJson(args)),
        outcome: kind.into(),
        error: error.to_owned(),
        result: (kind == pb::Outcome::Ok).then(|| outcome.to_owned()),
        ..pb::ToolCall::default()
    }
}

fn read() -> Act {
    let read = Step::Call {
        tool: "read_file",
        args: 0,
        outcome: "ok",
        round: None,
    };
    (read, "")
}

/// The event's index, whether it is a duplicate, and the summary of the verdict.
type Answer = (Option<i32>, bool, Option<String>);

fn answer(recorded: &RecordOutcome) -> Answer {
    let verdict = recorded.verdict.as_deref().map(summary);
    (recorded.index, recorded.duplicate, verdict)
}

/// Part of the summary of a terminating verdict.
const TERMINATE: &str = "action: Some(Terminate)";

fn answers(player: &mut Player, events: &[pb::Event]) -> Vec<Answer> {
    let play = |event| answer(&player.event(event));
    events.iter().map(play).collect()
}

thread_local! {
    /// Creating an engine costs more than playing a history, so properties of one
    /// session share an engine. A separate property checks that sessions do not affect
    /// each other.
    static SHARED: RefCell<Player> = RefCell::new(Player::new());
}

/// Plays a history as a new session, always of the same name.
fn play<T>(with: impl FnOnce(&mut Player) -> T) -> T {
    SHARED.with_borrow_mut(|player| {
        let id = SessionId::parse("s").unwrap();
        crate::harness::reset(&player.engine, &id, player.now);
        with(player)
    })
}

fn play_events(events: &[pb::Event]) -> Vec<Answer> {
    play(|player| answers(player, events))
}

/// The verdict that has ended what the event belongs to: its session, else its
/// sub-agent.
fn termination(past: &[pb::Event], answers: &[Answer], event: &pb::Event) -> Option<String> {
    let of = |agent: &str| {
        let mut past = past.iter().zip(answers);
        past.find_map(|(earlier, (_, _, verdict))| {
            let verdict = verdict.as_ref().filter(|v| v.contains(TERMINATE))?;
            (earlier.agent_id == agent).then(|| verdict.clone())
        })
    };
    of("").or_else(|| of(&event.agent_id))
}

/// Sends texts as deltas, each cut at the given positions; the answers to the ends.
fn stream(texts: &[&str], cuts: &[Index]) -> Vec<Answer> {
    let mut answers_to_ends = Vec::new();
    play(|player| {
        for (n, text) in texts.iter().enumerate() {
            let positions = cuts
                .iter()
                .map(|cut| text.floor_char_boundary(cut.index(text.len() + 1)));
            let mut positions: Vec<usize> = positions.chain([0, text.len()]).collect();
            positions.sort_unstable();
            for (k, ends) in positions.windows(2).enumerate() {
                let recorded = player.play(&Line::Delta(pb::Delta {
                    session_id: "s".to_owned(),
                    turn_id: format!("t{n}"),
                    text: text[ends[0]..ends[1]].to_owned(),
                    end_of_turn: k + 2 == positions.len(),
                    ..pb::Delta::default()
                }));
                // After a termination every piece is answered.
                answers_to_ends.extend(
                    recorded
                        .filter(|_| k + 2 == positions.len())
                        .map(|r| answer(&r)),
                );
            }
        }
    });
    answers_to_ends
}

/// Texts that recur, some in full width or with invisible characters.
fn turn_texts() -> impl Strategy<Value = Vec<String>> {
    let text = prop_oneof![
        3 => select(TEXTS).prop_map(str::to_owned),
        1 => "[aé漢🙂 \\u{200b}\n]{0,40}",
    ];
    vec((text, 1..7usize), 1..5).prop_map(|runs| {
        let repeat = |(text, times)| std::iter::repeat_n(text, times);
        runs.into_iter().flat_map(repeat).collect()
    })
}

#[test]
fn the_histories_are_full_of_loops() {
    let mut runner = TestRunner::deterministic();
    let strategy = acts();
    let looping = (0..200).filter(|_| {
        let acts = strategy.new_tree(&mut runner).unwrap().current();
        play_events(&events("s", &acts))
            .iter()
            .any(|(_, _, verdict)| verdict.is_some())
    });
    let looping = looping.count();
    assert!(
        (40..200).contains(&looping),
        "{looping} of 200: the properties say nothing"
    );
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn the_chunking_of_deltas_changes_nothing(
        texts in turn_texts(),
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let whole = stream(&texts, &[]);
        prop_assert_eq!(&whole, &stream(&texts, &cuts));
        let turns = texts.iter().map(|text| pb::Event {
            session_id: "s".to_owned(),
            body: Some(turn(pb::Role::Agent, text)),
            ..pb::Event::default()
        });
        prop_assert_eq!(whole, play_events(&turns.collect::<Vec<_>>()));
    }

    #[test]
    fn an_event_sent_again_changes_nothing(
        acts in acts(),
        again in vec((any::<Index>(), any::<Index>()), 1..8),
    ) {
        let events = events("s", &acts);
        let once = play_events(&events);
        // After which event which earlier one is sent again.
        let again = again.iter().map(|(after, which)| {
            let after = after.index(events.len());
            (after, which.index(after + 1))
        });
        let again: Vec<(usize, usize)> = again.collect();
        play(|player| {
            for (n, event) in events.iter().enumerate() {
                let first = answer(&player.event(event));
                prop_assert_eq!(&first, &once[n]);
                for (_, which) in again.iter().filter(|(after, _)| *after == n) {
                    let repeated = answer(&player.event(&events[*which]));
                    let expected = match termination(&events[..=n], &once, &events[*which]) {
                        Some(verdict) => (None, false, Some(verdict)),
                        None => (once[*which].0, true, once[*which].2.clone()),
                    };
                    prop_assert_eq!(repeated, expected);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn an_event_has_at_most_one_verdict_and_the_next_index(acts in acts()) {
        let mut next = 0;
        for (index, duplicate, verdict) in play_events(&events("s", &acts)) {
            prop_assert!(!duplicate);
            match index {
                Some(index) => {
                    prop_assert_eq!(index, next);
                    next += 1;
                }
                // Only events of terminated sessions are not counted.
                None => prop_assert!(verdict.is_some_and(|v| v.contains(TERMINATE))),
            }
        }
    }

    #[test]
    fn a_termination_is_the_answer_until_a_reset(acts in acts(), looped in select(&[20, 25])) {
        let looped: Vec<Act> = std::iter::repeat_n(read(), looped).collect();
        let events = events("s", &[looped, acts].concat());
        play(|player| {
            let (ending, rest) = events.split_at(20);
            let mut verdict = None;
            for event in ending {
                verdict = player.event(event).verdict.or(verdict);
            }
            let verdict = verdict.unwrap();
            prop_assert_eq!(verdict.action, Some(Action::Terminate));
            for event in rest.iter().chain(&events) {
                let latched = player.event(event);
                prop_assert_eq!(latched.index, None);
                prop_assert_eq!(latched.verdict.map(|latched| latched.id), Some(verdict.id));
            }
            crate::harness::reset(&player.engine, &verdict.session, player.now);
            let again = player.event(&events[0]);
            prop_assert_eq!((again.index, again.verdict.is_none()), (Some(0), true));
            Ok(())
        })?;
    }

    #[test]
    fn invisible_characters_and_the_order_of_keys_change_nothing(
        acts in acts(),
        positions in vec(any::<Index>(), 1..20),
        unseen in select(&["\u{200b}", "\u{feff}", "\u{200d}", "\u{2060}", "\u{ad}"]),
    ) {
        let plain = events("s", &acts);
        let mut positions = positions.iter().cycle();
        let mut disguised = plain.clone();
        for event in &mut disguised {
            let mut sprinkle = |text: &mut String| {
                for position in positions.by_ref().take(2) {
                    text.insert_str(text.floor_char_boundary(position.index(text.len() + 1)), unseen);
                }
            };
            match &mut event.body {
                Some(Body::Turn(turn)) => sprinkle(&mut turn.text),
                Some(Body::ToolCall(call)) => {
                    if let Some(Arguments::ArgsJson(json)) = &mut call.arguments {
                        let tree: serde_json::Value = serde_json::from_str(json).unwrap();
                        *json = tree.to_string();
                        prop_assert!(json.starts_with("{\"deep\""), "another order");
                        sprinkle(json);
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(seen(play_events(&plain)), seen(play_events(&disguised)));
    }
}

proptest! {
    // Each history has an engine of its own.
    #![proptest_config(config(16))]

    #[test]
    fn sessions_do_not_affect_each_other(
        histories in vec(acts(), 2..5),
        turns in vec(any::<Index>(), 1..200),
    ) {
        let sessions = histories.iter().enumerate().map(|(n, acts)| events(&format!("s{n}"), acts));
        let sessions: Vec<Vec<pb::Event>> = sessions.collect();
        let alone = sessions.iter().map(|events| answers(&mut Player::new(), events));
        let alone: Vec<_> = alone.collect();

        let mut player = Player::new();
        let mut together = vec![Vec::new(); sessions.len()];
        let mut turns = turns.iter().cycle();
        loop {
            let left = |n: &usize| together[*n].len() < sessions[*n].len();
            let left: Vec<usize> = (0..sessions.len()).filter(left).collect();
            let (false, Some(turn)) = (left.is_empty(), turns.next()) else { break };
            let n = *turn.get(&left);
            let event = &sessions[n][together[n].len()];
            together[n].push(answer(&player.event(event)));
        }
        prop_assert_eq!(alone, together);
    }

    #[test]
    fn the_same_events_give_the_same_verdicts(acts in acts()) {
        let events = events("s", &acts);
        let names = |player: &mut Player| -> Vec<_> {
            let name = |recorded: RecordOutcome| recorded.verdict.map(|v| (v.id, v.loop_id));
            events.iter().map(|event| name(player.event(event))).collect()
        };
        prop_assert_eq!(names(&mut Player::new()), names(&mut Player::new()));
        let mut live = Player::with("", RunMode::Live).unwrap();
        prop_assert_eq!(answers(&mut Player::new(), &events), answers(&mut live, &events));
    }

    #[test]
    fn ended_sessions_leave_no_state(histories in vec(acts(), 1..6)) {
        let mut player = Player::new();
        for (n, acts) in histories.iter().enumerate() {
            answers(&mut player, &events(&format!("s{n}"), acts));
            prop_assert!(player.engine.live_sessions() <= n + 1);
        }
        for n in 0..histories.len() {
            let id = SessionId::parse(&format!("s{n}")).unwrap();
            prop_assert!(player.engine.end_session(&id, player.now).is_some());
        }
        prop_assert_eq!(player.engine.live_sessions(), 0);
        // Then their tombstones expire.
        let long_after = player.now + Duration::from_secs(8 * 24 * 60 * 60);
        player.engine.evict_expired(long_after, histories.len());
        prop_assert_eq!(player.engine.state_bytes(), 0);
        prop_assert_eq!(player.engine.tombstone_bytes(), 0);
    }
}

/// Text that has broken other programs.
fn hostile() -> impl Strategy<Value = String> {
    let known = select(&[
        "",
        "\0",
        "\u{202e}\u{200b}\u{feff}",
        "\x1b[31m\x1b]8;;x",
        "e\u{301}\u{301}\u{301}",
        "🏳️‍🌈",
        "{{ count }}{% for x in y %}",
        "[[[[[[[[",
        "{\"a\":",
        "{\"a\":1,\"a\":2}",
        "\"{\\\"path\\\":1}\"",
        "1e999",
        "-0",
        "\"\\ud800\"",
        "99999999999999999999",
        "2026-02-30T25:61:61.9Z",
        "12:",
        "1.2.3.4:",
        "İSTANBUL ǅ ß",
        "data:image/png;base64,AAAA",
        "0x",
        "\r\n\t\u{85}\u{2028}",
        "attempt ×3× 4th",
    ]);
    let nested = (
        1..3_000usize,
        select(&["[", "{\"a\":", "x ", "é", "\u{301}", "1:"]),
    );
    prop_oneof![
        4 => known.prop_map(str::to_owned),
        2 => any::<String>(),
        1 => nested.prop_map(|(times, text)| text.repeat(times)),
    ]
}

fn hostile_event() -> impl Strategy<Value = pb::Event> {
    let ids = (
        select(&["s", "t"]),
        hostile(),
        hostile(),
        hostile(),
        hostile(),
    );
    let call = (
        hostile(),
        -1..8i32,
        hostile(),
        0..4u8,
        hostile(),
        -1..5i32,
        vec(hostile(), 4),
    );
    let call = call.prop_map(
        |(tool, operation, target, form, args, outcome, mut texts)| {
            Body::ToolCall(pb::ToolCall {
                tool,
                operation,
                target,
                arguments: match form {
                    0 => None,
                    1 => Some(Arguments::ArgsHash(args)),
                    2 => serde_json::from_str(&args).ok().map(Arguments::Args),
                    _ => Some(Arguments::ArgsJson(args)),
                },
                outcome,
                error: texts.pop().unwrap_or_default(),
                result: texts.pop(),
                result_hash: texts.pop().unwrap_or_default(),
                content_hash: texts.pop().unwrap_or_default(),
            })
        },
    );
    let turn = (hostile(), -1..5i32, hostile());
    let turn = turn.prop_map(|(turn_id, role, text)| {
        Body::Turn(pb::Turn {
            turn_id,
            role,
            text,
        })
    });
    let marker = (-1..4i32, any::<i32>());
    let marker = marker.prop_map(|(kind, context_tokens)| {
        Body::Marker(pb::Marker {
            kind,
            context_tokens,
        })
    });
    let time = (
        any::<i64>(),
        -1_000_000..10_000_000_000i64,
        any::<bool>(),
        -1..1_000_000_001i32,
    );
    let time = time.prop_map(|(any, near, far, nanos)| Timestamp {
        seconds: if far { any } else { near },
        nanos,
    });
    let usage = (any::<i32>(), any::<i32>(), any::<f64>());
    let usage = usage.prop_map(|(input_tokens, output_tokens, cost_usd)| pb::Usage {
        input_tokens,
        output_tokens,
        cost_usd,
        cached_input_tokens: output_tokens,
    });
    let body = prop_oneof![4 => call, 3 => turn, 1 => marker];
    (
        ids,
        proptest::option::of(time),
        proptest::option::of(usage),
        body,
    )
        .prop_map(
            |((session, event_id, agent_id, round_id, state_hash), time, usage, body)| pb::Event {
                session_id: session.to_owned(),
                event_id,
                time,
                agent_id,
                round_id,
                state_hash,
                usage,
                body: Some(body),
            },
        )
}

/// Records bytes from the wire if they are an event or a delta.
fn show(player: &mut Player, wire: &[u8]) -> bool {
    let event = pb::Event::decode(wire)
        .ok()
        .and_then(|event| Event::try_from(event).ok());
    if let Some(event) = &event {
        player.now = event.time.unwrap_or(player.now);
        let _ = player.engine.record(event, player.now);
    }
    let delta = pb::Delta::decode(wire)
        .ok()
        .and_then(|delta| Delta::try_from(delta).ok());
    if let Some(delta) = &delta {
        let _ = player.engine.record_delta(delta, player.now);
    }
    event.is_some() || delta.is_some()
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn no_event_does_harm(
        events in vec((hostile_event(), 1..5usize), 1..6),
        flips in vec((any::<Index>(), any::<u8>()), 0..4),
    ) {
        play(|player| {
            for (event, times) in events {
                let mut wire = event.encode_to_vec();
                for _ in 0..times {
                    show(player, &wire);
                }
                for (position, byte) in &flips {
                    let position = position.index(wire.len());
                    wire[position] = *byte;
                }
                show(player, &wire);
            }
            player.engine.evict_expired(player.now, 100);
        });
    }

    #[test]
    fn no_delta_does_harm(
        deltas in vec((hostile(), hostile(), hostile(), -1..4i32, any::<bool>()), 1..12),
    ) {
        play(|player| {
            for (agent_id, turn_id, text, channel, end_of_turn) in deltas {
                let session_id = "s".to_owned();
                let delta = pb::Delta { session_id, agent_id, turn_id, channel, text, end_of_turn };
                show(player, &delta.encode_to_vec());
            }
        });
    }

    #[test]
    fn no_bytes_do_harm(wire in vec(any::<u8>(), 0..200)) {
        play(|player| show(player, &wire));
    }
}

/// The summary without parts that quote the arguments as sent.
fn seen(answers: Vec<Answer>) -> Vec<Answer> {
    let unseen = ['\u{200b}', '\u{feff}', '\u{200d}', '\u{2060}', '\u{ad}'];
    let strip = |text: String| {
        // `{:?}` has written them as escapes.
        let mut text = text;
        for c in unseen {
            text = text
                .replace(&c.escape_unicode().to_string(), "")
                .replace(c, "");
        }
        text
    };
    let strip = |(index, duplicate, verdict): Answer| (index, duplicate, verdict.map(strip));
    answers.into_iter().map(strip).collect()
}
