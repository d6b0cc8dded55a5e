//! What a person sees: the whole in a few words, a row a detector, and where
//! the verdicts and the labels disagree.

use std::io::{self, BufWriter, Write};

use anstream::AutoStream;
use anstyle::Style;

use super::figures::{FalseAlarm, Figures, Miss, Score};
use crate::{
    cli::{
        output,
        words::{counted, grouped, wrapped},
    },
    domain::text,
};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// More is a file's worth, and `--list` prints it.
const LISTED_MAX: usize = 20;
/// As long as a session's id may be.
const ID_CHARS_MAX: usize = 256;
/// Of a pattern or a label's reason, what is read at a look.
const TEXT_CHARS_MAX: usize = 240;
const INDENT: &str = "    ";
/// Columns between two numbers.
const GAP: u16 = 1;

pub(super) fn print(figures: &Figures, list_all: bool) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let columns = output::columns(&stdout);
    // Takes colours out where they are not wanted.
    let mut out = BufWriter::new(AutoStream::auto(stdout));
    for sentence in conclusion(figures) {
        paragraph(&mut out, &sentence, columns)?;
    }
    writeln!(out, "\n{}", table(figures))?;
    paragraph(&mut out, &silent(figures), columns)?;
    let alarms: Vec<_> = figures.false_alarms.iter().map(alarm).collect();
    let misses: Vec<_> = figures.misses.iter().map(miss).collect();
    let missing = figures.missing_sessions.iter();
    let missing: Vec<_> = missing.map(|id| (id.as_str(), vec![])).collect();
    for (heading, items) in [
        ("False alarms: labelled no loop, but found", alarms),
        ("Missed: labelled a loop, but not found", misses),
        ("Labelled, but not in the traces: not counted", missing),
    ] {
        let max = if list_all { usize::MAX } else { LISTED_MAX };
        list(&mut out, heading, &items, max, columns)?;
    }
    out.flush()
}

fn paragraph(out: &mut impl Write, text: &str, columns: usize) -> io::Result<()> {
    wrapped(text, columns)
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))
}

/// The run in a few sentences.
fn conclusion(figures: &Figures) -> Vec<String> {
    let (labelled, unlabelled) = (&figures.labelled, &figures.unlabelled);
    let mut told = vec![format!(
        "{} in {}: {} labelled ({}, {} healthy), {} not.",
        counted(figures.events, "event"),
        counted(figures.sessions, "session"),
        grouped(labelled.sessions),
        counted(labelled.loops, "loop"),
        grouped(labelled.healthy),
        grouped(unlabelled.sessions),
    )];
    if labelled.sessions > 0 {
        told.push(agreement(&labelled.score));
    }
    if let Some(rate) = unlabelled.verdicts_per_1000_events {
        told.push(format!(
            "Without a label: {} in {} of {}, {rate:.1} per 1,000 events.",
            counted(unlabelled.verdicts, "verdict"),
            grouped(unlabelled.found_sessions),
            counted(unlabelled.sessions, "session"),
        ));
    }
    if figures.shadow_verdicts > 0 {
        let verdicts = counted(figures.shadow_verdicts, "shadow verdict");
        told.push(format!(
            "{verdicts} not counted: the profile's mode is shadow."
        ));
    }
    if figures.bad_lines > 0 {
        let lines = counted(figures.bad_lines, "line");
        told.push(format!("Not read, and left out: {lines}."));
    }
    told
}

fn agreement(score: &Score) -> String {
    let mut told = format!(
        "Precision {}, recall {}, F1 {}",
        share(score.precision),
        share(score.recall),
        share(score.f1),
    );
    let delay = &score.delay;
    if let (Some(median), Some(p90)) = (delay.median, delay.p90) {
        told += &format!("; delay {median} (median) and {p90} (90th percentile) events");
    }
    if delay.early > 0 {
        let verdicts = delay.sessions;
        told += &format!(", {} of {verdicts} before the label", delay.early);
    }
    told + "."
}

