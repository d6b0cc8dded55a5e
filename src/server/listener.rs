//! Accepts connections. Their number is limited, a client must send its first bytes
//! and read responses in time, and an accept that fails for lack of descriptors is
//! retried with a backoff.
//!
//! A [`Connection`] holds its permit until it is dropped. TLS is the layer below it:
//! the first bytes it sees are those of the client's request, so the handshake
//! deadline includes the TLS handshake.

use std::{
    io, iter,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{self, Sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::{
    activity::{Activity, ActivityGuard},
    reserve::{ConnectionInfo, Reserve, ReservePermit},
    socket::{AcceptedSocket, ListeningSocket},
    tls::{MaybeTlsStream, Tls},
};
use crate::telemetry::{GaugeGuard, ListenerKind, Metrics, Rejection};

/// The length of the HTTP/2 client preface (RFC 9113, 3.4). The shortest HTTP/1.1
/// request is longer.
const HTTP2_PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Pauses after an accept that failed for lack of descriptors or memory. They double,
/// so that a minute without descriptors costs 66 attempts and not a core.
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(5);
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The deadlines of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// For the first bytes of the client.
    pub handshake: Duration,
    /// For the client to read some of what it is sent. `None`: the protocol notices by
    /// itself, as HTTP/2 does with pings.
    pub write: Option<Duration>,
}

/// A listener with a limit on open connections.
pub struct Listener {
    listener: ListeningSocket,
    permits: Arc<Semaphore>,
    timeouts: ConnectionTimeouts,
    kind: ListenerKind,
    /// `None`: plain text.
    tls: Option<Arc<Tls>>,
    /// For connections above the limit. `None`: they are closed at once.
    reserve: Option<Reserve>,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
    /// The last connection was rejected. The warning is logged once.
    is_at_capacity: bool,
}

impl Listener {
    pub fn new(
        listener: ListeningSocket,
        kind: ListenerKind,
        tls: Option<Arc<Tls>>,
        connections_max: usize,
        timeouts: ConnectionTimeouts,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(connections_max)),
            timeouts,
            kind,
            tls,
            reserve: None,
            metrics,
            activity: Arc::default(),
            is_at_capacity: false,
        }
    }

    /// Connections above the limit go to this reserve.
    pub fn with_reserve(self, reserve: Reserve) -> Self {
        Self {
            reserve: Some(reserve),
            ..self
        }
    }

    /// Its connections count here.
    pub fn with_activity(self, activity: Arc<Activity>) -> Self {
        Self { activity, ..self }
    }

    /// The next connection below the limit. One above it goes to the reserve or is
    /// closed at once: left in the accept queue, its client would wait without an error.
    pub async fn accept(&mut self) -> Connection<MaybeTlsStream> {
        loop {
            let socket = self.accept_socket().await;
            match self.permits.clone().try_acquire_owned() {
                Ok(permit) => {
                    self.is_at_capacity = false;
                    return self.wrap_socket(socket, self.kind, ConnectionPermit::new(permit));
                }
                Err(_) => self.reject(socket),
            }
        }
    }

    fn reject(&mut self, socket: AcceptedSocket) {
        if !self.is_at_capacity {
            self.is_at_capacity = true;
            let listener = self.kind.name();
            tracing::warn!(listener, "connections_max is reached; more are refused");
        }
        let slot = self
            .reserve
            .as_ref()
            .and_then(|reserve| Some((reserve, reserve.take_slot()?)));
        match slot {
            Some((reserve, permit)) => {
                let permit = ConnectionPermit::Reserve(permit);
                let kind = ListenerKind::GrpcReserve;
                reserve.serve(self.wrap_socket(socket, kind, permit));
            }
            None => self.metrics.count_rejection(Rejection::ConnectionsMax),
        }
    }

    /// The connections as the stream that tonic serves.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection<MaybeTlsStream>>> {
        stream::unfold(self, |mut listener| async {
            let connection = listener.accept().await;
            Some((Ok(connection), listener))
        })
    }

    async fn accept_socket(&mut self) -> AcceptedSocket {
        let mut backoff = accept_backoff();
        loop {
            match self.listener.accept().await {
                Ok(socket) => return socket,
                // The client closed it before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.metrics.count_rejection(Rejection::FileDescriptors);
                    let listener = self.kind.name();
                    tracing::error!(%error, listener, "cannot accept a connection; retrying");
                    time::sleep(backoff.next().unwrap_or(ACCEPT_BACKOFF_MAX)).await;
                }
            }
        }
    }

    fn wrap_socket(
        &self,
        socket: AcceptedSocket,
        kind: ListenerKind,
        permit: ConnectionPermit,
    ) -> Connection<MaybeTlsStream> {
        let io = match socket {
            AcceptedSocket::Tcp(socket) => {
                // Responses are small and must not wait for more data.
                if let Err(error) = socket.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY");
                }
                match &self.tls {
                    Some(tls) => tls.accept(kind, socket, self.metrics.clone()),
                    None => MaybeTlsStream::Plain(socket),
                }
            }
            AcceptedSocket::Unix(socket) => MaybeTlsStream::Unix(socket),
        };
        Connection {
            io,
            handshake: Some(HandshakeDeadline {
                bytes_left: HTTP2_PREFACE_BYTES,
                deadline: Box::pin(time::sleep(self.timeouts.handshake)),
                is_counted: false,
                metrics: self.metrics.clone(),
            }),
            write_deadline: self.timeouts.write.map(|timeout| WriteDeadline {
                timeout,
                stall_timer: None,
                metrics: self.metrics.clone(),
            }),
            _open: self.metrics.track_connection(kind),
            _activity: self.activity.track(),
            permit,
        }
    }
}

