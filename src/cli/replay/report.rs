//! The output of a replay as text: the verdicts of each looping session, a table
//! of totals and a summary.

mod timeline;
mod totals;

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
};

use anstream::AutoStream;

use super::summary::{ReplayCounts, ReplaySummary};
use crate::cli::{
    output::output_width,
    text_format::{pluralize, wrap},
    trace::player::{TracePlayer, TraceVerdict},
};

/// The verdicts of a run, by session in the order of the trace.
#[derive(Default)]
pub(super) struct ReplayReport {
    verdicts_by_session: BTreeMap<usize, Vec<TraceVerdict>>,
}

impl ReplayReport {
    pub fn push(&mut self, played: TraceVerdict) {
        self.verdicts_by_session
            .entry(played.session)
            .or_default()
            .push(played);
    }

    pub fn print(
        &self,
        player: &TracePlayer,
        counts: &ReplayCounts,
        summary: &ReplaySummary,
    ) -> io::Result<()> {
        let stdout = io::stdout().lock();
        let columns = output_width(&stdout);
        // `AutoStream` strips colours if standard output does not support them.
        let mut out = BufWriter::new(AutoStream::auto(stdout));
        for (index, verdicts) in &self.verdicts_by_session {
            if let Some(view) = player.session(*index) {
                timeline::write_session(&mut out, &view, verdicts, columns)?;
            }
        }
        if summary.verdicts.total > 0 {
            writeln!(out, "{}\n", totals::render_totals(counts))?;
        }
        for line in wrap(&render_summary(summary), columns) {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }
}

/// The run in a few sentences.
fn render_summary(summary: &ReplaySummary) -> String {
    let events = pluralize(summary.events, "event");
    let sessions = pluralize(summary.sessions, "session");
    let mut text = format!("{events} in {sessions}");
    let verdicts = pluralize(summary.verdicts.total, "verdict");
    text += &match (summary.looping_sessions, summary.sessions) {
        (0, _) => ": no loops.".to_owned(),
        (1, 1) => format!(", looping: {verdicts}."),
        (looping, _) => format!(", {looping} of them looping: {verdicts}."),
    };
    let saved = summary.saved;
    if saved.events > 0 {
        let saved = saved.format();
        text += &format!(" Acting on the first verdict of each loop would have saved {saved}.");
    } else if summary.verdicts.total > 0 {
        text += " Each verdict came with the last event of its loop: acting on it would have \
                 saved nothing.";
    }
    if summary.bad_lines > 0 {
        let lines = pluralize(summary.bad_lines, "invalid line");
        text += &format!(" Skipped {lines}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{replay::summary::ReplayVerdictTotals, waste::WasteTotals};

    #[track_caller]
    fn check(sessions: u64, looping: u64, verdicts: u64, saved: WasteTotals, expected: &str) {
        let summary = ReplaySummary {
            events: 37,
            sessions,
            looping_sessions: looping,
            verdicts: ReplayVerdictTotals {
                total: verdicts,
                ..ReplayVerdictTotals::default()
            },
            saved,
            ..ReplaySummary::default()
        };
        assert_eq!(render_summary(&summary), expected);
    }

    #[test]
    fn the_summary_names_events_sessions_verdicts_and_savings() {
        let nothing = WasteTotals::default();
        let saved = WasteTotals {
            events: 5,
            tokens: 12_300,
            cached_tokens: 0,
            cost_usd: 0.41,
        };
        check(3, 0, 0, nothing, "37 events in 3 sessions: no loops.");
        check(
            1,
            1,
            1,
            WasteTotals {
                events: 1,
                ..nothing
            },
            "37 events in 1 session, looping: 1 verdict. \
             Acting on the first verdict of each loop would have saved 1 event.",
        );
        check(
            3,
            2,
            4,
            saved,
            "37 events in 3 sessions, 2 of them looping: 4 verdicts. \
             Acting on the first verdict of each loop would have saved 5 events, 12,300 tokens, \
             $0.41.",
        );
    }
}
