//! The report as JSON: a line for each session, its verdicts as in `replay`, the sums.

use std::io::{self, Write};

use serde::Serialize;

use super::{
    session_report::{SessionCost, SessionReport},
    totals::{ScanSummary, format_time},
};
use crate::{
    api,
    cli::{
        output::{to_json_line, to_proto_json_line},
        waste::{WasteTotals, round_usd},
    },
};

#[derive(Serialize)]
struct SessionLine<'a> {
    session: SessionFields<'a>,
}

#[derive(Serialize)]
struct SessionFields<'a> {
    session_id: &'a str,
    agent: &'a str,
    project: &'a str,
    path: String,
    model: &'a str,
    first_prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_event: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_event: Option<String>,
    events: u64,
    calls: u64,
    compactions: u64,
    verdicts: usize,
    looping: bool,
    /// `null`: not known.
    cost_usd: Option<f64>,
    priced: &'static str,
    /// Dollars are 0 if the cost is not known.
    wasted: WasteTotals,
    /// The cost that acting on the verdicts would have saved.
    saved: WasteTotals,
    reopen: &'a str,
}

#[derive(Serialize)]
struct ScanSummaryLine<'a> {
    summary: &'a ScanSummary,
}

pub(super) fn write_lines(
    out: &mut impl Write,
    sessions: &[SessionReport],
    summary: &ScanSummary,
) -> io::Result<()> {
    for report in sessions {
        let model = report.end.main_model();
        let session = session_fields(report, &model);
        writeln!(out, "{}", to_json_line(&session)?)?;
        for verdict in &report.verdicts {
            let verdict = api::present_verdict(verdict);
            writeln!(out, "{}", to_proto_json_line(&verdict)?)?;
        }
    }
    writeln!(out, "{}", to_json_line(&ScanSummaryLine { summary })?)
}

fn session_fields<'a>(report: &'a SessionReport, model: &'a str) -> SessionLine<'a> {
    let (start, end) = (&report.start, &report.end);
    SessionLine {
        session: SessionFields {
            session_id: &start.session_id,
            agent: start.agent,
            project: &start.project,
            path: start.path.display().to_string(),
            model,
            first_prompt: &end.first_prompt,
            first_event: end.first_event.and_then(format_time),
            last_event: end.last_event.and_then(format_time),
            events: end.events,
            calls: end.calls,
            compactions: end.compactions,
            verdicts: report.verdicts.len(),
            looping: report.is_looping(),
            cost_usd: report.cost.usd().map(round_usd),
            priced: match report.cost {
                SessionCost::Recorded(_) => "exact",
                SessionCost::Listed(_) => "list",
                SessionCost::Unknown => "unknown",
            },
            wasted: report.wasted,
            saved: report.saved,
            reopen: &start.reopen,
        },
    }
}
