//! The table of verdicts by detector and action.

use crate::{
    cli::{
        output,
        replay::summary::{CountsByAction, ReplayCounts},
        text_format::group_digits,
    },
    domain::Action,
};

/// Columns between two numbers.
const GAP: u16 = 3;

pub(super) fn render_totals(counts: &ReplayCounts) -> String {
    let totals = counts.by_action();
    let actions: Vec<Action> = totals.iter().map(|(action, _)| action).collect();
    let names = actions.iter().map(|action| action.name().to_owned());
    let header = std::iter::once("detector".to_owned())
        .chain(names)
        .chain(["total".to_owned()])
        .collect();
    let detectors = counts.by_detector();
    let mut rows: Vec<Vec<String>> = detectors
        .map(|(detector, counts)| render_row(detector, counts, &actions))
        .collect();
    if rows.len() > 1 {
        rows.push(render_row("total", totals, &actions));
    }
    output::render_table(header, rows, GAP)
}

fn render_row(name: &str, counts: CountsByAction, actions: &[Action]) -> Vec<String> {
    let by_action = actions
        .iter()
        .map(|action| render_count(counts.get(*action)));
    std::iter::once(name.to_owned())
        .chain(by_action)
        .chain([render_count(counts.total())])
        .collect()
}

fn render_count(count: u64) -> String {
    match count {
        0 => "–".to_owned(),
        _ => group_digits(count),
    }
}
