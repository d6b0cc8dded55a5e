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

use super::tls::{Tls, Wire};
use crate::telemetry::{Metrics, Open, Rejection, Side};

/// A client of HTTP/2 begins with so many bytes (RFC 9113, 3.4); the shortest
/// request of HTTP/1.1 is longer.
const FIRST_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Pauses after an accept that failed for want of descriptors or memory. They
/// grow, so that a minute without descriptors costs 66 tries and not a core.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a connection may take,
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// to say its first bytes,
    pub first_bytes: Duration,
    /// and to read anything of what it is sent. `None`: the protocol sees to it
    /// by itself, as HTTP/2 does with its pings.
    pub reading: Option<Duration>,
}

/// A listener that lets in no more than it has places for.
pub struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Patience,
    side: Side,
    /// `None`: in the clear.
    tls: Option<Arc<Tls>>,
    metrics: Arc<Metrics>,
    /// The last one was turned away; said once.
    is_full: bool,
}

impl Door {
    pub fn new(
        listener: TcpListener,
        side: Side,
        tls: Option<Arc<Tls>>,
        places: usize,
        patience: Patience,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(places)),
            patience,
            side,
            tls,
            metrics,
            is_full: false,
        }
    }

    /// The next connection that there is a place for. One for which there is
    /// none is closed at once: in the queue it would wait without being told.
    pub async fn accept(&mut self) -> Connection<Wire> {
        loop {
            let socket = self.next().await;
            match self.places.clone().try_acquire_owned() {
                Ok(place) => {
                    self.is_full = false;
                    return self.connection(socket, place);
                }
                Err(_) => self.turn_away(),
            }
        }
    }

    /// The connections as tonic wants them.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection<Wire>>> {
        stream::unfold(self, |mut door| async {
            let connection = door.accept().await;
            Some((Ok(connection), door))
        })
    }

    async fn next(&mut self) -> TcpStream {
        let mut pauses = pauses();
        loop {
            match self.listener.accept().await {
                Ok((socket, _)) => return socket,
                // It went away before it was taken; the next one is waiting.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.metrics.rejected(Rejection::FileDescriptors);
                    let side = self.side.name();
                    tracing::error!(%error, side, "cannot take a connection; trying again");
                    time::sleep(pauses.next().unwrap_or(PAUSE_MAX)).await;
                }
            }
        }
    }

    fn connection(&self, socket: TcpStream, place: OwnedSemaphorePermit) -> Connection<Wire> {
        // Answers are small and must not wait for more.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off the delay of small packets");
        }
        let wire = match &self.tls {
            Some(tls) => tls.accept(self.side, socket, self.metrics.clone()),
            None => Wire::Plain(socket),
        };
        Connection {
            io: wire,
            opening: Some(Opening {
                bytes_left: FIRST_BYTES,
                deadline: Box::pin(time::sleep(self.patience.first_bytes)),
                is_over: false,
                metrics: self.metrics.clone(),
            }),
            reading: self.patience.reading.map(|patience| Reading {
                patience,
                stalled: None,
                metrics: self.metrics.clone(),
            }),
            _open: self.metrics.connection(self.side),
            _place: place,
        }
    }

    fn turn_away(&mut self) {
        self.metrics.rejected(Rejection::ConnectionsMax);
        if !self.is_full {
            self.is_full = true;
            let side = self.side.name();
            tracing::warn!(side, "connections_max is reached; more are closed at once");
        }
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    iter::successors(Some(PAUSE_MIN), |pause| Some((2 * *pause).min(PAUSE_MAX)))
}

/// A connection with its place, which ends unless it says its first bytes in
/// time, and reads what it is sent.
pub struct Connection<S> {
    io: S,
    /// `None`: it has said enough.
    opening: Option<Opening>,
    reading: Option<Reading>,
    _open: Open,
    _place: OwnedSemaphorePermit,
}

struct Opening {
    bytes_left: usize,
    deadline: Pin<Box<Sleep>>,
    /// It was counted.
    is_over: bool,
    metrics: Arc<Metrics>,
}

impl Opening {
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.deadline.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        if !self.is_over {
            self.is_over = true;
            self.metrics.rejected(Rejection::HandshakeSecsMax);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

struct Reading {
    patience: Duration,
    /// When it will have taken nothing for too long.
    stalled: Option<Pin<Box<Sleep>>>,
    metrics: Arc<Metrics>,
}

impl Reading {
    /// What came of a write, and whether the client has stalled for too long.
    fn poll_written<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let deadline = self
            .stalled
            .get_or_insert_with(|| Box::pin(time::sleep(patience)));
        ready!(deadline.as_mut().poll(cx));
        self.metrics.rejected(Rejection::SlowReaderSecsMax);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S> Connection<S> {
    fn poll_written<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // Under TLS who writes first waits for the handshake, and reads nothing.
        if let (Poll::Pending, Some(opening)) = (&written, &mut self.opening) {
            opening.poll_deadline(cx)?;
        }
        match &mut self.reading {
            Some(reading) => reading.poll_written(cx, written),
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
        if let (Poll::Pending, Some(opening)) = (read, &mut this.opening) {
            opening.poll_deadline(cx)?;
        }
        ready!(read);
        if let Some(opening) = &mut this.opening {
            let read = buffer.filled().len() - before;
            opening.bytes_left = opening.bytes_left.saturating_sub(read);
            if opening.bytes_left == 0 {
                this.opening = None;
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
        self.poll_written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.poll_written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.poll_written(cx, shut)
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
        self.poll_written(cx, written)
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
        let tries = pauses().take_while(|pause| {
            passed += *pause;
            passed < Duration::from_secs(60)
        });
        assert_eq!(tries.count(), 66);
    }
}
