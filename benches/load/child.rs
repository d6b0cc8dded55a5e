//! Starts the servers, each in a separate process.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::load_generator::drive::Failure;

#[derive(Clone, Debug)]
pub enum Program {
    /// This program, as the bare server.
    BareServer,
    Unstuck(PathBuf),
}

/// Eight times the default: more sessions than all runs of a load leave behind.
const STATE_BYTES_MAX: &str = "4294967296";

pub struct Server {
    process: Child,
    pub grpc: SocketAddr,
    /// From the start of the process to its first answered health check.
    pub ready_after: Duration,
    _dir: TempDir,
}

impl Server {
    /// Starts the server; only on this core if one is given.
    pub async fn start(program: &Program, core: Option<usize>) -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let began = Instant::now();
        let mut process = command(program, core)?
            .current_dir(dir.path())
            .env("UNSTUCK__SERVER__GRPC", "127.0.0.1:0")
            .env("UNSTUCK__SERVER__HTTP", "127.0.0.1:0")
            // Sessions of earlier runs are never ended.
            .env("UNSTUCK__LIMITS__STATE_BYTES_MAX", STATE_BYTES_MAX)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let grpc = announced_address(&mut process)?;
        check_health(grpc).await?;
        Ok(Self {
            process,
            grpc,
            ready_after: began.elapsed(),
            _dir: dir,
        })
    }

    /// The CPU time of its threads, in nanoseconds.
    pub fn cpu(&self) -> Result<Duration, Failure> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        let mut nanos = 0;
        for task in tasks {
            let figures = fs::read_to_string(task?.path().join("schedstat"))?;
            let on_core = figures.split_whitespace().next().ok_or("no schedstat")?;
            nanos += on_core.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(program: &Program, core: Option<usize>) -> Result<Command, Failure> {
    let this = env::current_exe()?;
    let (path, arg): (&Path, _) = match program {
        Program::BareServer => (&this, "bare-server"),
        Program::Unstuck(path) => (path, "serve"),
    };
    let mut command = match core {
        None => Command::new(path),
        Some(core) => {
            let mut taskset = Command::new("taskset");
            taskset.args(["--cpu-list", &core.to_string()]).arg(path);
            taskset
        }
    };
    command.arg(arg);
    Ok(command)
}

/// The first line ends with the address.
fn announced_address(process: &mut Child) -> Result<SocketAddr, Failure> {
    let stdout = process.stdout.as_mut().ok_or("no standard output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let address = line.split_whitespace().next_back();
    Ok(address.ok_or("the server did not start")?.parse()?)
}

async fn check_health(grpc: SocketAddr) -> Result<(), Failure> {
    let channel = Endpoint::from_shared(format!("http://{grpc}"))?;
    let mut health = HealthClient::new(channel.connect().await?);
    health.check(HealthCheckRequest::default()).await?;
    Ok(())
}

/// Restricts this process to all cores but the last, which the servers use.
pub fn leave_last_core(cores: usize) -> Result<(), Failure> {
    let own = format!("0-{}", cores.saturating_sub(2));
    let pid = std::process::id().to_string();
    let status = Command::new("taskset")
        .args(["--all-tasks", "--cpu-list", "--pid", &own, &pid])
        .stdout(Stdio::null())
        .status()?;
    status.success().then_some(()).ok_or("taskset failed")?;
    Ok(())
}
