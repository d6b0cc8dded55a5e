//! The service on a simulated machine: engine, store and services over the simulated
//! network and disk.

use std::{
    io,
    net::Ipv4Addr,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll},
    time::SystemTime,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::{Builder, Runtime},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};
use unstuck::{
    api::Api,
    auth::Auth,
    engine::RunMode,
    server::{self, ServerContext},
    store::Store,
};

use super::{Rng, disk::Disk, setup};

pub const SERVER: &str = "server";
pub const PORT: u16 = 50_551;

/// Terminates a session after five equal calls.
const TERMINATE_AFTER_FIVE: &str = "[detect.exact_repeat]\ncount = 3\nterminate_after = 5\n";

/// Answers wait for the disk, however slow the machine is that simulates it.
const NO_SYNC_TIMEOUT: &str = "[store]\nsync_secs_max = 3600\n";

#[derive(Clone)]
pub struct Host {
    disk: Disk,
    /// The store of the running process.
    store: Arc<Mutex<Weak<Store>>>,
    /// Waits for the store's writer thread, which does not run in simulated time.
    real_time: Arc<Runtime>,
}

impl Host {
    pub fn new(disk: Disk) -> Self {
        Self {
            disk,
            store: Arc::default(),
            real_time: Arc::new(Builder::new_current_thread().enable_time().build().unwrap()),
        }
    }

    /// Runs a process of the service.
    pub async fn run(self) -> turmoil::Result {
        let dir = self.disk.dir().display().to_string();
        let config = setup::config(format!(
            "{TERMINATE_AFTER_FIVE}{NO_SYNC_TIMEOUT}dir = {dir:?}\n"
        ))?;
        let options = setup::store_options(&config, now());
        let (store, recovered) = Store::open_with_hook(options, Some(self.disk.hook()))?;
        let store = Arc::new(store);
        *self.store.lock().unwrap() = Arc::downgrade(&store);
        let auth = Arc::new(Auth::new(&config.auth)?);
        let limits = config.limits.clone();
        let (engine, metrics) = setup::engine(config, RunMode::Live, store.verdict_sink());
        engine.restore(recovered, now(), now());
        let draining = CancellationToken::new();
        let context = ServerContext::new(auth, metrics, limits.clone(), draining);
        let api = Api::new(Arc::new(engine), store, Arc::new(context));
        let (admission, routes) = (api.admission(), api.routes()?);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        let incoming = futures_util::stream::unfold(listener, |listener| async {
            let accepted = listener
                .accept()
                .await
                .map(|(stream, _)| SimulatedStream(stream));
            Some((accepted, listener))
        });
        let server = server::grpc_server(&limits)
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
        self.real_time
            .block_on(store.wait_until_settled_or_timeout(store.last_verdict_id()));
        self.disk.set_open(false);
    }

    pub fn free_disk(&self) {
        self.disk.set_open(true);
    }

    /// A power failure; half of the time between a commit and its answers.
    pub fn lose_power(&self, rng: &mut Rng) {
        if rng.below(2) == 0 {
            self.let_disk_work();
        }
        self.disk.lose_power();
    }

    /// Waits until the writer thread of a killed process has ended.
    pub fn wait_until_stopped(&self) {
        self.disk.wait_until_unused();
    }
}

#[expect(clippy::disallowed_methods, reason = "the services read the clock too")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// A simulated connection for tonic.
struct SimulatedStream(TcpStream);

impl Connected for SimulatedStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for SimulatedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for SimulatedStream {
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
