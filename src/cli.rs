//! The command line: one file a subcommand, and what they share.
//!
//! Uses: all.

mod audit;
mod config;
mod eval;
mod health;
mod output;
mod replay;
mod serve;
mod trace;
mod words;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use thiserror::Error;

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
    /// Ask a running service whether it takes calls.
    Health(health::Args),
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// A TOML file instead of `unstuck.toml` in the working directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    fn layers(&self) -> Result<crate::config::Layers, Failure> {
        crate::config::layers(self.config.as_deref()).map_err(Failure::usage)
    }

    fn load(&self) -> Result<crate::config::Config, Failure> {
        crate::config::Config::new(&self.layers()?).map_err(Failure::usage)
    }
}

/// Where a service that listens there is found from this machine: one that
/// listens everywhere listens on the loopback too.
fn reachable(address: SocketAddr) -> SocketAddr {
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
struct Failure {
    message: String,
    code: u8,
}

impl Failure {
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
}

/// Runs a command and says how it ended.
pub fn run(cli: Cli) -> ExitCode {
    let ended = match cli.command {
        None => serve::run(&cli.serve),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Replay(args)) => replay::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
        Some(Command::Audit(command)) => audit::run(&command),
        Some(Command::Config(command)) => config::run(&command),
        Some(Command::Health(args)) => health::run(&args),
    };
    ended.unwrap_or_else(|failure| {
        anstream::eprintln!("unstuck: {failure}");
        failure.code.into()
    })
}
