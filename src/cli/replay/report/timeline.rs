//! A session's part of the report.

use std::io::{self, Write};

use crate::{
    api,
    cli::{
        style::{BOLD, DIM},
        text_format::sanitize,
        trace::player::TraceVerdict,
        verdict::VerdictBlock,
        waste::WasteTotals,
    },
    domain::{SessionView, Waste},
};

/// Writes a session's heading and its verdicts.
pub(super) fn write_session(
    out: &mut impl Write,
    view: &SessionView,
    verdicts: &[TraceVerdict],
    columns: usize,
) -> io::Result<()> {
    let id = sanitize(view.id.as_str());
    let cost = WasteTotals::from(Waste::new(view.events.into(), view.cost)).format();
    let status = view.status.name();
    writeln!(out, "{BOLD}{id}{BOLD:#}\n{DIM}{cost}, {status}{DIM:#}\n")?;
    for played in verdicts {
        let mut verdict = api::present_verdict(&played.verdict);
        // A time that is not from the trace is omitted.
        verdict.time = verdict.time.filter(|_| played.has_time);
        VerdictBlock::new(&verdict).write(out, columns)?;
    }
    Ok(())
}
