//! A verdict, as a person reads it: on a line, or in full.

use std::io::{self, Write};

use super::{
    clock,
    style::{self, DIM},
    words::{cost, cut, shown, wrapped},
};
use crate::{
    domain::ranges,
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
pub(super) struct Block<'a> {
    verdict: &'a Verdict,
    explanation: Option<&'a Explanation>,
    with_correction: bool,
}

impl<'a> Block<'a> {
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
    pub fn explained(self, explanation: Option<&'a Explanation>) -> Self {
        Self {
            explanation,
            ..self
        }
    }

    pub fn write(&self, out: &mut impl Write, columns: usize) -> io::Result<()> {
        let verdict = self.verdict;
        self.heading(out)?;
        for line in wrapped(&verdict.pattern, columns - INDENT.len()) {
            writeln!(out, "{INDENT}{line}")?;
        }
        row(out, "why", &verdict.reason, columns)?;
        if let Some(explanation) = self.explanation {
            row(out, "rule", &explanation.rule, columns)?;
            row(out, "fires at", &explanation.threshold, columns)?;
        }
        row(out, "events", &self.events(), columns)?;
        if let Some(explanation) = self.explanation {
            row(out, "avoided by", &explanation.quiet, columns)?;
        }
        row(out, "cost so far", &self.wasted(), columns)?;
        row(out, "wait", &self.wait(), columns)?;
        if self.with_correction {
            row(out, "correction", &verdict.correction, columns)?;
        }
        writeln!(out)
    }

    /// `● WARN at event 13 · exact_repeat · 2026-03-11 09:14:40`
    fn heading(&self, out: &mut impl Write) -> io::Result<()> {
        let verdict = self.verdict;
        let style = style::of_action(verdict.action());
        write!(out, "  {style}● {}{style:#}", action_name(verdict.action()))?;
        if verdict.event_index >= 0 {
            write!(out, " at event {}", verdict.event_index)?;
        }
        let also = verdict.also.iter().map(|also| format!(", {}", shown(also)));
        let detectors = shown(&verdict.detector) + &also.collect::<String>();
        write!(out, " {DIM}·{DIM:#} {detectors}")?;
        let agent = cut(&shown(&verdict.agent_id), AGENT_COLUMNS_MAX);
        let mut notes = Vec::new();
        if !agent.is_empty() {
            notes.push(format!("agent {agent}"));
        }
        notes.extend(verdict.time.as_ref().map(clock::date_time));
        if verdict.shadow {
            notes.push("shadow".to_owned());
        }
        for note in notes {
            write!(out, " {DIM}· {note}{DIM:#}")?;
        }
        writeln!(out)
    }

    fn events(&self) -> String {
        let evidence = self.verdict.evidence.as_ref();
        let indexes = ranges(evidence.map_or(&[], |evidence| &evidence.event_indexes));
        match evidence {
            // An explanation names the number that was needed: here is what stood.
            Some(Evidence { count: 1.., .. }) if self.explanation.is_some() => {
                format!("{indexes} ({})", standing(self.verdict))
            }
            _ => indexes,
        }
    }

    fn wasted(&self) -> String {
        // An operator's act rests on no event and cost nothing.
        if self.verdict.event_index < 0 {
            return String::new();
        }
        let Wasted {
            events,
            tokens,
            cost_usd,
        } = self.verdict.wasted.unwrap_or_default();
        cost(events.into(), tokens.into(), cost_usd)
    }

    fn wait(&self) -> String {
        let wait = self.verdict.retry_after.as_ref();
        wait.map(|wait| format!("{} s", wait.seconds))
            .unwrap_or_default()
    }
}

/// A label and its text, nothing where there is none.
fn row(out: &mut impl Write, label: &str, text: &str, columns: usize) -> io::Result<()> {
    let room = columns - INDENT.len() - LABEL_COLUMNS;
    let mut label = label;
    for line in wrapped(text, room) {
        writeln!(out, "{INDENT}{DIM}{label:<LABEL_COLUMNS$}{DIM:#}{line}")?;
        label = "";
    }
    Ok(())
}

/// What happened, where the text of it is not kept: `3 times read_file`.
pub(super) fn gist(verdict: &Verdict) -> String {
    if verdict.detector == crate::domain::OPERATOR {
        let told = match (&*verdict.pattern, &*verdict.operator) {
            (pattern, "" | "unknown") => pattern.to_owned(),
            (pattern, operator) => format!("{pattern}, {operator}"),
        };
        return format!("{told}: {}", verdict.reason);
    }
    if !verdict.pattern.is_empty() {
        return verdict.pattern.clone();
    }
    let tools: Vec<&str> = verdict.members.iter().map(|m| m.tool.as_str()).collect();
    format!("{} {}", standing(verdict), tools.join(", "))
}

/// `3 times`, or `3 laps of 2`.
fn standing(verdict: &Verdict) -> String {
    let evidence = verdict.evidence.clone().unwrap_or_default();
    match (evidence.count, evidence.period) {
        (1, _) => "once".to_owned(),
        (count, period @ 2..) => format!("{count} laps of {period}"),
        (count, _) => format!("{count} times"),
    }
}
