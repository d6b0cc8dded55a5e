//! The command line: one file a subcommand, and what they share.
//!
//! Uses: all.

mod audit;
mod client;
mod completions;
mod config;
mod eval;
mod grid;
mod health;
mod man;
mod output;
mod replay;
mod reset;
mod serve;
mod session;
mod sessions;
mod snooze;
mod style;
mod terminate;
mod text_format;
mod time_format;
mod token;
mod trace;
mod verdict;
mod verdicts;
mod watch;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use thiserror::Error;

/// A line of a trace, which the fuzzer reads too.
pub use trace::line::{TraceLine, TraceLineError as LineFault};

/// Watches LLM agent sessions while they run and says when one is stuck.
#[derive(Debug, Parser)]
#[command(name = "unstuck", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service; the same as no command at all.
    Serve(serve::Args),
    /// How the sessions of a running service stand, the worst first.
    Sessions(sessions::Args),
    /// What a session did, and why each verdict fired.
    Session(session::Args),
    /// Verdicts as they happen.
    Watch(watch::Args),
    /// The audit log: what fired, and what operators did.
    Verdicts(verdicts::Args),
    /// End sessions, by their ids or by what they have in common.
    Terminate(terminate::Args),
    /// Forget what was learned of a session, a termination too: it may go on.
    Reset(reset::Args),
    /// Have a session's verdicts not acted on for a while.
    Snooze(snooze::Args),
    /// Run recorded traces through the detectors, offline.
    Replay(replay::Args),
    /// Run labelled traces through the detectors and say how well they find loops.
    Eval(eval::Args),
    /// Check the audit log.
    #[command(subcommand)]
    Audit(audit::Command),
    /// Show or check the configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// Make tokens, for a service that asks who calls.
    #[command(subcommand)]
    Token(token::Command),
    /// Ask a running service whether it takes calls.
    Health(health::Args),
    /// Print what a shell needs to complete these commands.
    Completions(completions::Args),
    /// Print the manual, as `man` reads it.
    Man(man::Args),
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// A TOML file instead of `unstuck.toml` in the working directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    fn load_layers(&self) -> Result<crate::config::Layers, CliError> {
        crate::config::load_layers(self.config.as_deref()).map_err(CliError::usage)
    }

    fn load_config(&self) -> Result<crate::config::Config, CliError> {
        crate::config::Config::new(&self.load_layers()?).map_err(CliError::usage)
    }
}

/// Who may reach the service.
#[derive(Debug, clap::Args)]
struct InsecureArg {
    /// Listen where other machines reach it without TLS and tokens: everybody
    /// who gets there may do all, and can read along.
    #[arg(long)]
    insecure: bool,
}

/// Where a service that listens there is found from this machine: one that
/// listens everywhere listens on the loopback too.
fn to_local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Why a command did not do what it was asked: one line and an exit code.
#[derive(Debug, Error)]
#[error("{message}")]
struct CliError {
    message: String,
    code: u8,
}

impl CliError {
    /// It was tried, and failed.
    fn failed(why: impl std::fmt::Display) -> Self {
        Self {
            message: why.to_string(),
            code: 1,
        }
    }

    /// It could not be tried: wrong use, or bad input.
    fn usage(why: impl std::fmt::Display) -> Self {
        Self {
            message: why.to_string(),
            code: 2,
        }
    }

    /// What it was to be done with is not there.
    fn not_found(why: impl std::fmt::Display) -> Self {
        Self {
            message: why.to_string(),
            code: 3,
        }
    }

    /// Nobody reads what is printed any more: that is no failure.
    fn broken_pipe() -> Self {
        Self {
            message: String::new(),
            code: 0,
        }
    }

    /// It was told already.
    fn without_message(self) -> Self {
        Self {
            message: String::new(),
            ..self
        }
    }
}

/// Runs a command and says how it ended.
pub fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        None => serve::run(&cli.serve),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Sessions(args)) => sessions::run(&args),
        Some(Command::Session(args)) => session::run(&args),
        Some(Command::Watch(args)) => watch::run(&args),
        Some(Command::Verdicts(args)) => verdicts::run(&args),
        Some(Command::Terminate(args)) => terminate::run(&args),
        Some(Command::Reset(args)) => reset::run(&args),
        Some(Command::Snooze(args)) => snooze::run(&args),
        Some(Command::Completions(args)) => completions::run(&args),
        Some(Command::Man(args)) => man::run(&args),
        Some(Command::Replay(args)) => replay::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
        Some(Command::Audit(command)) => audit::run(&command),
        Some(Command::Config(command)) => config::run(&command),
        Some(Command::Token(command)) => token::run(&command),
        Some(Command::Health(args)) => health::run(&args),
    };
    result.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            anstream::eprintln!("unstuck: {failure}");
        }
        failure.code.into()
    })
}
