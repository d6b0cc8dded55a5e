//! `unstuck hook AGENT`: passes a hook's payload to the service and prints its reply.
//!
//! An agent waits for it before and after each call. Therefore it ends with 0 within a fixed
//! time, and on any failure prints `{}`, with which every agent continues. `journal` records
//! the reason for `unstuck doctor`.

mod interrupt;
pub(super) mod journal;
mod local_facts;
mod payload;
mod settings;
mod transport;

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{UserConfigArgs, block_on, local_service::LocalDirs};
use crate::ingest;
use interrupt::Interruption;
use journal::Journal;
pub(super) use local_facts::host_name;
use payload::Payload;
pub(super) use settings::{HookSettings, HookTarget, NamedTarget, check_url};
use transport::HookReply;
pub(super) use transport::{HookFailure, post};

/// The reply with which every agent continues.
const GO_ON: &[u8] = b"{}\n";
/// The default time until an agent continues without a reply.
const BUDGET: Duration = Duration::from_millis(250);
/// The service refuses a larger payload.
const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The agent: claude-code, codex, gemini, qwen, copilot, cline, opencode, pi, or auto.
    #[arg(value_name = "AGENT", value_parser = parse_agent)]
    pub agent: String,
    /// The address of a team's service, instead of the local one: https, or http to this
    /// machine [env, without --config: UNSTUCK_HOOKS_URL] [default: `[hooks] url`].
    #[arg(long, value_name = "URL", visible_alias = "server")]
    pub http: Option<String>,
    /// The name of the variable with the API token for that address.
    #[arg(long, value_name = "NAME", requires = "http")]
    pub token_env: Option<String>,
    /// The event, for agents whose payload does not name it.
    #[arg(long, value_name = "NAME")]
    pub event: Option<String>,
    /// The session, for agents whose payload does not name it.
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// The directory of the local service's state [default: `$XDG_STATE_HOME/unstuck`].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    #[command(flatten)]
    pub config: UserConfigArgs,
}

fn parse_agent(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if text.is_empty() || text.len() > 64 || !text.chars().all(is_valid) {
        return Err("an agent's name has only letters, digits and `-`".to_owned());
    }
    // An agent may have several names, and only one of them in files.
    let known = ingest::find_agent(text).map(|agent| agent.name);
    Ok(known.unwrap_or(text).to_owned())
}

/// Prints the reply with which every agent continues.
pub(super) fn print_go_on() {
    print_reply(GO_ON);
}

/// Ignores errors: an agent that has closed the pipe continues too.
fn print_reply(reply: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(reply).and_then(|()| out.flush());
}

/// Always ends with 0: several agents take another code for a refusal.
pub(super) fn run(args: Args) -> ExitCode {
    let started_at = Instant::now();
    let dirs = LocalDirs::find(args.state.as_deref());
    let journal = dirs.as_ref().map(|dirs| Journal::new(dirs, &args.agent));
    // Everything runs on another thread: standard input, a file system, a name server or the
    // service may hang, and none of them has a timeout.
    let (sender, replies) = mpsc::sync_channel(1);
    let (budget_sender, budgets) = mpsc::sync_channel(1);
    let worker = thread::Builder::new().spawn(move || {
        let settings = HookSettings::load(args.config.file().as_deref());
        let budget = settings.as_ref().map_or(BUDGET, HookSettings::budget);
        let _ = budget_sender.send(budget);
        let answered = settings.and_then(|settings| answer(&args, &settings, dirs.as_ref()));
        sender.send(answered)
    });
    // The configuration may have another budget, if it can be read within this one.
    let timeout = budgets.recv_timeout(BUDGET).unwrap_or(BUDGET);
    let answered = match worker {
        Ok(_) => replies.recv_timeout(timeout.saturating_sub(started_at.elapsed())),
        Err(_) => Err(mpsc::RecvTimeoutError::Disconnected),
    };
    let outcome = match answered {
        Ok(Ok(AgentReply {
            reply,
            interruption,
        })) => {
            print_reply(&reply);
            interruption.map_or(Ok(()), |interruption| interruption.send())
        }
        Ok(Err(failure)) => Err(failure),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(HookFailure::Timeout(timeout)),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(HookFailure::Panicked),
    };
    if let Err(failure) = &outcome
        && failure.is_without_reply()
    {
        print_go_on();
    }
    if let Some(journal) = journal {
        journal.record(&outcome, started_at.elapsed());
    }
    ExitCode::SUCCESS
}

/// The reply of the service, for the agent.
struct AgentReply {
    reply: Vec<u8>,
    /// Interrupts an agent that no reply ends.
    interruption: Option<Interruption>,
}

fn answer(
    args: &Args,
    settings: &HookSettings,
    dirs: Option<&LocalDirs>,
) -> Result<AgentReply, HookFailure> {
    // Read everything first: an agent may not go on before its payload is read.
    let body = read_payload()?;
    if !settings.enabled {
        return Ok(AgentReply {
            reply: GO_ON.to_vec(),
            interruption: None,
        });
    }
    let payload = Payload::parse(&body).ok_or(HookFailure::NotAnObject)?;
    let facts = local_facts::find(&args.agent, &payload);
    let body = payload.with_member("unstuck", &facts);
    let path = request_path(args);
    let reply = send(args, settings, dirs, &path, body)?;
    let session = args.session.clone().or_else(|| payload.session());
    let interruption = dirs
        .filter(|_| reply.interrupt && settings.kill)
        .map(|dirs| Interruption::new(dirs, &args.agent, &session.unwrap_or_default()));
    Ok(AgentReply {
        reply: reply.body,
        interruption,
    })
}

/// Sends the payload. If there is no local service, one is started for the next event.
fn send(
    args: &Args,
    settings: &HookSettings,
    dirs: Option<&LocalDirs>,
    path: &str,
    body: Vec<u8>,
) -> Result<HookReply, HookFailure> {
    let named = NamedTarget {
        url: args.http.as_deref(),
        token_env: args.token_env.as_deref(),
        is_pinned: args.config.config.is_some(),
    };
    let target = HookTarget::choose(named, settings, dirs)?;
    let asked = async { Ok(transport::post(&target, path, body).await) };
    let asked = block_on(asked).map_err(|error| HookFailure::Config(error.to_string()))?;
    match (asked, dirs) {
        (Err(HookFailure::NoService), Some(dirs)) if settings.autostart => {
            match dirs.start(args.config.file().as_deref()) {
                Ok(()) => Err(HookFailure::Started),
                Err(error) => Err(HookFailure::CannotStart(error.to_string())),
            }
        }
        (asked, _) => asked,
    }
}

/// Reads the payload. One that is too long is read to its end and not used, because the agent
/// must not find the pipe closed.
fn read_payload() -> Result<Vec<u8>, HookFailure> {
    let mut input = io::stdin().lock();
    let mut body = Vec::new();
    let limit = PAYLOAD_BYTES_MAX as u64 + 1;
    let read = input.by_ref().take(limit).read_to_end(&mut body);
    read.map_err(|error| HookFailure::Input(error.to_string()))?;
    if body.len() > PAYLOAD_BYTES_MAX {
        let _ = io::copy(&mut input, &mut io::sink());
        return Err(HookFailure::TooLarge);
    }
    Ok(body)
}

fn request_path(args: &Args) -> String {
    let mut path = format!("/v1/hooks/{}", args.agent);
    let members = [("event", &args.event), ("session", &args.session)];
    let given = members
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)));
    for (index, (key, value)) in given.enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path += key;
        path.push('=');
        path.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    }
    path
}
