//! `[cluster]`: what the replicas of one service share.

use std::{fmt, path::PathBuf};

use percent_encoding::percent_decode_str;
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use reqwest::Url;
use serde::Deserialize;

/// `[cluster]`
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Settings {
    /// Empty: one process.
    pub redis: RedisUrl,
    /// Empty: the host name.
    pub name: String,
    /// Empty: lists have the sessions of this replica only.
    pub advertise: String,
    pub secret_file: PathBuf,
    pub prefix: String,
    pub wait_ms: u64,
    pub tail_max: usize,
    pub state_bytes_max: usize,
    pub feed_max: usize,
}

/// The address of Redis, which may have a password.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct RedisUrl(String);

/// How the servers are found.
pub(super) enum Topology {
    Single(Box<ConnectionInfo>),
    Sentinel(Box<SentinelClient>),
    Cluster(Vec<ConnectionInfo>),
}

const WAIT_MS_MAX: u64 = 60_000;
/// Clients give up after about this time, so that a longer wait is warned about.
const WAIT_MS_SENSIBLE: u64 = 250;
const PREFIX_BYTES_MAX: usize = 64;

impl Settings {
    pub fn is_on(&self) -> bool {
        !self.redis.0.is_empty()
    }

    /// Logs a wait that works and is longer than clients are patient.
    pub(super) fn warn_of_long_wait(&self) {
        if self.wait_ms > WAIT_MS_SENSIBLE {
            tracing::warn!(
                wait_ms = self.wait_ms,
                "`cluster.wait_ms` is above {WAIT_MS_SENSIBLE}: clients may give up while an answer waits for redis"
            );
        }
    }

    /// The key at fault, and why the settings can never work.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !self.is_on() {
            return Ok(());
        }
        if let Err(why) = self.redis.topology() {
            return Err(("redis", why));
        }
        if self.secret_file.as_os_str().is_empty() {
            let why = "is required with cluster.redis: the same file on all replicas";
            return Err(("secret_file", why.to_owned()));
        }
        if !(1..=WAIT_MS_MAX).contains(&self.wait_ms) {
            let why = format!("must be at least 1 and at most {WAIT_MS_MAX}");
            return Err(("wait_ms", why));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let prefix = &self.prefix;
        if !(1..=PREFIX_BYTES_MAX).contains(&prefix.len()) || !prefix.chars().all(is_plain) {
            let why =
                format!("must be 1 to {PREFIX_BYTES_MAX} letters, digits, `-`, `_`, `.` or `:`");
            return Err(("prefix", why));
        }
        if self
            .name
            .contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(("name", "must be without white space".to_owned()));
        }
        for (key, value, least) in [
            ("state_bytes_max", self.state_bytes_max, 1_024),
            ("feed_max", self.feed_max, 1_000),
        ] {
            if value < least {
                return Err((key, format!("{value} is too low: at least {least}")));
            }
        }
        Ok(())
    }
}

impl RedisUrl {
    #[cfg(test)]
    pub fn new(address: &str) -> Self {
        Self(address.to_owned())
    }

    /// The servers. The error never has the password.
    pub(super) fn topology(&self) -> Result<Topology, String> {
        let invalid = |_| "is not an address such as redis://host:6379".to_owned();
        // A list of hosts is not a URL, so its first host stands for all.
        let (first, others) = self.split_hosts();
        let url = Url::parse(&first).map_err(invalid)?;
        if url.host_str().is_none_or(str::is_empty) {
            return Err("needs a host".to_owned());
        }
        // Who asks, and the hosts.
        let user = decode(url.username());
        let password = url.password().map(decode);
        let nodes = || {
            let port = url.port();
            let host = url.host_str().unwrap_or_default().to_owned();
            let node = match port {
                Some(port) => format!("{host}:{port}"),
                None => host,
            };
            std::iter::once(node).chain(others.iter().cloned())
        };
        // The scheme says how the servers are found.
        match url.scheme() {
            "redis" | "rediss" if others.is_empty() => {
                let info = first.as_str().into_connection_info();
                let info = info.map_err(|_| "is not an address of Redis".to_owned())?;
                Ok(Topology::Single(Box::new(info)))
            }
            "redis+sentinel" => {
                let addresses: Option<Vec<ConnectionAddr>> =
                    nodes().map(|node| tcp_address(&node, 26_379)).collect();
                let addresses = addresses.ok_or("has a host that is not host:port")?;
                let path = url.path().trim_start_matches('/');
                let (master, database) = path.split_once('/').unwrap_or((path, "0"));
                if master.is_empty() {
                    return Err("needs the name of the master: redis+sentinel://host/name".into());
                }
                let database: i64 = database
                    .parse()
                    .map_err(|_| "has a database that is not a number".to_owned())?;
                sentinel(addresses, master, database, user, password)
                    .map(|client| Topology::Sentinel(Box::new(client)))
                    .map_err(|_| "is not an address of Sentinel".to_owned())
            }
            // The first node that answers names the others.
            "redis-cluster" | "rediss-cluster" => {
                let scheme = url.scheme().trim_end_matches("-cluster");
                let credentials = match url.password() {
                    Some(password) => format!("{}:{password}@", url.username()),
                    None => String::new(),
                };
                let infos = nodes()
                    .map(|node| format!("{scheme}://{credentials}{node}").into_connection_info());
                let infos: Result<Vec<_>, RedisError> = infos.collect();
                let infos = infos.map_err(|_| "is not an address of a Redis cluster".to_owned())?;
                Ok(Topology::Cluster(infos))
            }
            _ => Err("must begin with redis://, rediss://, redis+sentinel://, \
                      redis-cluster:// or rediss-cluster://"
                .to_owned()),
        }
    }

