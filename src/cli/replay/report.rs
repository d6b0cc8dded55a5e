//! What a person sees: a timeline of each session that loops, the totals, and
//! the whole in a few words.

mod timeline;
mod totals;

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
};

use anstream::AutoStream;

use super::summary::{Summary, Tally};
use crate::cli::{
    output::columns,
    trace::player::{Given, Player},
    words::{cost, counted, wrapped},
};

/// The verdicts of a run, by session in the order of the trace.
#[derive(Default)]
pub(super) struct Report {
    given: BTreeMap<usize, Vec<Given>>,
}

impl Report {
    pub fn keep(&mut self, given: Given) {
        self.given.entry(given.session).or_default().push(given);
    }

    pub fn print(&self, player: &Player, tally: &Tally, summary: &Summary) -> io::Result<()> {
        let stdout = io::stdout().lock();
        let columns = columns(&stdout);
        // Takes colours out where they are not wanted.
        let mut out = BufWriter::new(AutoStream::auto(stdout));
        for (place, given) in &self.given {
            if let Some(view) = player.session(*place) {
                timeline::write(&mut out, &view, given, columns)?;
            }
        }
        if summary.verdicts.total > 0 {
            writeln!(out, "{}\n", totals::table(tally))?;
        }
        for line in wrapped(&conclusion(summary), columns) {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }
}

/// The run in a few words.
fn conclusion(summary: &Summary) -> String {
    let events = counted(summary.events, "event");
    let sessions = counted(summary.sessions, "session");
    let mut told = format!("{events} in {sessions}");
    let verdicts = counted(summary.verdicts.total, "verdict");
    told += &match (summary.looping_sessions, summary.sessions) {
        (0, _) => ": no loops.".to_owned(),
        (1, 1) => format!(", which looped: {verdicts}."),
        (looping, _) => format!(", {looping} of them looping: {verdicts}."),
    };
    let saved = summary.saved;
    if saved.events > 0 {
        let saved = cost(saved.events, saved.tokens, saved.cost_usd);
        told += &format!(" Acting on the first ones would have saved {saved}.");
    } else if summary.verdicts.total > 0 {
        told +=
            " Each came with the last event of its loop: acting on it would have saved nothing.";
    }
    if summary.bad_lines > 0 {
        let lines = counted(summary.bad_lines, "line");
        let were = if summary.bad_lines == 1 {
            "was"
        } else {
            "were"
        };
        told += &format!(" {lines} could not be read and {were} left out.");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::replay::summary::{Sum, Verdicts};

    #[track_caller]
    fn check(sessions: u64, looping: u64, verdicts: u64, saved: Sum, expected: &str) {
        let summary = Summary {
            events: 37,
            sessions,
            looping_sessions: looping,
            verdicts: Verdicts {
                total: verdicts,
                ..Verdicts::default()
            },
            saved,
            ..Summary::default()
        };
        assert_eq!(conclusion(&summary), expected);
    }

    #[test]
    fn the_last_words_are_a_sentence() {
        let nothing = Sum::default();
        let saved = Sum {
            events: 5,
            tokens: 12_300,
            cost_usd: 0.41,
        };
        check(3, 0, 0, nothing, "37 events in 3 sessions: no loops.");
        check(
            1,
            1,
            1,
            Sum {
                events: 1,
                ..nothing
            },
            "37 events in 1 session, which looped: 1 verdict. \
             Acting on the first ones would have saved 1 event.",
        );
        check(
            3,
            2,
            4,
            saved,
            "37 events in 3 sessions, 2 of them looping: 4 verdicts. \
             Acting on the first ones would have saved 5 events, 12,300 tokens, $0.41.",
        );
    }
}
