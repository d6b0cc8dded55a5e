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

/// What is over is soon forgotten, so that a short run sees it go, and so few
/// sessions may live that new ones are refused.
const SETTINGS: &str = "\
[server]
grpc = \"127.0.0.1:0\"
http = \"127.0.0.1:0\"
[limits]
sessions_max = 200
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
    pub fn start(program: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("unstuck.toml"), SETTINGS).unwrap();
        let mut child = Command::new(program)
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

    pub async fn connect(&self) -> Channel {
        connect(self.grpc).await
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
