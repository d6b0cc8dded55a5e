//! Streamed text: deltas of a turn while the model writes it.

use unstuck::pb::{Action, Channel, Delta};

use crate::harness::*;

/// The texts as deltas, cut into pieces of `chars` characters; the last piece
/// of each ends its turn.
fn cut(session: &str, texts: &[String], chars: usize) -> Vec<Delta> {
    let mut deltas = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        let turn_id = format!("t{n}");
        let text: Vec<char> = text.chars().collect();
        for part in text.chunks(chars) {
            deltas.push(piece(session, &turn_id, &part.iter().collect::<String>()));
        }
        deltas.push(last_delta(session, &turn_id, ""));
    }
    deltas
}

fn similar() -> Vec<String> {
    WORDS.map(like).to_vec()
}

/// The action at the end of each turn.
async fn actions(server: &Server, deltas: Vec<Delta>) -> Vec<Action> {
    let mut stream = server.deltas().await;
    let turns = deltas.iter().filter(|delta| delta.end_of_turn).count();
    for some in deltas.chunks(100) {
        stream.send(pieces(some.to_vec())).await;
    }
    let mut actions = Vec::new();
    for _ in 0..turns {
        let answer = stream.receive().await;
        assert!(answer.end_of_turn, "{answer:?}");
        actions.push(answer.action());
    }
    actions
}

const SIMILAR: [Action; 6] = [
    Action::Unspecified,
    Action::Unspecified,
    Action::Unspecified,
    Action::Warn,
    Action::Escalate,
    Action::Terminate,
];

#[tokio::test]
async fn similar_texts_are_terminated_however_they_are_cut() {
    let server = Server::start().await;
    for chars in [1, 2, 7, 1_000] {
        let deltas = cut(&format!("s{chars}"), &similar(), chars);
        assert_eq!(actions(&server, deltas).await, SIMILAR, "{chars} at a time");
    }
}

#[tokio::test]
async fn streamed_and_whole_turns_give_the_same_verdicts() {
    let server = Server::start().await;
    let whole: Vec<_> = similar()[..3].iter().map(|text| turn(text)).collect();
    server.play("s", whole).await;
    let rest = cut("s", &similar()[3..], 5);
    assert_eq!(actions(&server, rest).await, SIMILAR[3..]);
}

#[tokio::test]
async fn a_delta_is_answered_only_with_a_verdict() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    stream
        .send(pieces([piece("s", "t", "let "), piece("s", "u", "me ")]))
        .await;
    let answer = stream.ask(pieces([last_delta("s", "u", "look")])).await;
    let names = (&*answer.session_id, &*answer.turn_id, answer.end_of_turn);
    assert_eq!(names, ("s", "u", true));
    assert_eq!((answer.verdict, answer.error), (None, None));
    assert_eq!(stream.finish().await, []);
}

#[tokio::test]
async fn a_turn_that_was_streamed_is_a_duplicate() {
    let server = Server::start().await;
    actions(&server, vec![last_delta("s", "t", "let me look")]).await;
    let result = server.record(turn("let me look").named("t").of("s")).await;
    assert_eq!((result.duplicate, result.event_index), (true, 0));
    assert_eq!(server.get("s").await.unwrap().turns, 1);
}

#[tokio::test]
async fn a_turn_that_was_sent_whole_is_not_counted_again_when_it_is_streamed() {
    let server = Server::start().await;
    server.record(turn("let me look").named("t").of("s")).await;
    actions(&server, vec![last_delta("s", "t", "let me look")]).await;
    assert_eq!(server.get("s").await.unwrap().turns, 1);
}

#[tokio::test]
async fn the_turns_of_two_agents_may_share_an_id() {
    let server = Server::start().await;
    server.record(turn("let me look").named("t").of("s")).await;
    let other = server
        .record(turn("let me look").named("t").by("a").of("s"))
        .await;
    assert_eq!((other.duplicate, other.event_index), (false, 1));
}

#[tokio::test]
async fn texts_streamed_at_the_same_time_are_kept_separate() {
    let server = Server::start().await;
    let one = like("colour");
    let other = "meanwhile another generation writes of quite different things altogether";
    let mut deltas = Vec::new();
    for (a, b) in one.split_inclusive(' ').zip(other.split_inclusive(' ')) {
        deltas.extend([piece("s", "one", a), piece("s", "other", b)]);
    }
    let left: String = one
        .split_inclusive(' ')
        .skip(other.split(' ').count())
        .collect();
    deltas.extend([last_delta("s", "one", &left), last_delta("s", "other", "")]);
    actions(&server, deltas).await;
    let results = server.play("s", turn(&one).times(3)).await;
    assert_eq!(verdicts(&results), [(4, Action::Warn)]);
    assert_eq!(verdict(&results[2]).confidence, 1.0);
}

