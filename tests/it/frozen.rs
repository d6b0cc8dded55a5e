//! Sessions that are frozen to bytes and thawed go on as if nothing had happened.

use std::fs;

use unstuck::{domain::SessionId, engine::ThawOutcome};

use crate::{
    play::{Line, Player},
    traces,
};

/// Freezes the session of the line, removes it, and thaws it again.
#[track_caller]
fn freeze_and_thaw(player: &Player, line: &Line) {
    let id = match line {
        Line::Event(event) => &event.session_id,
        Line::Delta(delta) => &delta.session_id,
    };
    let id = SessionId::parse(id).unwrap();
    let Some(frozen) = player.engine.freeze_session(&id) else {
        return;
    };
    let before = player.engine.detail(&id);
    player.engine.release_session(&id);
    assert!(!player.engine.contains(&id));
    let thawed = player.engine.thaw_session(&frozen, player.now);
    assert_eq!(thawed, ThawOutcome::Whole);
    assert_eq!(
        format!("{:?}", player.engine.detail(&id)),
        format!("{before:?}")
    );
    let again = player.engine.freeze_session(&id);
    assert_eq!(again, Some(frozen), "the same bytes");
}

#[test]
fn a_session_frozen_before_every_event_gets_the_same_answers() {
    for (detector, path) in traces::files() {
        let lines = Line::read(&fs::read_to_string(&path).unwrap());
        let (mut uninterrupted, mut interrupted) = (traces::player(&path), traces::player(&path));
        for (number, line) in lines.iter().enumerate() {
            if !matches!(line, Line::Delta(_)) {
                freeze_and_thaw(&interrupted, line);
            }
            assert_eq!(
                format!("{:?}", interrupted.play(line)),
                format!("{:?}", uninterrupted.play(line)),
                "{detector}, line {number}"
            );
        }
        assert_eq!(
            interrupted.engine.live_sessions(),
            uninterrupted.engine.live_sessions()
        );
    }
}
