//! The service under test: the real program in a process of its own, so that
//! its memory and files are its own.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// What is over is soon forgotten, so that a short run sees it go, and a session
/// may have so few agents that others are refused.
const SETTINGS: &str = "\
[server]
grpc = \"127.0.0.1:0\"
http = \"127.0.0.1:0\"
[limits]
agents_max = 2
idle_secs_max = 3
tombstone_secs_max = 3
";

pub struct Service {
    child: Child,
    pub grpc: SocketAddr,
    http: SocketAddr,
    _dir: TempDir,
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub rss_mib: f64,
    pub files: usize,
}

impl Service {
    /// On these cores, where it has any of its own.
    pub fn start(program: &str, cores: Option<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("unstuck.toml"), SETTINGS).unwrap();
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
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |what: &str| -> SocketAddr {
            let line = lines.next().expect("it says where it listens").unwrap();
            let told = line.strip_prefix(&format!("unstuck: {what} on "));
            told.unwrap_or_else(|| panic!("{line}")).parse().unwrap()
        };
        let (grpc, http) = (address("gRPC"), address("HTTP"));
        // It must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            grpc,
            http,
            _dir: dir,
        }
    }

    pub fn held(&mut self) -> Held {
        assert!(
            self.child.try_wait().unwrap().is_none(),
            "the service has ended"
        );
        let of = format!("/proc/{}", self.child.id());
        let status = fs::read_to_string(format!("{of}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = rss.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        let files = fs::read_dir(format!("{of}/fd")).unwrap().count();
        Held {
            rss_mib: kib / 1024.0,
            files,
        }
    }

    /// All series of `/metrics`, by name and labels.
    pub async fn metrics(&self) -> HashMap<String, f64> {
        let page = reqwest::get(format!("http://{}/metrics", self.http))
            .await
            .unwrap();
        let page = page.text().await.unwrap();
        let series = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        page.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(series)
            .collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sets the cores that there are apart: the first half is the service's, the rest
/// is this process's, so that what the generator costs slows the service down no
/// more than another machine would. `None`: there is one, or no `taskset`.
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
    let list = |cores: &[usize]| {
        let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
        cores.join(",")
    };
    let own = std::process::id().to_string();
    let moved = Command::new("taskset")
        .args(["--all-tasks", "--pid", "--cpu-list", &list(rest), &own])
        .stdout(Stdio::null())
        .status();
    moved
        .is_ok_and(|status| status.success())
        .then(|| list(first))
}

pub async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.tcp_nodelay(true).connect().await.unwrap()
}

/// The sum of the series of one metric.
pub fn sum(metrics: &HashMap<String, f64>, name: &str) -> f64 {
    let is_of = |series: &str| {
        let rest = series.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    };
    metrics
        .iter()
        .filter(|(series, _)| is_of(series))
        .map(|(_, value)| value)
        .sum()
}
