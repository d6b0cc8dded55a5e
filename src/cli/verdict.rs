//! A verdict as text: on one line, or in full.

use std::io::{self, Write};

use super::{
    style::{self, DIM},
    text_format::{sanitize, truncate, wrap},
    time_format,
    waste::WasteTotals,
};
use crate::{
    domain::format_ranges,
    pb::{Action, Evidence, Explanation, Verdict},
};

const INDENT: &str = "    ";
/// The width of the column of labels.
const LABEL_COLUMNS: usize = 12;
/// The same with an explanation, for its longest label and two spaces.
const EXPLAINED_LABEL_COLUMNS: usize = WOULD_NOT_FIRE_IF.len() + 2;
const WOULD_NOT_FIRE_IF: &str = "would not fire if";
/// A longer agent name is truncated, to leave space for the rest of the line.
const AGENT_COLUMNS_MAX: usize = 40;

/// `WARN`, or `NOTE` for a record without an action, such as a reset.
pub(super) fn action_name(action: Action) -> &'static str {
    match action {
        Action::Unspecified => "NOTE",
        named => named.as_str_name().trim_start_matches("ACTION_"),
    }
}

/// A verdict with its evidence.
pub(super) struct VerdictBlock<'a> {
    verdict: &'a Verdict,
    explanation: Option<&'a Explanation>,
    with_correction: bool,
    with_id: bool,
}

impl<'a> VerdictBlock<'a> {
    pub fn new(verdict: &'a Verdict) -> Self {
        Self {
            verdict,
            explanation: None,
            with_correction: true,
            with_id: false,
        }
    }

    pub fn without_correction(self) -> Self {
        Self {
            with_correction: false,
            ..self
        }
    }

    /// Adds the id, by which it is rated.
    pub fn with_id(self) -> Self {
        Self {
            with_id: true,
            ..self
        }
    }

    /// Adds the detector's rule.
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
        let mut write_row = |label, text: &str| self.write_row(out, label, text, columns);
        write_row("why", &verdict.reason)?;
        write_row("by", operator_name(verdict).unwrap_or_default())?;
        if let Some(explanation) = self.explanation {
            write_row("rule", &explanation.rule)?;
            write_row("fires at", &explanation.threshold)?;
        }
        write_row("events", &self.format_events())?;
        if let Some(explanation) = self.explanation {
            write_row(WOULD_NOT_FIRE_IF, &explanation.would_not_fire_if)?;
        }
        write_row("wasted", &self.format_wasted())?;
        write_row("wait", &self.format_wait())?;
        if self.with_correction {
            write_row("correction", &verdict.correction)?;
        }
        if self.with_id {
            write_row("id", &verdict.verdict_id)?;
        }
        writeln!(out)
    }

    /// Writes a label and its text, or nothing for an empty text.
    fn write_row(
        &self,
        out: &mut impl Write,
        label: &str,
        text: &str,
        columns: usize,
    ) -> io::Result<()> {
        let label_columns = match self.explanation {
            Some(_) => EXPLAINED_LABEL_COLUMNS,
            None => LABEL_COLUMNS,
        };
        let width_max = columns - INDENT.len() - label_columns;
        for (index, line) in wrap(text, width_max).iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            writeln!(out, "{INDENT}{DIM}{label:<label_columns$}{DIM:#}{line}")?;
        }
        Ok(())
    }

    /// `● WARN at event 13 · exact_repeat · 2026-03-11 09:14:40Z`
    fn write_heading(&self, out: &mut impl Write) -> io::Result<()> {
        let verdict = self.verdict;
        let style = style::action_style(verdict.action());
        write!(out, "  {style}● {}{style:#}", action_name(verdict.action()))?;
        if verdict.event_index >= 0 {
            write!(out, " at event {}", verdict.event_index)?;
        }
        let mut detectors = sanitize(&verdict.detector);
        for also in &verdict.also {
            detectors += &format!(", {}", sanitize(also));
        }
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
            // An explanation states the threshold; this is the actual count.
            Some(Evidence { count: 1.., .. }) if self.explanation.is_some() => {
                format!("{indexes} ({})", format_repetitions(self.verdict))
            }
            _ => indexes,
        }
    }

    fn format_wasted(&self) -> String {
        // An operator's action concerns no event and wasted nothing.
        if self.verdict.event_index < 0 {
            return String::new();
        }
        let wasted = self.verdict.wasted.unwrap_or_default();
        WasteTotals::from(wasted).format()
    }

    fn format_wait(&self) -> String {
        let wait = self.verdict.retry_after.as_ref();
        wait.map(|wait| format!("{} s", wait.seconds))
            .unwrap_or_default()
    }
}

/// The operator who acted, if it is an operator's action and they gave a name.
pub(super) fn operator_name(verdict: &Verdict) -> Option<&str> {
    let name = verdict.operator.as_str();
    (!matches!(name, "" | "unknown")).then_some(name)
}

/// The pattern, or `3 times read_file` if the pattern's text is not retained.
pub(super) fn describe_verdict(verdict: &Verdict) -> String {
    if verdict.detector == crate::domain::OPERATOR {
        let summary = match operator_name(verdict) {
            None => verdict.pattern.clone(),
            Some(operator) => format!("{}, {operator}", verdict.pattern),
        };
        return match verdict.reason.as_str() {
            // A rating needs no reason.
            "" => summary,
            reason => format!("{summary}: {reason}"),
        };
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
