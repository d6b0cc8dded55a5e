//! The service under test: the real program in a separate process, so that its
//! memory and open files can be measured.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::Mode;

/// The settings of both modes. `agents_max` is small, so that events of further agents
/// are refused.
const COMMON: &str = "\
[server]
grpc = \"127.0.0.1:0\"
http = \"127.0.0.1:0\"
[limits]
agents_max = 2
";
/// Sessions and tombstones expire early, so that a short run can see them expire.
const TIMED: &str = "\
idle_secs_max = 3
tombstone_secs_max = 3
";
/// On a busy machine a client of the test may be delayed for seconds. The service
/// must not disconnect it for that, its sessions must not expire meanwhile, and a slow
/// disk must not be taken for one that hangs.
const FUNCTIONAL: &str = "\
idle_secs_max = 10
tombstone_secs_max = 10
handshake_secs_max = 60
slow_reader_secs_max = 60
[store]
sync_secs_max = 60
";

pub struct Service {
    child: Child,
    pub grpc: SocketAddr,
    http: SocketAddr,
    _dir: TempDir,
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUsage {
    pub rss_mib: f64,
    pub files: usize,
}

impl Service {
    /// Starts the program; on `cores` if they are given.
    pub fn start(program: &str, mode: Mode, cores: Option<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let limits = match mode {
            Mode::Timed => TIMED,
            Mode::Functional => FUNCTIONAL,
        };
        let settings = format!("{COMMON}{limits}");
        fs::write(dir.path().join("unstuck.toml"), settings).unwrap();
        let mut command = match &cores {
            Some(cores) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", cores, program]);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .arg("serve")
            .current_dir(dir.path())
            .env("UNSTUCK__STORE__DIR", dir.path().join("store"))
            .env("UNSTUCK__STORE__KEY_FILE", dir.path().join("unstuck.key"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |what: &str| -> SocketAddr {
            let line = lines.next().expect("the address it listens on").unwrap();
            let address = line.strip_prefix(&format!("unstuck: {what} on "));
            address.unwrap_or_else(|| panic!("{line}")).parse().unwrap()
        };
        let (grpc, http) = (address("gRPC"), address("HTTP"));
        // Drains the pipe: the service must not block on a full one.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            grpc,
            http,
            _dir: dir,
        }
    }

    pub fn usage(&mut self) -> ProcessUsage {
        assert!(
            self.child.try_wait().unwrap().is_none(),
            "the service has ended"
        );
        let process = format!("/proc/{}", self.child.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = rss.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        let files = fs::read_dir(format!("{process}/fd")).unwrap().count();
        ProcessUsage {
            rss_mib: kib / 1024.0,
            files,
        }
    }

    /// All series of `/metrics`, by name and labels.
    pub async fn metrics(&self) -> HashMap<String, f64> {
        let response = reqwest::get(format!("http://{}/metrics", self.http)).await;
        let page = response.unwrap().text().await.unwrap();
        page.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Splits the cores: the first half for the service, the rest for this process, so
/// that the generator slows the service down no more than another machine would.
/// `None`: there is only one core, or no `taskset`.
pub fn divide_cores() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = Vec::new();
    for range in allowed.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    let (first, rest) = cores.split_at(cores.len() / 2);
    if first.is_empty() {
        return None;
    }
    let own_pid = std::process::id().to_string();
    let moved = Command::new("taskset")
        .args([
            "--all-tasks",
            "--pid",
            "--cpu-list",
            &core_list(rest),
            &own_pid,
        ])
        .stdout(Stdio::null())
        .status();
    moved
        .is_ok_and(|status| status.success())
        .then(|| core_list(first))
}

fn core_list(cores: &[usize]) -> String {
    let numbers: Vec<_> = cores.iter().map(usize::to_string).collect();
    numbers.join(",")
}

pub async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.tcp_nodelay(true).connect().await.unwrap()
}

/// The sum of the series of one metric.
pub fn sum(metrics: &HashMap<String, f64>, name: &str) -> f64 {
    metrics
        .iter()
        .filter(|(series, _)| {
            let rest = series.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        })
        .map(|(_, value)| value)
        .sum()
}
