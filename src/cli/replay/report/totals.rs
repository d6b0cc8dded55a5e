use crate::{
    cli::{
        output,
        replay::summary::{Counts, Tally},
        words::grouped,
    },
    domain::Action,
};

/// Columns between two numbers.
const GAP: u16 = 3;

/// Verdicts by detector and action.
pub(super) fn table(tally: &Tally) -> String {
    let all = tally.by_action();
    let actions: Vec<Action> = all.iter().map(|(action, _)| action).collect();
    let names = actions.iter().map(|action| action.name().to_owned());
    let header = std::iter::once("detector".to_owned())
        .chain(names)
        .chain(["total".to_owned()])
        .collect();
    let detectors = tally.by_detector();
    let mut rows: Vec<Vec<String>> = detectors
        .map(|(detector, counts)| row(detector, counts, &actions))
        .collect();
    if rows.len() > 1 {
        rows.push(row("total", all, &actions));
    }
    output::table(header, rows, GAP)
}

fn row(name: &str, counts: Counts, actions: &[Action]) -> Vec<String> {
    let number = |number| match number {
        0 => "–".to_owned(),
        number => grouped(number),
    };
    let by_action = actions.iter().map(|action| number(counts.of(*action)));
    std::iter::once(name.to_owned())
        .chain(by_action)
        .chain([number(counts.total())])
        .collect()
}
