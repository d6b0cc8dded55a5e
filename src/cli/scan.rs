//! `unstuck scan`: finds the transcripts that agents left on this machine, runs them
//! through the engine and reports what their loops cost. Nothing is written but the page
//! of `--html`, and nothing leaves the machine.

mod advice;
mod call_notes;
mod html;
mod json;
mod plot;
mod prices;
mod report;
mod scanner;
mod session_report;
mod totals;

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::SystemTime,
};

use anstream::AutoStream;
use clap::builder::{PossibleValue, PossibleValuesParser};
use jiff::Timestamp;

use super::{
    CliError, UserConfigArgs,
    output::{OutputFormat, map_write_error, output_width},
    text_format::{pluralize, sanitize},
    time_format,
    trace::{self, format_line_error, read_error},
};
use crate::{
    config::{self, Config},
    domain::Action,
    ingest::transcripts::{
        FORMATS, Homes, Transcript, find_format, find_transcripts, transcripts_at, usual_places,
    },
};
use prices::PriceList;
use scanner::{ScanFilter, ScanResult, TranscriptScanner};
use totals::ScanSummary;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Transcripts, or directories with them, instead of those in the agents' directories.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only sessions since this time: a date, RFC 3339, or a span before now (30d).
    #[arg(long, value_name = "TIME", value_parser = time_format::parse_time)]
    since: Option<Timestamp>,
    /// Only sessions of this agent.
    #[arg(long, value_name = "AGENT", value_parser = agent_parser())]
    agent: Option<String>,
    /// Only sessions of this project: the last part of their directory.
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Show the verdicts of this session; the start of its id is enough.
    #[arg(long, value_name = "SESSION")]
    show: Option<String>,
    /// Write the report to this file as one page that needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Put prompts, error texts and names of projects into the page.
    #[arg(long, requires = "html")]
    full: bool,
    /// Print lines for CLAUDE.md or AGENTS.md from what was found.
    #[arg(long, conflicts_with_all = ["output", "show"])]
    advice: bool,
    /// Prices of models in the JSON of LiteLLM, before the built-in ones.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    #[command(flatten)]
    config: UserConfigArgs,
    /// The profile for all sessions.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Output format: a report, or one JSON object per line.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    /// Exit with 1 if a verdict has this action or a stronger one: alert, warn,
    /// throttle, checkpoint, ask, block, break, escalate, terminate.
    #[arg(long, value_name = "ACTION")]
    fail_on: Option<Action>,
}

fn agent_parser() -> PossibleValuesParser {
    let names = FORMATS.iter().map(|format| {
        let aliases = format.aliases().iter().copied();
        PossibleValue::new(format.name).aliases(aliases)
    });
    PossibleValuesParser::new(names)
}

/// The most problems that are printed. More would hide the report.
const PROBLEMS_MAX: usize = 20;

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    // Read the user's files before the long work.
    let prices = PriceList::load(args.prices.as_deref())?;
    let file = args.config.file();
    let layers = config::load_layers_of(file.as_deref()).map_err(CliError::usage)?;
    let load_config = || Config::new(&layers).map_err(CliError::usage);
    let scanner = TranscriptScanner {
        profile: args.profile.as_deref(),
        prices: &prices,
        filter: ScanFilter {
            since: args.since.map(SystemTime::from),
            project: args.project.as_deref(),
            show: args.show.as_deref(),
        },
        wants_timelines: args.html.is_some() || args.show.is_some(),
    };
    // Play the transcripts.
    let searched = find(args)?;
    let result = scanner.run(&searched.transcripts, load_config)?;
    report_problems(&result);
    if let Some(wanted) = args.show.as_deref()
        && result.sessions.is_empty()
    {
        return Err(CliError::not_found(format!("no session {wanted:?}")));
    }
    // Report.
    let summary = ScanSummary::new(&result, prices.description());
    if let Some(file) = &args.html {
        let page = html::render_page(&result.sessions, &summary, args.full)?;
        let error = |error| CliError::failed(format!("cannot write {}: {error}", file.display()));
        fs::write(file, page).map_err(error)?;
    }
    map_write_error(print(args, &result, &summary, &searched.places))?;
    let reached = |action| result.strongest_action() >= Some(action);
    Ok(ExitCode::from(u8::from(args.fail_on.is_some_and(reached))))
}

