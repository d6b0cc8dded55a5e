use super::*;
use crate::{
    cli::style::strip_colours,
    pb::{Outcome, TimelineEntry, TimelineKind, Verdict},
};

fn call(event_index: i32, same: i32, loop_id: &str, target: &str) -> TimelineEntry {
    TimelineEntry {
        event_index,
        kind: TimelineKind::ToolCall.into(),
        tool: "read_file".to_owned(),
        target: target.to_owned(),
        outcome: Outcome::Ok.into(),
        same,
        loop_id: loop_id.to_owned(),
        ..TimelineEntry::default()
    }
}

fn page(answer: &GetSessionResponse) -> String {
    let mut out = Vec::new();
    write_page(&mut out, answer, &EarlierVerdicts::default(), 80).unwrap();
    strip_colours(&out)
}

/// Colours are stripped before.
#[track_caller]
fn assert_printable(page: &str) {
    let unprintable = page
        .chars()
        .find(|c| *c != '\n' && crate::domain::sanitize::is_unprintable(*c) && *c != ' ');
    assert_eq!(unprintable, None, "{page}");
}

#[test]
fn members_of_a_loop_are_aligned_in_the_timeline() {
    let answer = GetSessionResponse {
        session: Some(Session::default()),
        timeline: vec![
            call(3, 0, "", "README.md"),
            call(4, 1, "x", "a.rs"),
            call(5, 2, "x", "漢字.rs"),
            call(6, 1, "x", "a.rs"),
            call(9, 2, "x", "漢字.rs"),
        ],
        ..GetSessionResponse::default()
    };
    let page = page(&answer);
    let lines = [
        "event  same  tool       target            outcome",
        "    ⋮                   3 events earlier",
        "    3  · ·   read_file  README.md         ok",
        "    4  A ·   read_file  a.rs              ok",
        "    5  · B   read_file  漢字.rs           ok",
        "    6  A ·   read_file  a.rs              ok",
        "    ⋮                   2 events omitted",
        "    9  · B   read_file  漢字.rs           ok",
    ];
    assert!(page.contains(&lines.join("\n")), "{page}");
}

#[test]
fn agent_text_cannot_control_the_terminal() {
    let hostile = "\x1b[2J\u{9b}31m\u{202e}a\r\nb\x07\u{85}c\u{2028}d";
    let text = || hostile.to_owned();
    let verdict = Verdict {
        session_id: text(),
        agent_id: text(),
        detector: text(),
        also: vec![text()],
        pattern: text(),
        reason: text(),
        correction: text(),
        ..Verdict::default()
    };
    let mut entry = call(0, 1, hostile, hostile);
    entry.tool = text();
    entry.agent_id = text();
    let answer = GetSessionResponse {
        session: Some(Session {
            session_id: text(),
            profile: text(),
            labels: [(text(), text())].into(),
            trends: vec![pb::DetectorTrend {
                agent_id: text(),
                detector: text(),
                trend: None,
            }],
            abstentions: vec![pb::Abstention {
                detector: text(),
                field: text(),
                events: 1,
            }],
            termination: Some(verdict.clone()),
            last_verdicts: vec![verdict],
            ..Session::default()
        }),
        timeline: vec![entry],
        explanations: vec![pb::Explanation {
            detector: text(),
            rule: text(),
            threshold: text(),
            would_not_fire_if: text(),
        }],
    };
    assert_printable(&page(&answer));
}

#[test]
fn a_session_of_an_agent_program_says_how_to_open_it_again() {
    let labels = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let answer = |labels| GetSessionResponse {
        session: Some(Session {
            session_id: "0c1d-7".to_owned(),
            labels,
            ..Session::default()
        }),
        ..GetSessionResponse::default()
    };
    let of_program = labels(&[
        ("agent", "claude-code"),
        ("project", "demo"),
        ("source", "hook"),
    ]);
    let text = page(&answer(of_program));
    assert!(
        text.contains("resume    claude --resume 0c1d-7\n"),
        "{text}"
    );
    assert!(
        text.contains("agent=claude-code project=demo source=hook"),
        "{text}"
    );
    let of_broker = labels(&[("agent", "mine")]);
    assert!(!page(&answer(of_broker)).contains("resume"));
}
