//! The service on a simulated machine: engine, store and services over the simulated
//! network and disk.

use std::{
    fs, io,
    net::Ipv4Addr,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll},
    thread,
    time::{Duration, SystemTime},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};
use unstuck::{
    api::Api,
    auth::Auth,
    config::{Config, DEFAULTS, Layers, TABLE_KEYS},
    engine::{Engine, RunMode},
    server::{self, ServerContext},
    store::{Store, StoreOptions},
    telemetry::Metrics,
};

use super::{Chance, disk::Disk};

pub const SERVER: &str = "server";
pub const PORT: u16 = 50_551;

/// Terminates a session after five equal calls.
const HASTY: &str = "[detect.exact_repeat]\ncount = 3\nterminate_after = 5\n";

/// Answers wait for the disk, however slow the machine is that simulates it.
const PATIENT: &str = "[store]\nsync_secs_max = 3600\n";

/// Real time for the store's writer thread.
const A_MOMENT: Duration = Duration::from_micros(100);

#[derive(Clone)]
pub struct Host {
    disk: Disk,
    /// The store of the running process.
    store: Arc<Mutex<Weak<Store>>>,
}

impl Host {
    pub fn new(disk: Disk) -> Self {
        Self {
            disk,
            store: Arc::default(),
        }
    }

    /// Runs a process of the service.
    pub async fn run(self) -> turmoil::Result {
        let dir = self.disk.dir().display().to_string();
        let config = config(&format!("{HASTY}{PATIENT}dir = {dir:?}\n"));
        let opening = StoreOptions {
            settings: &config.store,
            audit: config.audit,
            tombstone_age_max: Duration::from_secs(config.engine.tombstone_secs_max),
            tombstones_max: config.engine.tombstones_max,
            now: now(),
            on_fatal: Box::new(|error| panic!("{error}")),
        };
        let (store, recovered) = Store::open_with_hook(opening, Some(self.disk.hook()))?;
        let store = Arc::new(store);
        *self.store.lock().unwrap() = Arc::downgrade(&store);
        let metrics = Arc::new(Metrics::new(config.profiles.detector_names())?);
        let engine = Arc::new(Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            metrics.clone(),
            RunMode::Live,
            store.verdict_sink(),
        ));
        engine.restore(recovered, now(), now());
        let auth = Arc::new(Auth::new(&config.auth)?);
        let draining = CancellationToken::new();
        let context = ServerContext::new(auth, metrics, config.limits.clone(), draining);
        let api = Api::new(engine, store, Arc::new(context));
        let (admission, routes) = (api.admission(), api.routes()?);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        let incoming = futures_util::stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| Wire(stream));
            Some((accepted, listener))
        });
        let server = server::grpc_server(&config.limits)
            .layer(admission)
            .add_routes(routes);
        server.serve_with_incoming(incoming).await?;
        Ok(())
    }

    /// Lets the disk commit everything queued. This takes no simulated time.
    pub fn let_disk_work(&self) {
        let Some(store) = self.store.lock().unwrap().upgrade() else {
            return;
        };
        self.disk.set_open(true);
        while !store.is_settled(store.last_verdict_id()) {
            thread::sleep(A_MOMENT);
        }
        self.disk.set_open(false);
    }

    pub fn free_disk(&self) {
        self.disk.set_open(true);
    }

    /// A power failure; half of the time between a commit and its answers.
    pub fn lose_power(&self, luck: &mut Chance) {
        if luck.below(2) == 0 {
            self.let_disk_work();
        }
        self.disk.lose_power();
    }

    /// Waits until the last thread of a killed process has released its files.
    pub fn wait_until_gone(&self) {
        while self.store.lock().unwrap().strong_count() > 0 {
            thread::sleep(A_MOMENT);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the services read the clock too")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// The built-in configuration with these overrides.
fn config(toml: &str) -> Config {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, toml).unwrap();
    Config::new(&Layers::load(DEFAULTS, TABLE_KEYS, Some(file.path()), []).unwrap()).unwrap()
}

/// A simulated connection for tonic.
struct Wire(TcpStream);

impl Connected for Wire {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
