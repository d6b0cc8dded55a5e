//! The command line: one file per subcommand, and the code they share.
//!
//! Uses: all.

mod agent_programs;
mod audit;
mod backup;
mod client;
mod completions;
mod config;
mod context;
mod contexts_file;
mod doctor;
mod eval;
mod grid;
mod health;
mod hook;
mod init;
mod local_service;
mod man;
mod operator_action;
mod output;
mod rate;
mod replay;
mod replicas;
mod reset;
mod restore;
mod scan;
mod serve;
mod server_args;
mod session;
mod sessions;
mod snooze;
mod store_dir;
mod style;
mod terminate;
mod text_format;
mod time_format;
mod tls_errors;
mod token;
mod trace;
mod user_dirs;
mod verdict;
mod verdicts;
mod waste;
mod watch;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use thiserror::Error;

/// A line of a trace, public for the fuzzer.
pub use trace::line::{TraceLine, TraceLineError};

/// Watches running LLM agent sessions and reports when one is stuck in a loop.
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
    /// Run the service (the default command).
    Serve(serve::Args),
    /// List the sessions of a running service, worst first.
    Sessions(sessions::Args),
    /// List the processes of a cluster.
    Replicas(replicas::Args),
    /// Show what a session did and why each verdict fired.
    Session(session::Args),
    /// Print verdicts as they happen.
    Watch(watch::Args),
    /// List the audit log: verdicts and operator actions.
    Verdicts(verdicts::Args),
    /// Terminate sessions, by id or by label and detector.
    Terminate(terminate::Args),
    /// Clear a session's state and lift its termination.
    Reset(operator_action::SessionActionArgs),
    /// Snooze a session: its verdicts are reported as shadow, not acted on.
    Snooze(snooze::Args),
    /// Say of a verdict whether it was right.
    Rate(rate::Args),
    /// Run recorded traces through the detectors, offline.
    Replay(replay::Args),
    /// Measure how well the detectors find the loops in labelled traces.
    Eval(eval::Args),
    /// Find the transcripts of agents on this machine and report what their loops cost.
    Scan(scan::Args),
    /// Check the audit log.
    #[command(subcommand)]
    Audit(audit::Command),
    /// Copy the database to a file, also while the service runs.
    Backup(backup::Args),
    /// Put a copy of the database back. The service must be stopped.
    Restore(restore::Args),
    /// Print or check the configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// Name the services that the commands call, and choose one.
    #[command(subcommand)]
    Context(context::Command),
    /// Create API tokens.
    #[command(subcommand)]
    Token(token::Command),
    /// Check that a running service accepts calls.
    Health(health::Args),
    /// Guard the agents on this machine: add hooks to their settings.
    Init(init::Args),
    /// Check whether the agents on this machine are guarded.
    Doctor(doctor::Args),
    /// Answer a hook of an agent: its payload on standard input, the reply on standard
    /// output. `unstuck init` installs it.
    Hook(hook::Args),
    /// Print a shell completion script.
    Completions(completions::Args),
    /// Print the man page.
    Man(man::Args),
}

/// Which configuration file to read.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// The configuration file, instead of `unstuck.toml` in the working directory.
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

/// Which configuration file to read, for commands that run in the repositories of others.
#[derive(Clone, Debug, clap::Args)]
struct UserConfigArgs {
    /// The configuration file, instead of the user's own,
    /// `$XDG_CONFIG_HOME/unstuck/unstuck.toml`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl UserConfigArgs {
    /// The file, else the user's own if there is one. Never one of the working directory.
    fn file(&self) -> Option<PathBuf> {
        user_file(self.config.as_deref())
    }
}

/// This file, else the user's own if there is one.
fn user_file(named: Option<&Path>) -> Option<PathBuf> {
    let own = || user_dirs::config_file().filter(|file| file.exists());
    named.map(Path::to_owned).or_else(own)
}

/// Permission to listen on a public address without protection.
#[derive(Debug, clap::Args)]
struct InsecureArg {
    /// Allow listening on a non-loopback address without TLS or tokens. No
    /// authentication or encryption: anyone who can connect has full access.
    #[arg(long)]
    insecure: bool,
}

/// The address at which this machine reaches a service that listens on
/// `address`: the loopback address for an unspecified one.
fn to_local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Why a command failed: a one-line message and an exit code.
#[derive(Debug, Error)]
#[error("{message}")]
struct CliError {
    message: String,
    code: u8,
}

impl CliError {
    /// The command was tried and failed.
    fn failed(why: impl std::fmt::Display) -> Self {
        Self {
            message: why.to_string(),
            code: 1,
        }
    }

    /// The command was not tried: wrong usage or bad input.
    fn usage(why: impl std::fmt::Display) -> Self {
        Self {
            message: why.to_string(),
            code: 2,
        }
    }

    /// The command's subject does not exist.
    fn not_found(why: impl std::fmt::Display) -> Self {
        Self {
            message: why.to_string(),
            code: 3,
        }
    }

    /// The reader of standard output closed it, as `head` does: not a failure.
    fn broken_pipe() -> Self {
        Self {
            message: String::new(),
            code: 0,
        }
    }

    /// The same exit code, for an error that is already printed.
    fn without_message(self) -> Self {
        Self {
            message: String::new(),
            ..self
        }
    }
}

/// Runs `future` on a single-threaded runtime, for commands that call a service.
fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::failed)?
        .block_on(future)
}

/// Parses the arguments of the process and runs the command.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run(cli),
        Err(error) if error.use_stderr() && is_hook() => {
            // Several agents take exit code 2 of a hook for a refusal.
            let _ = error.print();
            hook::print_go_on();
            ExitCode::SUCCESS
        }
        Err(error) => error.exit(),
    }
}

fn is_hook() -> bool {
    std::env::args_os()
        .nth(1)
        .is_some_and(|name| name == "hook")
}

/// Runs a command and returns its exit code.
fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        None => serve::run(&cli.serve),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Sessions(args)) => sessions::run(&args),
        Some(Command::Replicas(args)) => replicas::run(&args),
        Some(Command::Session(args)) => session::run(&args),
        Some(Command::Watch(args)) => watch::run(&args),
        Some(Command::Verdicts(args)) => verdicts::run(&args),
        Some(Command::Terminate(args)) => terminate::run(&args),
        Some(Command::Reset(args)) => reset::run(&args),
        Some(Command::Snooze(args)) => snooze::run(&args),
        Some(Command::Rate(args)) => rate::run(&args),
        Some(Command::Completions(args)) => completions::run(&args),
        Some(Command::Man(args)) => man::run(&args),
        Some(Command::Replay(args)) => replay::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
        Some(Command::Scan(args)) => scan::run(&args),
        Some(Command::Audit(command)) => audit::run(&command),
        Some(Command::Backup(args)) => backup::run(&args),
        Some(Command::Restore(args)) => restore::run(&args),
        Some(Command::Config(command)) => config::run(&command),
        Some(Command::Context(command)) => context::run(&command),
        Some(Command::Token(command)) => token::run(&command),
        Some(Command::Health(args)) => health::run(&args),
        Some(Command::Init(args)) => init::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Hook(args)) => Ok(hook::run(args)),
    };
    result.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            anstream::eprintln!("unstuck: {failure}");
        }
        failure.code.into()
    })
}