fn print(
    args: &Args,
    result: &ScanResult,
    summary: &ScanSummary,
    places: &[PathBuf],
) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let columns = output_width(&stdout);
    // `AutoStream` strips colours if standard output does not support them.
    let mut out = io::BufWriter::new(AutoStream::auto(stdout));
    match args.output {
        OutputFormat::Json => json::write_lines(&mut out, &result.sessions, summary)?,
        OutputFormat::Table if result.sessions.is_empty() => {
            write_nothing_found(&mut out, result, places)?;
        }
        OutputFormat::Table if args.advice => advice::write_lines(&mut out, summary)?,
        OutputFormat::Table if args.show.is_some() => {
            report::write_sessions(&mut out, &result.sessions, columns)?;
        }
        OutputFormat::Table => {
            report::write_report(&mut out, &result.sessions, summary, columns)?;
        }
    }
    out.flush()
}

/// Says why there is nothing to report.
fn write_nothing_found(
    out: &mut impl Write,
    result: &ScanResult,
    places: &[PathBuf],
) -> io::Result<()> {
    match (result.other_sessions, result.older_files) {
        (0, 0) => {
            writeln!(out, "No sessions found. Looked in:")?;
            for place in places {
                writeln!(out, "    {}", sanitize(&place.display().to_string()))?;
            }
        }
        (0, files) => writeln!(
            out,
            "No session is that recent: {} older.",
            match files {
                1 => "1 transcript is".to_owned(),
                _ => format!("{} are", pluralize(files, "transcript")),
            }
        )?,
        (1, _) => writeln!(out, "The only session does not match.")?,
        (sessions, _) => writeln!(out, "None of {} matches.", pluralize(sessions, "session"))?,
    }
    writeln!(out, "\nguard your agents: {}", report::GUARD_HINT)
}

/// Transcripts, and where they were looked for.
struct SearchResult {
    transcripts: Vec<Transcript>,
    places: Vec<PathBuf>,
}

/// The transcripts of the paths, or those in the agents' directories.
fn find(args: &Args) -> Result<SearchResult, CliError> {
    trace::check_files_exist(&args.paths)?;
    let format = args.agent.as_deref().and_then(find_format);
    let mut transcripts = Vec::new();
    for path in &args.paths {
        let found = transcripts_at(path, format);
        if found.is_empty() && !path.is_dir() {
            let error = io::Error::other("no known format of a transcript");
            return Err(read_error(path, &error));
        }
        transcripts.extend(found);
    }
    if !args.paths.is_empty() {
        return Ok(SearchResult {
            transcripts,
            places: args.paths.clone(),
        });
    }
    let homes = Homes::from_environment(|name| std::env::var(name).ok());
    if homes.home.as_os_str().is_empty() {
        return Err(CliError::usage("there is no home directory: set HOME"));
    }
    Ok(SearchResult {
        transcripts: find_transcripts(&homes, format),
        places: usual_places(&homes, format),
    })
}

/// Prints the parts that could not be read on standard error.
fn report_problems(result: &ScanResult) {
    for problem in result.problems.iter().take(PROBLEMS_MAX) {
        let line = format_line_error(&problem.path, problem.line, &problem.what);
        anstream::eprintln!("unstuck: {line}");
    }
    let more = result.problem_count.saturating_sub(PROBLEMS_MAX as u64);
    if more > 0 {
        anstream::eprintln!("unstuck: {more} more lines or files could not be read");
    }
}
