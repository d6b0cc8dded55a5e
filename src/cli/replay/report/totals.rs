use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use crate::{
    cli::replay::{
        summary::{Counts, Tally},
        words::grouped,
    },
    domain::Action,
};

/// One rule below the header and no other line.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Verdicts by detector and action.
pub(super) fn table(tally: &Tally) -> String {
    let all = tally.by_action();
    let actions: Vec<Action> = all.iter().map(|(action, _)| action).collect();
    let mut table = Table::new();
    table.load_style(STYLE);
    let names = actions.iter().map(|action| action.name());
    table.set_header(["detector"].into_iter().chain(names).chain(["total"]));
    let mut detectors = 0;
    for (detector, counts) in tally.by_detector() {
        table.add_row(row(detector, counts, &actions));
        detectors += 1;
    }
    table.add_row_if(|_, _| detectors > 1, row("total", all, &actions));
    for column in table.column_iter_mut() {
        let first = column.index == 0;
        // Flush with the text above and below.
        column.set_padding(if first { (0, 0) } else { (3, 0) });
        column.set_cell_alignment(if first {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
    }
    table.trim_fmt()
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