fn accept_backoff() -> impl Iterator<Item = Duration> {
    iter::successors(Some(ACCEPT_BACKOFF_MIN), |pause| {
        Some((2 * *pause).min(ACCEPT_BACKOFF_MAX))
    })
}

/// A connection with its permit and its deadlines. Reads and writes fail with
/// `TimedOut` after a deadline.
pub struct Connection<S> {
    io: S,
    /// `None`: the first bytes have arrived.
    handshake: Option<HandshakeDeadline>,
    write_deadline: Option<WriteDeadline>,
    _open: GaugeGuard,
    _activity: ActivityGuard,
    permit: ConnectionPermit,
}

/// Counts against the limit of a listener, or of the reserve.
enum ConnectionPermit {
    Listener { _permit: OwnedSemaphorePermit },
    Reserve(ReservePermit),
}

impl ConnectionPermit {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        Self::Listener { _permit: permit }
    }

    /// Fails when the connection must close for another one.
    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Self::Reserve(permit) = self
            && permit.poll_evicted(cx).is_ready()
        {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

struct HandshakeDeadline {
    bytes_left: usize,
    deadline: Pin<Box<Sleep>>,
    is_counted: bool,
    metrics: Arc<Metrics>,
}

impl HandshakeDeadline {
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.deadline.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        if !self.is_counted {
            self.is_counted = true;
            self.metrics.count_rejection(Rejection::HandshakeSecsMax);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

struct WriteDeadline {
    timeout: Duration,
    /// Set while a write is pending.
    stall_timer: Option<Pin<Box<Sleep>>>,
    metrics: Arc<Metrics>,
}

impl WriteDeadline {
    /// Passes on the result of a write, or fails if the client has not read for too
    /// long.
    fn check_stall<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall_timer = None;
            return written;
        }
        let timeout = self.timeout;
        let timer = self
            .stall_timer
            .get_or_insert_with(|| Box::pin(time::sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        self.metrics.count_rejection(Rejection::SlowReaderSecsMax);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S> Connection<S> {
    fn check_deadlines<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // Under TLS a write may wait for the handshake, without any read.
        if let (Poll::Pending, Some(handshake)) = (&written, &mut self.handshake) {
            handshake.poll_deadline(cx)?;
        }
        match &mut self.write_deadline {
            Some(deadline) => deadline.check_stall(cx, written),
            None => written,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.permit.poll_evicted(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer)?;
        // Bytes already in the socket buffer count as on time even if we poll late.
        if let (Poll::Pending, Some(handshake)) = (read, &mut this.handshake) {
            handshake.poll_deadline(cx)?;
        }
        ready!(read);
        if let Some(handshake) = &mut this.handshake {
            let bytes_read = buffer.filled().len() - before;
            handshake.bytes_left = handshake.bytes_left.saturating_sub(bytes_read);
            if handshake.bytes_left == 0 {
                this.handshake = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.check_deadlines(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.check_deadlines(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.check_deadlines(cx, shut)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.check_deadlines(cx, written)
    }
}

impl<S: Connected<ConnectInfo = TcpConnectInfo>> Connected for Connection<S> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo {
            tcp: self.io.connect_info(),
            reserve_slot: match &self.permit {
                ConnectionPermit::Listener { .. } => None,
                ConnectionPermit::Reserve(permit) => Some(permit.slot()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_without_descriptors_costs_66_accepts() {
        let mut elapsed = Duration::ZERO;
        let attempts = accept_backoff().take_while(|pause| {
            elapsed += *pause;
            elapsed < Duration::from_secs(60)
        });
        assert_eq!(attempts.count(), 66);
    }
}
