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

/// Verdicts by detector and action.
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
    let number = |number| match number {
        0 => "–".to_owned(),
        number => group_digits(number),
    };
    let by_action = actions.iter().map(|action| number(counts.get(*action)));
    std::iter::once(name.to_owned())
        .chain(by_action)
        .chain([number(counts.total())])
        .collect()
}
