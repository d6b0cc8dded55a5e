//! Listening sockets: bound first, opened when the service is ready.

use std::{io, net::SocketAddr};

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};

/// An address that cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {address} ({key}): {source}")]
pub struct BindError {
    key: &'static str,
    address: SocketAddr,
    source: io::Error,
}

/// Connections that wait for an accept. The kernel also limits them.
const LISTEN_BACKLOG: u32 = 4_096;

/// A bound port that does not listen yet. Connections are refused until it does: a
/// refused client retries, while one that is accepted and gets no response waits.
pub struct BoundSocket {
    key: &'static str,
    address: SocketAddr,
    socket: TcpSocket,
}

impl BoundSocket {
    pub fn bind(key: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        Ok(Self {
            key,
            address,
            socket: bind_socket(address).map_err(bind_error(key, address))?,
        })
    }

    pub fn listen(self) -> Result<TcpListener, BindError> {
        self.socket
            .listen(LISTEN_BACKLOG)
            .map_err(bind_error(self.key, self.address))
    }
}

fn bind_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // After a restart, connections of the previous process may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn bind_error(key: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> BindError {
    move |source| BindError {
        key,
        address,
        source,
    }
}
