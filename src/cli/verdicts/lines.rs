use std::io::{self, Write};

use anstream::AutoStream;

use crate::{
    cli::{
        clock,
        output::{Output, proto_line, terminal},
        style::{self, BOLD, DIM},
        verdict::{action_name, gist},
        words::{columns_of, cut, shown},
    },
    pb::Verdict,
};

/// The longest action.
const ACTION_COLUMNS: usize = 10;
/// The longest detector.
const DETECTOR_COLUMNS: usize = 18;
/// Ids that are longer push the rest of their line to the right.
const SESSION_COLUMNS: usize = 24;

/// Verdicts, a line each, printed at once.
pub(in crate::cli) struct Lines {
    output: Output,
}

impl Lines {
    pub fn new(output: Output) -> Self {
        Self { output }
    }

    pub fn print(&mut self, verdict: &Verdict) -> io::Result<()> {
        match self.output {
            Output::Table => {
                let room = terminal().map(|(columns, _)| columns);
                let mut out = AutoStream::auto(io::stdout().lock());
                write(&mut out, verdict, room)?;
                out.flush()
            }
            Output::Json => {
                let mut out = io::stdout().lock();
                writeln!(out, "{}", proto_line(verdict)?)?;
                out.flush()
            }
        }
    }
}

/// `2026-03-11 09:15:10  WARN  read_loop  demo  read src/main.rs 3 times`
fn write(out: &mut impl Write, verdict: &Verdict, room: Option<usize>) -> io::Result<()> {
    let time = verdict.time.as_ref().map(clock::date_time);
    let time = time.unwrap_or_default();
    let action = action_name(verdict.action());
    let style = style::of_action(verdict.action());
    let detector = shown(&verdict.detector);
    let mut session = shown(&verdict.session_id);
    let agent = shown(&verdict.agent_id);
    if !agent.is_empty() {
        session += &format!(" ({agent})");
    }
    let mut told = shown(&gist(verdict));
    if verdict.shadow {
        told += " (shadow)";
    }
    let pad = |text: &str, columns: usize| " ".repeat(columns.saturating_sub(columns_of(text)));
    let room = room.unwrap_or(usize::MAX);
    // Of a narrow line the action stays: what was said is cut.
    let lead = 19 + 2 + ACTION_COLUMNS + 2 + DETECTOR_COLUMNS + 2;
    let session = cut(&session, room.saturating_sub(lead));
    let left = room.saturating_sub(lead + columns_of(&session).max(SESSION_COLUMNS) + 2);
    let told = cut(&told, left);
    writeln!(
        out,
        "{DIM}{time:<19}{DIM:#}  {style}{action:<ACTION_COLUMNS$}{style:#}  \
         {detector}{}  {BOLD}{session}{BOLD:#}{}  {told}",
        pad(&detector, DETECTOR_COLUMNS),
        pad(&session, SESSION_COLUMNS),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::style::without_colours, pb};

    #[track_caller]
    fn check(verdict: &Verdict, room: Option<usize>, expected: &str) {
        let mut out = Vec::new();
        write(&mut out, verdict, room).unwrap();
        assert_eq!(without_colours(&out), expected);
    }

    fn verdict() -> Verdict {
        Verdict {
            session_id: "demo".to_owned(),
            time: Some(pbjson_types::Timestamp {
                seconds: 1_773_220_510,
                nanos: 0,
            }),
            action: pb::Action::Warn.into(),
            detector: "read_loop".to_owned(),
            pattern: "read src/main.rs 3 times, nothing changed".to_owned(),
            ..Verdict::default()
        }
    }

    #[test]
    fn a_verdict_is_a_line_that_is_cut_to_its_room() {
        check(
            &verdict(),
            None,
            "2026-03-11 09:15:10  WARN        read_loop           demo                      \
             read src/main.rs 3 times, nothing changed\n",
        );
        check(
            &verdict(),
            Some(100),
            "2026-03-11 09:15:10  WARN        read_loop           demo                      \
             read src/main.rs 3 t…\n",
        );
    }

    #[test]
    fn without_its_text_a_verdict_still_says_what_happened() {
        let member = |tool: &str| pb::Member {
            tool: tool.to_owned(),
            ..Default::default()
        };
        let bare = Verdict {
            pattern: String::new(),
            members: vec![member("read_file"), member("grep")],
            evidence: Some(pb::Evidence {
                count: 3,
                period: 2,
                ..Default::default()
            }),
            ..verdict()
        };
        assert_eq!(gist(&bare), "3 laps of 2 read_file, grep");
    }

    #[test]
    fn hostile_text_stays_on_the_line() {
        let hostile = Verdict {
            session_id: "a\x1b[2Jb".to_owned(),
            agent_id: "\u{9b}31m".to_owned(),
            pattern: "x\r\ny\u{202e}".to_owned(),
            ..verdict()
        };
        check(
            &hostile,
            None,
            "2026-03-11 09:15:10  WARN        read_loop           a[2Jb (31m)               x y\n",
        );
    }
}
