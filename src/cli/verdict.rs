//! A verdict, as a person reads it: on a line, or in full.

use std::io::{self, Write};

use super::{
    style::{self, DIM},
    text_format::{format_cost, sanitize, truncate, wrap},
    time_format,
};
use crate::{
    domain::format_ranges,
    pb::{Action, Evidence, Explanation, Verdict, Wasted},
};

const INDENT: &str = "    ";
/// Labels stand in a column of their own.
const LABEL_COLUMNS: usize = 12;
/// Of an agent's name, what leaves room for the rest of the line.
const AGENT_COLUMNS_MAX: usize = 40;

/// `WARN`; of what asks for nothing, such as a reset, `NOTE`.
pub(super) fn action_name(action: Action) -> &'static str {
    match action {
        Action::Unspecified => "NOTE",
        named => named.as_str_name().trim_start_matches("ACTION_"),
    }
}

/// A verdict with what it rests on.
pub(super) struct VerdictBlock<'a> {
    verdict: &'a Verdict,
    explanation: Option<&'a Explanation>,
    with_correction: bool,
}

impl<'a> VerdictBlock<'a> {
    pub fn new(verdict: &'a Verdict) -> Self {
        Self {
            verdict,
            explanation: None,
            with_correction: true,
        }
    }

    pub fn without_correction(self) -> Self {
        Self {
            with_correction: false,
            ..self
        }
    }

    /// With the rule that it follows.
    pub fn with_explanation(self, explanation: Option<&'a Explanation>) -> Self {
        Self {
            explanation,
            ..self
        }
    }

    pub fn write(&self, out: &mut impl Write, columns: usize) -> io::Result<()> {
        let verdict = self.verdict;
        self.write_heading(out)?;
        for line in wrap(&verdict.pattern, columns - INDENT.len()) {
            writeln!(out, "{INDENT}{line}")?;
        }
        write_row(out, "why", &verdict.reason, columns)?;
        if let Some(explanation) = self.explanation {
            write_row(out, "rule", &explanation.rule, columns)?;
            write_row(out, "fires at", &explanation.threshold, columns)?;
        }
        write_row(out, "events", &self.format_events(), columns)?;
        if let Some(explanation) = self.explanation {
            write_row(out, "avoided by", &explanation.quiet, columns)?;
        }
        write_row(out, "cost so far", &self.format_wasted(), columns)?;
        write_row(out, "wait", &self.format_wait(), columns)?;
        if self.with_correction {
            write_row(out, "correction", &verdict.correction, columns)?;
        }
        writeln!(out)
    }

    /// `● WARN at event 13 · exact_repeat · 2026-03-11 09:14:40`
    fn write_heading(&self, out: &mut impl Write) -> io::Result<()> {
        let verdict = self.verdict;
        let style = style::action_style(verdict.action());
        write!(out, "  {style}● {}{style:#}", action_name(verdict.action()))?;
        if verdict.event_index >= 0 {
            write!(out, " at event {}", verdict.event_index)?;
        }
        let also = verdict
            .also
            .iter()
            .map(|also| format!(", {}", sanitize(also)));
        let detectors = sanitize(&verdict.detector) + &also.collect::<String>();
        write!(out, " {DIM}·{DIM:#} {detectors}")?;
        let agent = truncate(&sanitize(&verdict.agent_id), AGENT_COLUMNS_MAX);
        let mut notes = Vec::new();
        if !agent.is_empty() {
            notes.push(format!("agent {agent}"));
        }
        notes.extend(verdict.time.as_ref().map(time_format::format_date_time));
        if verdict.shadow {
            notes.push("shadow".to_owned());
        }
        for note in notes {
            write!(out, " {DIM}· {note}{DIM:#}")?;
        }
        writeln!(out)
    }

    fn format_events(&self) -> String {
        let evidence = self.verdict.evidence.as_ref();
        let indexes = format_ranges(evidence.map_or(&[], |evidence| &evidence.event_indexes));
        match evidence {
            // An explanation names the number that was needed: here is what stood.
            Some(Evidence { count: 1.., .. }) if self.explanation.is_some() => {
                format!("{indexes} ({})", format_repetitions(self.verdict))
            }
            _ => indexes,
        }
    }

    fn format_wasted(&self) -> String {
        // An operator's act rests on no event and cost nothing.
        if self.verdict.event_index < 0 {
            return String::new();
        }
        let Wasted {
            events,
            tokens,
            cost_usd,
        } = self.verdict.wasted.unwrap_or_default();
        format_cost(events.into(), tokens.into(), cost_usd)
    }

    fn format_wait(&self) -> String {
        let wait = self.verdict.retry_after.as_ref();
        wait.map(|wait| format!("{} s", wait.seconds))
            .unwrap_or_default()
    }
}

/// A label and its text, nothing where there is none.
fn write_row(out: &mut impl Write, label: &str, text: &str, columns: usize) -> io::Result<()> {
    let width_max = columns - INDENT.len() - LABEL_COLUMNS;
    let mut label = label;
    for line in wrap(text, width_max) {
        writeln!(out, "{INDENT}{DIM}{label:<LABEL_COLUMNS$}{DIM:#}{line}")?;
        label = "";
    }
    Ok(())
}

/// What happened, where the text of it is not kept: `3 times read_file`.
pub(super) fn describe_verdict(verdict: &Verdict) -> String {
    if verdict.detector == crate::domain::OPERATOR {
        let summary = match (&*verdict.pattern, &*verdict.operator) {
            (pattern, "" | "unknown") => pattern.to_owned(),
            (pattern, operator) => format!("{pattern}, {operator}"),
        };
        return format!("{summary}: {}", verdict.reason);
    }
    if !verdict.pattern.is_empty() {
        return verdict.pattern.clone();
    }
    let tools: Vec<&str> = verdict.members.iter().map(|m| m.tool.as_str()).collect();
    format!("{} {}", format_repetitions(verdict), tools.join(", "))
}

/// `3 times`, or `3 laps of 2`.
fn format_repetitions(verdict: &Verdict) -> String {
    let evidence = verdict.evidence.clone().unwrap_or_default();
    match (evidence.count, evidence.period) {
        (1, _) => "once".to_owned(),
        (count, period @ 2..) => format!("{count} laps of {period}"),
        (count, _) => format!("{count} times"),
    }
}
