//! `unstuck verdicts`: the audit log.

mod labels;
mod printer;

use std::{collections::HashMap, ops::ControlFlow, path::PathBuf, process::ExitCode};

use jiff::Timestamp;

use super::{
    CliError,
    client::{self, Client, ServerArgs},
    output::{OutputFormat, map_write_error},
    sessions::{SearchWords, parse_label},
    time_format,
};
use crate::{
    config::find_nearest,
    detect,
    domain::{Action, OPERATOR},
    pb,
};
use labels::RatedSessions;
pub(super) use printer::VerdictPrinter;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Only verdicts since this time: RFC 3339, or a span before now (2h).
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse_time)]
    since: Option<Timestamp>,
    /// Only verdicts before this time.
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse_time)]
    until: Option<Timestamp>,
    /// Only this many verdicts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Newest first.
    #[arg(long)]
    newest: bool,
    /// Only verdicts with all of these words in their session, agent, detectors, pattern,
    /// reason or operator.
    #[arg(long, value_name = "WORDS", default_value = "")]
    search: String,
    /// Print the ids too.
    #[arg(long)]
    ids: bool,
    /// Only verdicts that an operator has rated.
    #[arg(long)]
    rated: bool,
    /// Write the ratings as labels of sessions to this file, for `unstuck eval`; `-` for
    /// standard output.
    #[arg(
        long = "labels",
        value_name = "FILE",
        conflicts_with_all = ["limit", "newest", "ids", "output"]
    )]
    labels_file: Option<PathBuf>,
    /// Output format: one line, or one JSON object, per verdict.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Which verdicts to list or watch.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Only verdicts of this session.
    #[arg(long, value_name = "ID", default_value = "")]
    session: String,
    /// Only verdicts of sessions with this label; can be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// Only verdicts from this detector; `operator` for operator actions.
    #[arg(long, value_name = "NAME", default_value = "")]
    detector: String,
    /// Only this action and stronger: alert, warn, throttle, checkpoint, ask,
    /// block, break, escalate, terminate.
    #[arg(long, value_name = "ACTION")]
    min_action: Option<Action>,
}

impl FilterArgs {
    /// Warns about a misspelt name, which would find nothing and so look healthy.
    pub fn check_detector_name(&self) {
        warn_if_unknown_detector(&self.detector);
    }

    pub fn to_watch_request(&self, after_verdict_id: String) -> pb::WatchVerdictsRequest {
        pb::WatchVerdictsRequest {
            session_id: self.session.clone(),
            labels: self.label_map(),
            detector: self.detector.clone(),
            min_action: self.min_action_to_wire(),
            after_verdict_id,
        }
    }

    fn label_map(&self) -> HashMap<String, String> {
        self.labels.iter().cloned().collect()
    }

    fn min_action_to_wire(&self) -> i32 {
        self.min_action
            .map(|action| format!("ACTION_{}", action.name().to_ascii_uppercase()))
            .and_then(|name| pb::Action::from_str_name(&name))
            .unwrap_or_default()
            .into()
    }
}

/// Warns about a detector that this program does not know. It is no error, because the
/// service may have others.
pub(super) fn warn_if_unknown_detector(name: &str) {
    let known = || detect::NAMES.iter().copied().chain([OPERATOR]);
    if name.is_empty() || known().any(|known| known == name) {
        return;
    }
    anstream::eprintln!(
        "unstuck: unknown detector {name:?}; did you mean {}?",
        find_nearest(name, known()).unwrap_or_default()
    );
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    args.filter.check_detector_name();
    client::connect_and_run(&args.server, async |client| {
        list_verdicts(&client, args).await
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn list_verdicts(client: &Client, args: &Args) -> Result<(), CliError> {
    let mut printer = VerdictPrinter::new(args.output).with_ids(args.ids);
    let mut rated = args.labels_file.is_some().then(RatedSessions::default);
    let words = SearchWords::new(&args.search);
    let mut remaining = args.limit.unwrap_or(u32::MAX);
    let request = pb::ListVerdictsRequest {
        // Small, because a page is printed when it arrives.
        page_size: args.limit.unwrap_or(200).min(200).try_into().unwrap_or(200),
        page_token: String::new(),
        session_id: args.filter.session.clone(),
        labels: args.filter.label_map(),
        detector: args.filter.detector.clone(),
        min_action: args.filter.min_action_to_wire(),
        start_time: args.since.map(time_format::time_to_wire),
        end_time: args.until.map(time_format::time_to_wire),
        newest_first: args.newest,
        rated_only: args.rated || args.labels_file.is_some(),
    };
    client
        .for_each_verdict_page(request, |verdicts| {
            for verdict in verdicts.into_iter().filter(|it| matches(&words, it)) {
                if let Some(rated) = &mut rated {
                    rated.add(verdict);
                    continue;
                }
                map_write_error(printer.print(&verdict))?;
                remaining -= 1;
                if remaining == 0 {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
        .await?;
    match (rated, &args.labels_file) {
        (Some(rated), Some(file)) => rated.write(file),
        _ => Ok(()),
    }
}

fn matches(words: &SearchWords, verdict: &pb::Verdict) -> bool {
    let texts = [
        &verdict.session_id,
        &verdict.agent_id,
        &verdict.detector,
        &verdict.pattern,
        &verdict.reason,
        &verdict.operator,
    ];
    words.match_any(texts.into_iter().chain(&verdict.also).map(String::as_str))
}
