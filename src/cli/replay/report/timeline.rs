use std::io::{self, Write};

use crate::{
    api,
    cli::{
        style::{BOLD, DIM},
        trace::player::Given,
        verdict::Block,
        words::{cost, shown},
    },
    domain::SessionView,
};

/// A session's heading, and its verdicts one below the other.
pub(super) fn write(
    out: &mut impl Write,
    view: &SessionView,
    given: &[Given],
    columns: usize,
) -> io::Result<()> {
    let id = shown(view.id.as_str());
    let cost = cost(view.events.into(), view.cost.tokens(), view.cost.usd);
    let status = view.status.name();
    writeln!(out, "{BOLD}{id}{BOLD:#}\n{DIM}{cost}, {status}{DIM:#}\n")?;
    for given in given {
        let mut verdict = api::present_verdict(&given.verdict);
        // The trace does not tell.
        verdict.time = verdict.time.filter(|_| given.timed);
        Block::new(&verdict).write(out, columns)?;
    }
    Ok(())
}
