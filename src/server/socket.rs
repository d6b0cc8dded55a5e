//! Listening sockets: bound first, opened when the service is ready.

use std::{
    fmt,
    fs::{self, Permissions},
    io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// An address that cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {address} ({key}): {source}")]
pub struct BindError {
    key: &'static str,
    address: ListenAddress,
    source: io::Error,
}

/// Where a listener accepts connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    /// A Unix socket that only this user may connect to. No other user may use its
    /// directory, and no other process this path: an old socket there is replaced.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Connections that wait for an accept. The kernel also limits them.
const LISTEN_BACKLOG: u32 = 4_096;

/// A bound port that does not listen yet. Connections are refused until it does: a
/// refused client retries, while one that is accepted and gets no response waits.
pub struct BoundSocket {
    key: &'static str,
    address: ListenAddress,
    /// `None`: a Unix socket, which has no file until it listens.
    tcp: Option<TcpSocket>,
}

impl BoundSocket {
    pub fn bind(key: &'static str, address: ListenAddress) -> Result<Self, BindError> {
        let bound = match &address {
            ListenAddress::Tcp(address) => bind_tcp(*address).map(Some),
            ListenAddress::Unix(_) => Ok(None),
        };
        match bound {
            Ok(tcp) => Ok(Self { key, address, tcp }),
            Err(source) => Err(BindError {
                key,
                address,
                source,
            }),
        }
    }

    pub fn listen(self) -> Result<ListeningSocket, BindError> {
        let Self { key, address, tcp } = self;
        let listening = match (&address, tcp) {
            (ListenAddress::Unix(path), _) => listen_unix(path).map(ListeningSocket::Unix),
            (ListenAddress::Tcp(_), Some(socket)) => {
                socket.listen(LISTEN_BACKLOG).map(ListeningSocket::Tcp)
            }
            (ListenAddress::Tcp(_), None) => Err(io::ErrorKind::NotConnected.into()),
        };
        listening.map_err(|source| BindError {
            key,
            address,
            source,
        })
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // After a restart, connections of the previous process may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Whatever the umask is. The directory keeps others out until then.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A socket that accepts connections.
pub enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection.
pub enum AcceptedSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ListeningSocket {
    pub async fn accept(&self) -> io::Result<AcceptedSocket> {
        match self {
            Self::Tcp(listener) => Ok(AcceptedSocket::Tcp(listener.accept().await?.0)),
            Self::Unix(listener) => Ok(AcceptedSocket::Unix(listener.accept().await?.0)),
        }
    }

    /// The address with its port. A Unix socket has none.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
