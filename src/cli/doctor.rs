//! `unstuck doctor`: whether each agent on this machine is guarded, and what to do if not.

mod checks;
mod codex_trust;
mod installation;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anstream::AutoStream;

use super::{
    CliError, UserConfigArgs,
    agent_programs::{AGENT_PROGRAMS, AgentProgram},
    grid::{self, Cell, Column},
    output::{OutputFormat, map_write_error, terminal_dimensions, to_json_line},
    style::{BOLD, DIM, PLAIN},
};
use checks::{AgentReport, Health, Probe};
use installation::Installation;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Output format: a table, or one JSON object per agent.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    config: UserConfigArgs,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let found = AGENT_PROGRAMS
        .iter()
        .filter(|program| program.is_installed());
    let programs: Vec<&AgentProgram> = found.collect();
    let reports = report(&programs, args)?;
    // An agent that was never guarded is not a failure.
    let is_failing = |it: &AgentReport| matches!(it.health, Health::Silent | Health::Untrusted);
    Ok(ExitCode::from(u8::from(reports.iter().any(is_failing))))
}

/// Checks these agents, at the end of `init`.
pub(super) fn check(programs: &[&'static AgentProgram]) -> Result<ExitCode, CliError> {
    let args = Args {
        output: OutputFormat::Table,
        config: UserConfigArgs { config: None },
    };
    // Hooks that the user must still accept are no failure of `init`.
    let reports = report(programs, &args)?;
    let is_silent = reports.iter().any(|it| it.health == Health::Silent);
    Ok(ExitCode::from(u8::from(is_silent)))
}

/// Whether another agent than these has our hooks.
pub(super) fn is_another_guarded(programs: &[&AgentProgram]) -> bool {
    let is_named = |agent: &str| programs.iter().any(|program| program.agent == agent);
    let mut others = AGENT_PROGRAMS.iter().filter(|it| !is_named(it.agent));
    others.any(|other| Installation::find(other).has_entries)
}

fn report(programs: &[&'static AgentProgram], args: &Args) -> Result<Vec<AgentReport>, CliError> {
    let probe = Probe::new(args.config.file());
    let reports = programs.iter().map(|program| probe.check(program));
    let reports: Vec<AgentReport> = reports.collect();
    map_write_error(print(&reports, args.output))?;
    Ok(reports)
}

fn print(reports: &[AgentReport], output: OutputFormat) -> io::Result<()> {
    let mut out = AutoStream::auto(io::stdout().lock());
    if let OutputFormat::Json = output {
        for report in reports {
            writeln!(out, "{}", to_json_line(report)?)?;
        }
        return Ok(());
    }
    if reports.is_empty() {
        return writeln!(out, "No agent was found on this machine.");
    }
    let columns = [
        Column::left("AGENT"),
        Column::left("GUARDED"),
        Column::left("ANSWER"),
        Column::left("LAST SEEN"),
        Column::left("").shrink_to(24),
    ];
    let rows: Vec<Vec<Cell>> = reports.iter().map(to_row).collect();
    let width_max = terminal_dimensions().map(|(columns, _)| columns);
    grid::write(&mut out, &columns, &rows, width_max)?;
    // The commands whole, to be copied. One guards all agents that are not guarded.
    let (unguarded, others): (Vec<_>, Vec<_>) = reports
        .iter()
        .partition(|report| report.health == Health::NotGuarded);
    for report in others {
        if let Some(repair) = &report.repair {
            writeln!(out, "{}: {BOLD}{repair}{BOLD:#}", report.agent)?;
        }
    }
    if unguarded.is_empty() {
        return Ok(());
    }
    let mut command = "unstuck init".to_owned();
    // Without names it would also change the agents that are guarded.
    if unguarded.len() < reports.len() {
        for report in &unguarded {
            command += &format!(" --agent {}", report.agent);
        }
    }
    writeln!(out, "to guard them: {BOLD}{command}{BOLD:#}")
}

fn to_row(report: &AgentReport) -> Vec<Cell> {
    let (guarded, style) = match report.health {
        Health::Guarded if report.shadow => ("shadow", BOLD),
        Health::Guarded => ("yes", BOLD),
        Health::Silent => ("SILENT", BOLD),
        Health::Untrusted => ("UNTRUSTED", BOLD),
        Health::NotGuarded => ("no", DIM),
    };
    let answer = report.answer_ms.map(|millis| format!("{millis} ms"));
    vec![
        Cell::plain(report.display_name),
        Cell::new(guarded, style),
        Cell::plain(answer.as_deref().unwrap_or("-")),
        Cell::plain(report.last_seen.as_deref().unwrap_or("never")),
        Cell::new(report.problem.as_deref().unwrap_or_default(), PLAIN),
    ]
}
