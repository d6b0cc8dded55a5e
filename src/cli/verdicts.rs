//! `unstuck verdicts`: the audit log, oldest first.

mod printer;

use std::{collections::HashMap, process::ExitCode};

use jiff::Timestamp;

use super::{
    CliError,
    client::{self, Client, ServerArgs},
    output::{OutputFormat, map_write_error},
    sessions::parse_label,
    time_format,
};
use crate::{
    detect,
    domain::{Action, OPERATOR},
    pb,
};
pub(super) use printer::VerdictPrinter;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Only verdicts from then on: a time as in RFC 3339, or how long ago (2h).
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse_time)]
    since: Option<Timestamp>,
    /// Only verdicts before then.
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse_time)]
    until: Option<Timestamp>,
    /// A line a verdict for people, or an object a line for programs.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Which verdicts.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Only of this session.
    #[arg(long, value_name = "ID", default_value = "")]
    session: String,
    /// Only of sessions that have this label; may be given more than once.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// Only of this detector; `operator` for what people did.
    #[arg(long, value_name = "NAME", default_value = "")]
    detector: String,
    /// Only this action and stronger: alert, warn, throttle, checkpoint, ask,
    /// block, break, escalate, terminate.
    #[arg(long, value_name = "ACTION")]
    least: Option<Action>,
}

impl FilterArgs {
    /// A name that is misspelt finds nothing, which looks as if all were well.
    pub fn check_detector_name(&self) {
        warn_if_unknown_detector(&self.detector);
    }

    pub fn to_watch_request(&self, after_verdict_id: String) -> pb::WatchVerdictsRequest {
        pb::WatchVerdictsRequest {
            session_id: self.session.clone(),
            labels: self.label_map(),
            detector: self.detector.clone(),
            least_action: self.min_action(),
            after_verdict_id,
        }
    }

    fn label_map(&self) -> HashMap<String, String> {
        self.labels.iter().cloned().collect()
    }

    fn min_action(&self) -> i32 {
        let name = self.least.map(|action| action.name().to_ascii_uppercase());
        let action = name.and_then(|name| pb::Action::from_str_name(&format!("ACTION_{name}")));
        action.unwrap_or_default().into()
    }
}

/// The service may know detectors that this program does not, so it is asked
/// all the same.
pub(super) fn warn_if_unknown_detector(name: &str) {
    let known = || detect::NAMES.iter().copied().chain([OPERATOR]);
    if name.is_empty() || known().any(|known| known == name) {
        return;
    }
    let nearest = known().max_by(|a, b| {
        let similarity = |known| strsim::jaro_winkler(known, name);
        similarity(a).total_cmp(&similarity(b))
    });
    anstream::eprintln!(
        "unstuck: no detector is called {name:?} here; did you mean {}?",
        nearest.unwrap_or_default()
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
    let mut lines = VerdictPrinter::new(args.output);
    let mut request = pb::ListVerdictsRequest {
        // A page is printed as it comes: small enough to be there at once.
        page_size: 200,
        page_token: String::new(),
        session_id: args.filter.session.clone(),
        labels: args.filter.label_map(),
        detector: args.filter.detector.clone(),
        least_action: args.filter.min_action(),
        start_time: args.since.map(time_format::time_to_wire),
        end_time: args.until.map(time_format::time_to_wire),
        newest_first: false,
    };
    loop {
        let page = client
            .call(request.clone(), async |mut service, request| {
                service.list_verdicts(request).await
            })
            .await?;
        for verdict in &page.verdicts {
            map_write_error(lines.print(verdict))?;
        }
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}
