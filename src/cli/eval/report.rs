//! The output of an evaluation as text: a summary, a table by detector, and the
//! sessions in which verdicts and labels disagree.

use std::io::{self, BufWriter, Write};

use anstream::AutoStream;

use super::metrics::{EvalMetrics, FalseAlarm, Interval, MissedLoop, Score};
use crate::cli::{
    output,
    style::{BOLD, DIM},
    text_format::{group_digits, pluralize, sanitize, truncate, wrap},
};

/// `--list` prints more.
const LISTED_MAX: usize = 20;
/// Longer patterns and reasons are truncated.
const TEXT_COLUMNS_MAX: usize = 240;
const INDENT: &str = "    ";
/// Columns between two numbers.
const GAP: u16 = 1;

pub(super) fn print(metrics: &EvalMetrics, list_all: bool, split: bool) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let columns = output::output_width(&stdout);
    // `AutoStream` strips colours if standard output does not support them.
    let mut out = BufWriter::new(AutoStream::auto(stdout));
    for sentence in render_summary(metrics) {
        write_paragraph(&mut out, &sentence, columns)?;
    }
    writeln!(out, "\n{}", render_table(metrics))?;
    write_paragraph(&mut out, &render_silent_detectors(metrics), columns)?;
    if split {
        writeln!(out, "\n{}", render_sources(metrics))?;
    }
    let alarms: Vec<_> = metrics
        .false_alarms
        .iter()
        .map(render_false_alarm)
        .collect();
    let misses: Vec<_> = metrics.misses.iter().map(render_missed_loop).collect();
    let missing: Vec<_> = metrics
        .missing_sessions
        .iter()
        .map(|id| (id.as_str(), vec![]))
        .collect();
    for (heading, items) in [
        ("False alarms: labelled no loop, but found", alarms),
        ("Missed: labelled a loop, but not found", misses),
        ("Not counted: labelled, but not in the traces", missing),
    ] {
        let max = if list_all { usize::MAX } else { LISTED_MAX };
        write_list(&mut out, heading, &items, max, columns)?;
    }
    out.flush()
}

fn write_paragraph(out: &mut impl Write, text: &str, columns: usize) -> io::Result<()> {
    wrap(text, columns)
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))
}

/// The run in a few sentences.
fn render_summary(metrics: &EvalMetrics) -> Vec<String> {
    let (labelled, unlabelled) = (&metrics.labelled, &metrics.unlabelled);
    let mut sentences = vec![format!(
        "{} in {}: {} labelled ({}, {} healthy), {} not.",
        pluralize(metrics.events, "event"),
        pluralize(metrics.sessions, "session"),
        group_digits(labelled.sessions),
        pluralize(labelled.loops, "loop"),
        group_digits(labelled.healthy),
        group_digits(unlabelled.sessions),
    )];
    if labelled.sessions > 0 {
        sentences.push(render_score(&labelled.score));
    }
    if let Some(rate) = unlabelled.verdicts_per_1000_events {
        sentences.push(format!(
            "Without a label: {} in {} of {}, {rate:.1} per 1,000 events.",
            pluralize(unlabelled.verdicts, "verdict"),
            group_digits(unlabelled.found_sessions),
            pluralize(unlabelled.sessions, "session"),
        ));
    }
    if metrics.shadow_verdicts > 0 {
        let verdicts = pluralize(metrics.shadow_verdicts, "shadow verdict");
        sentences.push(format!(
            "{verdicts} not counted: the profile's mode is shadow."
        ));
    }
    if metrics.bad_lines > 0 {
        let lines = pluralize(metrics.bad_lines, "line");
        sentences.push(format!("Skipped as invalid: {lines}."));
    }
    sentences
}

fn render_score(score: &Score) -> String {
    let mut text = format!(
        "Precision {}{}, recall {}{}, F1 {}",
        format_ratio(score.precision),
        format_interval(score.precision_interval),
        format_ratio(score.recall),
        format_interval(score.recall_interval),
        format_ratio(score.f1),
    );
    let delay = &score.delay;
    if let (Some(median), Some(p90)) = (delay.median, delay.p90) {
        text += &format!("; delay {median} (median) and {p90} (90th percentile) events");
    }
    if delay.early > 0 {
        let verdicts = delay.sessions;
        text += &format!(", {} of {verdicts} before the label", delay.early);
    }
    text + "."
}