    /// The address with its first host only, and the other hosts.
    fn split_hosts(&self) -> (String, Vec<String>) {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return (self.0.clone(), Vec::new());
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), authority),
        };
        let mut hosts = hosts.split(',').map(str::to_owned);
        let first = hosts.next().unwrap_or_default();
        (
            format!("{scheme}://{credentials}{first}{path}"),
            hosts.collect(),
        )
    }

    /// The address with `***` for the password.
    pub fn redact(address: &str) -> String {
        let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
        match rest.rsplit_once('@') {
            Some((credentials, rest)) => {
                let user = credentials.split(':').next().unwrap_or_default();
                format!("{scheme}://{user}:***@{rest}")
            }
            None => address.to_owned(),
        }
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn tcp_address(node: &str, default_port: u16) -> Option<ConnectionAddr> {
    let (host, port) = match node.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (node, default_port),
    };
    Some(ConnectionAddr::Tcp(host.to_owned(), port))
}

/// User and password are those of Redis; the sentinels have none.
fn sentinel(
    addresses: Vec<ConnectionAddr>,
    master: &str,
    database: i64,
    user: String,
    password: Option<String>,
) -> Result<SentinelClient, RedisError> {
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
        .set_client_to_redis_db(database);
    if !user.is_empty() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_redis_password(password);
    }
    builder.build()
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::redact(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(redis: &str) -> Settings {
        Settings {
            redis: RedisUrl(redis.to_owned()),
            secret_file: "secret".into(),
            prefix: "unstuck".to_owned(),
            wait_ms: 50,
            state_bytes_max: 65_536,
            feed_max: 100_000,
            ..Settings::default()
        }
    }

    #[test]
    fn addresses_of_all_topologies_are_accepted() {
        for address in [
            "redis://127.0.0.1:6379",
            "redis://unstuck:s%40cret@redis/1",
            "rediss://redis.example.com:6380",
            "redis+sentinel://unstuck:s@a:26379,b,c:26379/main",
            "redis-cluster://unstuck:s@a:7000,b:7001,c:7002",
        ] {
            assert_eq!(settings(address).check(), Ok(()), "{address}");
        }
    }

    #[test]
    fn settings_that_can_never_work_are_refused_without_the_password() {
        let check = |settings: Settings, key: &str| {
            let (at, why) = settings.check().unwrap_err();
            assert_eq!(at, key);
            assert!(!why.contains("s3cret"), "{why}");
        };
        for address in [
            "http://u:s3cret@redis",
            "redis://",
            "redis://u:s3cret@a,b",
            "redis+sentinel://u:s3cret@a",
            "u:s3cret@redis",
        ] {
            check(settings(address), "redis");
        }
        let on = || settings("redis://redis");
        check(
            Settings {
                wait_ms: WAIT_MS_MAX + 1,
                ..on()
            },
            "wait_ms",
        );
        check(Settings { wait_ms: 0, ..on() }, "wait_ms");
        let braces = "a{b}".to_owned();
        check(
            Settings {
                prefix: braces,
                ..on()
            },
            "prefix",
        );
        let none = PathBuf::new();
        check(
            Settings {
                secret_file: none,
                ..on()
            },
            "secret_file",
        );
        assert_eq!(settings("").check(), Ok(()));
    }

    #[test]
    fn the_password_is_never_shown() {
        let url = RedisUrl("redis://unstuck:s3cr@t@redis:6379/1".to_owned());
        assert_eq!(format!("{url:?}"), "redis://unstuck:***@redis:6379/1");
        let plain = "redis://redis:6379";
        assert_eq!(RedisUrl::redact(plain), plain);
    }
}