#[tokio::test]
async fn a_tool_call_restarts_the_text() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    let unfinished = pieces([piece("s", "", "this was never finished and is forgotten")]);
    stream.send(unfinished).await;
    // The answer to another text on the stream shows that the delta was recorded.
    stream.ask(pieces([last_delta("fence", "", "")])).await;
    server.record(ask("x").of("s")).await;
    stream
        .ask(pieces([last_delta("s", "", &like("colour"))]))
        .await;
    let results = server.play("s", turn(&like("colour")).times(3)).await;
    assert_eq!(verdicts(&results), [(4, Action::Break)]);
}

#[tokio::test]
async fn reasoning_is_no_turn() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    let thought = |delta: Delta| Delta {
        channel: Channel::Reasoning.into(),
        ..delta
    };
    for word in WORDS {
        let ended = thought(last_delta("s", word, &like("colour")));
        let answer = stream.ask(pieces([ended])).await;
        assert_eq!(
            (answer.action(), answer.end_of_turn),
            (Action::Unspecified, true)
        );
    }
    assert_eq!(server.get("s").await.unwrap().turns, 0);
}

#[tokio::test]
async fn a_text_is_recorded_after_the_reasoning_of_its_turn_has_ended() {
    let server = Server::start().await;
    let thought = |turn_id: &str| Delta {
        channel: Channel::Reasoning.into(),
        ..last_delta("s", turn_id, "hm")
    };
    let mut deltas = Vec::new();
    for word in WORDS {
        deltas.extend([thought(word), last_delta("s", word, &like(word))]);
    }
    let issued = actions(&server, deltas).await;
    let visible: Vec<_> = issued.into_iter().skip(1).step_by(2).collect();
    assert_eq!(visible, SIMILAR);
}

#[tokio::test]
async fn reasoning_that_ends_the_turn_ends_the_text_before_it() {
    let server = Server::start().await;
    let ended = Delta {
        channel: Channel::Reasoning.into(),
        ..last_delta("s", "t", "that should do")
    };
    actions(&server, vec![piece("s", "t", "let me look"), ended]).await;
    assert_eq!(server.get("s").await.unwrap().turns, 1);
}

#[tokio::test]
async fn each_delta_of_a_terminated_text_is_answered() {
    let server = Server::start().await;
    actions(&server, cut("s", &similar(), 10)).await;
    let mut stream = server.deltas().await;
    for _ in 0..3 {
        let answer = stream.ask(pieces([piece("s", "t9", "and ")])).await;
        assert_eq!(
            (answer.action(), answer.end_of_turn),
            (Action::Terminate, false)
        );
    }
}

#[tokio::test]
async fn deltas_of_a_sub_agent_are_its_own() {
    let server = Server::start().await;
    let of = |agent: &str, delta: Delta| Delta {
        agent_id: agent.to_owned(),
        ..delta
    };
    let mut deltas = Vec::new();
    for word in WORDS {
        for agent in ["a", "b"] {
            deltas.push(of(agent, last_delta("s", word, &like(word))));
        }
    }
    let issued = actions(&server, deltas).await;
    let of_a: Vec<_> = issued.iter().copied().step_by(2).collect();
    assert_eq!(of_a, SIMILAR);
}

#[tokio::test]
async fn a_batch_of_deltas_is_bounded() {
    let server = Server::start().await;
    for count in [0, 257] {
        let mut stream = server.deltas().await;
        stream.send(pieces(vec![piece("s", "", "x"); count])).await;
        assert_invalid(&stream.next().await.unwrap_err(), "deltas");
    }
}

#[tokio::test]
async fn an_invalid_delta_is_named() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    let bad = Delta {
        channel: 99,
        agent_id: "a".to_owned(),
        ..piece("s", "t", "x")
    };
    let answer = stream.ask(pieces([bad])).await;
    let names = (&*answer.session_id, &*answer.agent_id, &*answer.turn_id);
    assert_eq!(names, ("s", "a", "t"));
    assert_eq!(answer.error.unwrap().field, "channel");
}

#[tokio::test]
async fn bytes_of_text_are_counted() {
    let server = Server::start().await;
    actions(
        &server,
        vec![piece("s", "", "größe"), last_delta("s", "", "!")],
    )
    .await;
    assert_eq!(server.metric("unstuck_delta_bytes_total").await, 8.0);
}