/// A row for each detector that found something, and one for all.
fn render_table(metrics: &EvalMetrics) -> String {
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
    let unlabelled = &metrics.unlabelled;
    let mut rows: Vec<_> = metrics
        .detectors
        .iter()
        .filter(|(_, of)| has_detections(&of.score, of.unlabelled_verdicts))
        .map(|(name, of)| render_row(name, &of.score, of.verdicts_per_1000_events))
        .collect();
    let all = &metrics.labelled.score;
    rows.push(render_row("all", all, unlabelled.verdicts_per_1000_events));
    output::render_table(header.map(str::to_owned), rows, GAP)
}

/// A row for each source of sessions.
fn render_sources(metrics: &EvalMetrics) -> String {
    let header = [
        "source",
        "sessions",
        "found",
        "loops",
        "healthy",
        "TP",
        "FP",
        "precision",
        "recall",
        "F1",
    ];
    let rows = metrics.sources.iter().map(|(name, of)| {
        [
            sanitize(name),
            group_digits(of.sessions),
            group_digits(of.found_sessions),
            group_digits(of.loops),
            group_digits(of.healthy),
            group_digits(of.score.true_positives),
            group_digits(of.score.false_positives),
            format_ratio(of.score.precision),
            format_ratio(of.score.recall),
            format_ratio(of.score.f1),
        ]
    });
    output::render_table(header.map(str::to_owned), rows.collect::<Vec<_>>(), GAP)
}

fn has_detections(score: &Score, unlabelled_verdicts: u64) -> bool {
    score.true_positives + score.false_positives + unlabelled_verdicts > 0
}

fn render_row(name: &str, score: &Score, rate: Option<f64>) -> [String; 9] {
    let number = |number: Option<String>| number.unwrap_or_else(|| "–".to_owned());
    [
        name.to_owned(),
        group_digits(score.true_positives),
        group_digits(score.false_positives),
        format_ratio(score.precision),
        format_ratio(score.recall),
        format_ratio(score.f1),
        number(score.delay.median.map(|events| events.to_string())),
        number(score.delay.p90.map(|events| events.to_string())),
        number(rate.map(|rate| format!("{rate:.1}"))),
    ]
}

fn format_ratio(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{share:.2}"))
}

fn format_interval(interval: Option<Interval>) -> String {
    interval.map_or_else(String::new, |Interval { low, high }| {
        format!(" ({low:.2} to {high:.2})")
    })
}

/// Lists the detectors without a verdict.
fn render_silent_detectors(metrics: &EvalMetrics) -> String {
    let names: Vec<&str> = metrics
        .detectors
        .iter()
        .filter(|(_, of)| !has_detections(&of.score, of.unlabelled_verdicts))
        .map(|(name, _)| &**name)
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!("No verdict from {}.", names.join(", "))
}

/// A session id and its details.
type ReportItem<'a> = (&'a str, Vec<String>);

fn render_false_alarm(alarm: &FalseAlarm) -> ReportItem<'_> {
    let mut verdict = alarm.detector.to_string();
    if let Some(index) = alarm.event_index {
        verdict += &format!(" at event {index}");
    }
    let mut details = vec![format!("{verdict}: {}", shorten(&alarm.pattern))];
    if let Some(label) = render_label(alarm.kind.as_deref(), alarm.why.as_deref()) {
        details.push(format!("label: {label}"));
    }
    (&alarm.session_id, details)
}

fn render_missed_loop(miss: &MissedLoop) -> ReportItem<'_> {
    let start = miss
        .first_loop_event
        .map(|event| format!("from event {event}"));
    let label = render_label(miss.kind.as_deref(), miss.why.as_deref());
    let parts: Vec<String> = start.into_iter().chain(label).collect();
    let description = (!parts.is_empty()).then(|| parts.join(": "));
    (&miss.session_id, description.into_iter().collect())
}

/// The kind and the reason of a label.
fn render_label(kind: Option<&str>, why: Option<&str>) -> Option<String> {
    let parts: Vec<String> = [kind, why]
        .into_iter()
        .flatten()
        .map(shorten)
        .filter(|part| !part.is_empty())
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn shorten(text: &str) -> String {
    truncate(&sanitize(text), TEXT_COLUMNS_MAX)
}

fn write_list(
    out: &mut impl Write,
    heading: &str,
    items: &[ReportItem<'_>],
    max: usize,
    columns: usize,
) -> io::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}{heading} ({}){BOLD:#}", items.len())?;
    for (id, details) in items.iter().take(max) {
        writeln!(out, "  {}", sanitize(id))?;
        for line in details
            .iter()
            .flat_map(|text| wrap(text, columns - INDENT.len()))
        {
            writeln!(out, "{INDENT}{DIM}{line}{DIM:#}")?;
        }
    }
    if items.len() > max {
        let more = items.len() - max;
        writeln!(out, "  {DIM}… {more} more; --list shows all{DIM:#}")?;
    }
    Ok(())
}
