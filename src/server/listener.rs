//! Connections as they come in: no more than there is room for, none that says
//! nothing or reads nothing, and no spinning while the machine has no descriptor to
//! give.
//!
//! A [`Connection`] holds its place until it is dropped and forwards what its
//! transport knows of the peer. TLS lies below it: the first bytes are those of
//! the client's request, so that the deadline is for the handshake too.

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
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{self, Sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use super::tls::{MaybeTlsStream, Tls};
use crate::telemetry::{GaugeGuard, ListenerKind, Metrics, Rejection};

/// A client of HTTP/2 begins with so many bytes (RFC 9113, 3.4); the shortest
/// request of HTTP/1.1 is longer.
const HTTP2_PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Pauses after an accept that failed for want of descriptors or memory. They
/// grow, so that a minute without descriptors costs 66 tries and not a core.
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(5);
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How long a connection may take,
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// to say its first bytes,
    pub handshake: Duration,
    /// and to read anything of what it is sent. `None`: the protocol sees to it
    /// by itself, as HTTP/2 does with its pings.
    pub write: Option<Duration>,
}

/// A listener that lets in no more than it has places for.
pub struct Listener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    timeouts: ConnectionTimeouts,
    side: ListenerKind,
    /// `None`: in the clear.
    tls: Option<Arc<Tls>>,
    metrics: Arc<Metrics>,
    /// The last one was turned away; said once.
    is_at_capacity: bool,
}

impl Listener {
    pub fn new(
        listener: TcpListener,
        side: ListenerKind,
        tls: Option<Arc<Tls>>,
        connections_max: usize,
        timeouts: ConnectionTimeouts,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(connections_max)),
            timeouts,
            side,
            tls,
            metrics,
            is_at_capacity: false,
        }
    }

    /// The next connection that there is a place for. One for which there is
    /// none is closed at once: in the queue it would wait without being told.
    pub async fn accept(&mut self) -> Connection<MaybeTlsStream> {
        loop {
            let socket = self.accept_socket().await;
            match self.permits.clone().try_acquire_owned() {
                Ok(permit) => {
                    self.is_at_capacity = false;
                    return self.wrap_socket(socket, permit);
                }
                Err(_) => self.count_rejected(),
            }
        }
    }

    /// The connections as tonic wants them.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection<MaybeTlsStream>>> {
        stream::unfold(self, |mut listener| async {
            let connection = listener.accept().await;
            Some((Ok(connection), listener))
        })
    }

    async fn accept_socket(&mut self) -> TcpStream {
        let mut backoff = accept_backoff();
        loop {
            match self.listener.accept().await {
                Ok((socket, _)) => return socket,
                // It went away before it was taken; the next one is waiting.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.metrics.count_rejection(Rejection::FileDescriptors);
                    let side = self.side.name();
                    tracing::error!(%error, side, "cannot take a connection; trying again");
                    time::sleep(backoff.next().unwrap_or(ACCEPT_BACKOFF_MAX)).await;
                }
            }
        }
    }

    fn wrap_socket(
        &self,
        socket: TcpStream,
        permit: OwnedSemaphorePermit,
    ) -> Connection<MaybeTlsStream> {
        // Answers are small and must not wait for more.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off the delay of small packets");
        }
        let io = match &self.tls {
            Some(tls) => tls.accept(self.side, socket, self.metrics.clone()),
            None => MaybeTlsStream::Plain(socket),
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
            _open: self.metrics.track_connection(self.side),
            _permit: permit,
        }
    }

    fn count_rejected(&mut self) {
        self.metrics.count_rejection(Rejection::ConnectionsMax);
        if !self.is_at_capacity {
            self.is_at_capacity = true;
            let side = self.side.name();
            tracing::warn!(side, "connections_max is reached; more are closed at once");
        }
    }
}

fn accept_backoff() -> impl Iterator<Item = Duration> {
    iter::successors(Some(ACCEPT_BACKOFF_MIN), |pause| {
        Some((2 * *pause).min(ACCEPT_BACKOFF_MAX))
    })
}

/// A connection with its place, which ends unless it says its first bytes in
/// time, and reads what it is sent.
pub struct Connection<S> {
    io: S,
    /// `None`: it has said enough.
    handshake: Option<HandshakeDeadline>,
    write_deadline: Option<WriteDeadline>,
    _open: GaugeGuard,
    _permit: OwnedSemaphorePermit,
}

struct HandshakeDeadline {
    bytes_left: usize,
    deadline: Pin<Box<Sleep>>,
    /// It was counted.
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
    /// When it will have taken nothing for too long.
    stall_timer: Option<Pin<Box<Sleep>>>,
    metrics: Arc<Metrics>,
}

impl WriteDeadline {
    /// What came of a write, and whether the client has stalled for too long.
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
        let deadline = self
            .stall_timer
            .get_or_insert_with(|| Box::pin(time::sleep(timeout)));
        ready!(deadline.as_mut().poll(cx));
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
        // Under TLS who writes first waits for the handshake, and reads nothing.
        if let (Poll::Pending, Some(opening)) = (&written, &mut self.handshake) {
            opening.poll_deadline(cx)?;
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
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer)?;
        // What is there was said in time, also where nobody looked until now.
        if let (Poll::Pending, Some(opening)) = (read, &mut this.handshake) {
            opening.poll_deadline(cx)?;
        }
        ready!(read);
        if let Some(opening) = &mut this.handshake {
            let read = buffer.filled().len() - before;
            opening.bytes_left = opening.bytes_left.saturating_sub(read);
            if opening.bytes_left == 0 {
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

impl<S: Connected> Connected for Connection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_without_descriptors_is_not_spent_trying() {
        let mut passed = Duration::ZERO;
        let tries = accept_backoff().take_while(|pause| {
            passed += *pause;
            passed < Duration::from_secs(60)
        });
        assert_eq!(tries.count(), 66);
    }
}
