//! `unstuck verdicts`: the audit log, oldest first.

mod lines;

use std::{collections::HashMap, process::ExitCode};

use jiff::Timestamp;

use super::{
    Failure,
    client::{self, Client, ServerArgs},
    clock,
    output::{Output, written},
    sessions::label,
};
use crate::{
    detect,
    domain::{Action, OPERATOR},
    pb,
};
pub(super) use lines::Lines;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Only verdicts from then on: a time as in RFC 3339, or how long ago (2h).
    #[arg(long, value_name = "WHEN", value_parser = clock::when)]
    since: Option<Timestamp>,
    /// Only verdicts before then.
    #[arg(long, value_name = "WHEN", value_parser = clock::when)]
    until: Option<Timestamp>,
    /// A line a verdict for people, or an object a line for programs.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Which verdicts.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Only of this session.
    #[arg(long, value_name = "ID", default_value = "")]
    session: String,
    /// Only of sessions that have this label; may be given more than once.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
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
    pub fn hint(&self) {
        hint_detector(&self.detector);
    }

    pub fn watch(&self, after_verdict_id: String) -> pb::WatchVerdictsRequest {
        pb::WatchVerdictsRequest {
            session_id: self.session.clone(),
            labels: self.labels(),
            detector: self.detector.clone(),
            least_action: self.least_action(),
            after_verdict_id,
        }
    }

    fn labels(&self) -> HashMap<String, String> {
        self.labels.iter().cloned().collect()
    }

    fn least_action(&self) -> i32 {
        let name = self.least.map(|action| action.name().to_ascii_uppercase());
        let action = name.and_then(|name| pb::Action::from_str_name(&format!("ACTION_{name}")));
        action.unwrap_or_default().into()
    }
}

/// The service may know detectors that this program does not, so it is asked
/// all the same.
pub(super) fn hint_detector(name: &str) {
    let known = || detect::NAMES.iter().copied().chain([OPERATOR]);
    if name.is_empty() || known().any(|known| known == name) {
        return;
    }
    let nearest = known().max_by(|a, b| {
        let alike = |known| strsim::jaro_winkler(known, name);
        alike(a).total_cmp(&alike(b))
    });
    anstream::eprintln!(
        "unstuck: no detector is called {name:?} here; did you mean {}?",
        nearest.unwrap_or_default()
    );
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.filter.hint();
    client::run(&args.server, async |client| list(&client, args).await)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, args: &Args) -> Result<(), Failure> {
    let mut lines = Lines::new(args.output);
    let mut request = pb::ListVerdictsRequest {
        // A page is printed as it comes: small enough to be there at once.
        page_size: 200,
        page_token: String::new(),
        session_id: args.filter.session.clone(),
        labels: args.filter.labels(),
        detector: args.filter.detector.clone(),
        least_action: args.filter.least_action(),
        start_time: args.since.map(clock::to_wire),
        end_time: args.until.map(clock::to_wire),
        newest_first: false,
    };
    loop {
        let page = client
            .ask(request.clone(), async |mut service, request| {
                service.list_verdicts(request).await
            })
            .await?;
        for verdict in &page.verdicts {
            written(lines.print(verdict))?;
        }
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}