/// A row for each detector that found something, and one for all.
fn table(figures: &Figures) -> String {
    let header = [
        "detector",
        "TP",
        "FP",
        "precision",
        "recall",
        "F1",
        "delay",
        "p90",
        "per 1,000",
    ];
    let unlabelled = &figures.unlabelled;
    let mut rows: Vec<_> = figures
        .detectors
        .iter()
        .filter(|(_, of)| has_found(&of.score, of.unlabelled_verdicts))
        .map(|(name, of)| row(name, &of.score, of.verdicts_per_1000_events))
        .collect();
    let all = &figures.labelled.score;
    rows.push(row("all", all, unlabelled.verdicts_per_1000_events));
    output::table(header.map(str::to_owned), rows, GAP)
}

fn has_found(score: &Score, unlabelled_verdicts: u64) -> bool {
    score.true_positives + score.false_positives + unlabelled_verdicts > 0
}

fn row(name: &str, score: &Score, rate: Option<f64>) -> [String; 9] {
    let number = |number: Option<String>| number.unwrap_or_else(|| "–".to_owned());
    [
        name.to_owned(),
        grouped(score.true_positives),
        grouped(score.false_positives),
        share(score.precision),
        share(score.recall),
        share(score.f1),
        number(score.delay.median.map(|events| events.to_string())),
        number(score.delay.p90.map(|events| events.to_string())),
        number(rate.map(|rate| format!("{rate:.1}"))),
    ]
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{share:.2}"))
}

/// Who had nothing to say.
fn silent(figures: &Figures) -> String {
    let names: Vec<&str> = figures
        .detectors
        .iter()
        .filter(|(_, of)| !has_found(&of.score, of.unlabelled_verdicts))
        .map(|(name, _)| &**name)
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!("No verdict from {}.", names.join(", "))
}

/// A session, and what is said about it.
type Item<'a> = (&'a str, Vec<String>);

fn alarm(alarm: &FalseAlarm) -> Item<'_> {
    let mut verdict = alarm.detector.to_string();
    if let Some(index) = alarm.event_index {
        verdict += &format!(" at event {index}");
    }
    let pattern = text::quoted(&alarm.pattern, TEXT_CHARS_MAX);
    let told = format!("{verdict}: {pattern}");
    let label = label(alarm.kind.as_deref(), alarm.why.as_deref());
    let label = label.map(|label| format!("label: {label}"));
    (
        &alarm.session_id,
        std::iter::once(told).chain(label).collect(),
    )
}

fn miss(miss: &Miss) -> Item<'_> {
    let began = miss.first_loop_event;
    let began = began.map(|event| format!("from event {event}"));
    let label = label(miss.kind.as_deref(), miss.why.as_deref());
    let told: Vec<String> = began.into_iter().chain(label).collect();
    let told = (!told.is_empty()).then(|| told.join(": "));
    (&miss.session_id, told.into_iter().collect())
}

/// What the labeller said.
fn label(kind: Option<&str>, why: Option<&str>) -> Option<String> {
    let parts = [kind, why].into_iter().flatten();
    let parts: Vec<String> = parts
        .map(|part| text::quoted(part, TEXT_CHARS_MAX))
        .filter(|part| !part.is_empty())
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn list(
    out: &mut impl Write,
    heading: &str,
    items: &[Item<'_>],
    max: usize,
    columns: usize,
) -> io::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}{heading} ({}){BOLD:#}", items.len())?;
    for (id, told) in items.iter().take(max) {
        writeln!(out, "  {}", text::quoted(id, ID_CHARS_MAX))?;
        for line in told
            .iter()
            .flat_map(|text| wrapped(text, columns - INDENT.len()))
        {
            writeln!(out, "{INDENT}{DIM}{line}{DIM:#}")?;
        }
    }
    if items.len() > max {
        let more = items.len() - max;
        writeln!(out, "  {DIM}and {more} more; --list shows all{DIM:#}")?;
    }
    Ok(())
}
