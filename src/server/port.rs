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
const WAITING_MAX: u32 = 4_096;

/// A port that is ours. Who connects is refused until it is opened: a client
/// that is refused tries again, and one that is let in and hears nothing waits.
pub struct Port {
    key: &'static str,
    address: SocketAddr,
    socket: TcpSocket,
}

impl Port {
    pub fn take(key: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let taken = || {
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
            socket: taken().map_err(refused(key, address))?,
        })
    }

    pub fn open(self) -> Result<TcpListener, BindError> {
        let opened = self.socket.listen(WAITING_MAX);
        opened.map_err(refused(self.key, self.address))
    }
}

fn refused(key: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> BindError {
    move |source| BindError {
        key,
        address,
        source,
    }
}
