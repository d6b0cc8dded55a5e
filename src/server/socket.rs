//! Ports: taken at once, opened when there is somebody to answer.

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

/// Connections that wait to be let in; the system has a limit of its own.
const LISTEN_BACKLOG: u32 = 4_096;

/// A port that is ours. Who connects is refused until it is opened: a client
/// that is refused tries again, and one that is let in and hears nothing waits.
pub struct BoundSocket {
    key: &'static str,
    address: SocketAddr,
    socket: TcpSocket,
}

impl BoundSocket {
    pub fn bind(key: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let bind_socket = || {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4(),
                SocketAddr::V6(_) => TcpSocket::new_v6(),
            }?;
            // After a restart connections of the process before may linger.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            Ok(socket)
        };
        Ok(Self {
            key,
            address,
            socket: bind_socket().map_err(bind_error(key, address))?,
        })
    }

    pub fn listen(self) -> Result<TcpListener, BindError> {
        let listening = self.socket.listen(LISTEN_BACKLOG);
        listening.map_err(bind_error(self.key, self.address))
    }
}

fn bind_error(key: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> BindError {
    move |source| BindError {
        key,
        address,
        source,
    }
}
