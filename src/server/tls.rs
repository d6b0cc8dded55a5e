//! TLS with rustls, for the gRPC and the HTTP listener.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use arc_swap::ArcSwap;
use rustls::{
    AlertDescription, CertificateError, InvalidMessage, RootCertStore, ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use serde::Deserialize;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::telemetry::{ListenerKind, Metrics, Rejection};

/// `[tls]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TlsSettings {
    /// Empty: no TLS.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Empty: clients need no certificate.
    pub client_ca: PathBuf,
}

impl TlsSettings {
    pub fn is_on(&self) -> bool {
        is_set(&self.cert)
    }

    /// `Err`: the missing key, and the key that requires it.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        match (is_set(&self.cert), is_set(&self.key)) {
            (true, false) => Err(("key", "cert")),
            (false, true) => Err(("cert", "key")),
            (false, false) if is_set(&self.client_ca) => Err(("cert", "client_ca")),
            _ => Ok(()),
        }
    }
}

fn is_set(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

/// Certificates that cannot be used. The message never contains a private key.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", file.display())]
    Unreadable { file: PathBuf, source: pem::Error },
    #[error("{} holds no certificate", .0.display())]
    Empty(PathBuf),
    #[error("{} cannot be used: {source}", file.display())]
    Unusable {
        file: PathBuf,
        source: rustls::Error,
    },
    #[error("{} cannot be used: {source}", file.display())]
    Authority {
        file: PathBuf,
        source: VerifierBuilderError,
    },
}

/// The certificates in force.
pub struct Tls {
    settings: TlsSettings,
    configs: ArcSwap<TlsConfigs>,
}

/// Certificates that were read but are not in force yet.
pub struct LoadedCertificates(Arc<TlsConfigs>);

struct TlsConfigs {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Tls {
    /// `None`: TLS is off.
    pub fn new(settings: &TlsSettings) -> Result<Option<Self>, TlsError> {
        if !settings.is_on() {
            return Ok(None);
        }
        Ok(Some(Self {
            configs: ArcSwap::from_pointee(TlsConfigs::load(settings)?),
            settings: settings.clone(),
        }))
    }

    /// Reads the files again. `apply` puts them in force.
    pub fn load_files(&self) -> Result<LoadedCertificates, TlsError> {
        Ok(LoadedCertificates(Arc::new(TlsConfigs::load(
            &self.settings,
        )?)))
    }

    /// Uses these certificates for new connections. Open ones keep theirs.
    pub fn apply(&self, LoadedCertificates(configs): LoadedCertificates) {
        self.configs.store(configs);
    }

    pub fn accept(
        &self,
        kind: ListenerKind,
        socket: TcpStream,
        metrics: Arc<Metrics>,
    ) -> MaybeTlsStream {
        let configs = self.configs.load();
        let config = match kind {
            ListenerKind::Grpc | ListenerKind::GrpcReserve => configs.grpc.clone(),
            ListenerKind::Http => configs.http.clone(),
        };
        let handshake = TlsAcceptor::from(config).accept(socket);
        MaybeTlsStream::Handshake(Box::new(handshake), metrics)
    }
}

impl TlsConfigs {
    fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let config = build_server_config(settings)?;
        Ok(Self {
            grpc: with_alpn(b"h2", &config),
            http: with_alpn(b"http/1.1", &config),
        })
    }
}

fn with_alpn(protocol: &[u8], config: &ServerConfig) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

fn build_server_config(settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
    let TlsSettings {
        cert,
        key,
        client_ca,
    } = settings;
    let unusable = |source| TlsError::Unusable {
        file: cert.clone(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let config = if is_set(client_ca) {
        let mut roots = RootCertStore::empty();
        for authority in read_certificates(client_ca)? {
            roots.add(authority).map_err(|source| TlsError::Unusable {
                file: client_ca.clone(),
                source,
            })?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        builder.with_client_cert_verifier(verifier.build().map_err(|source| {
            TlsError::Authority {
                file: client_ca.clone(),
                source,
            }
        })?)
    } else {
        builder.with_no_client_auth()
    };
    let secret = PrivateKeyDer::from_pem_file(key).map_err(unreadable_error(key))?;
    config
        .with_single_cert(read_certificates(cert)?, secret)
        .map_err(unusable)
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable_error(file))?;
    if certificates.is_empty() {
        return Err(TlsError::Empty(file.to_owned()));
    }
    Ok(certificates)
}

fn unreadable_error(file: &Path) -> impl Fn(pem::Error) -> TlsError {
    move |source| TlsError::Unreadable {
        file: file.to_owned(),
        source,
    }
}

/// A socket with or without TLS, which a Unix socket never has. The first read or write
/// performs the handshake, in the connection's own task, so that no connection waits for
/// another's.
pub enum MaybeTlsStream {
    Plain(TcpStream),
    Unix(UnixStream),
    Handshake(Box<Accept<TcpStream>>, Arc<Metrics>),
    Tls(Box<TlsStream<TcpStream>>),
    Failed,
}

impl MaybeTlsStream {
    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Handshake(handshake, metrics) = self {
            *self = match ready!(Pin::new(handshake).poll(cx)) {
                Ok(stream) => Self::Tls(Box::new(stream)),
                Err(error) => {
                    metrics.count_rejection(classify_failure(&error));
                    tracing::debug!(%error, "a TLS handshake failed");
                    Self::Failed
                }
            };
        }
        Poll::Ready(Ok(()))
    }

    /// Runs `operation` on the stream once the handshake is done.
    fn poll_stream<T>(
        &mut self,
        cx: &mut Context<'_>,
        operation: impl FnOnce(Pin<&mut dyn AsyncStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        ready!(self.poll_handshake(cx))?;
        match self {
            Self::Plain(stream) => operation(Pin::new(stream), cx),
            Self::Unix(stream) => operation(Pin::new(stream), cx),
            Self::Tls(stream) => operation(Pin::new(&mut **stream), cx),
            Self::Handshake(..) | Self::Failed => {
                Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
            }
        }
    }
}

/// Why a handshake failed: what operators get wrong most has reasons of its own.
fn classify_failure(error: &io::Error) -> Rejection {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
    match cause {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            Rejection::TlsPlainText
        }
        Some(
            rustls::Error::AlertReceived(AlertDescription::UnknownCA)
            | rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer),
        ) => Rejection::TlsUnknownCa,
        _ => Rejection::TlsHandshake,
    }
}

trait AsyncStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncStream for S {}

impl AsyncRead for MaybeTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_stream(cx, |stream, cx| stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for MaybeTlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_stream(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_stream(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Handshake(..) = &*self {
            // There is no TLS session to close, and the handshake may never finish.
            *self = Self::Failed;
            return Poll::Ready(Ok(()));
        }
        self.poll_stream(cx, |stream, cx| stream.poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            // It will be a `Tls` stream, and hyper asks before the handshake.
            Self::Handshake(..) => true,
            Self::Failed => false,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_stream(cx, |stream, cx| stream.poll_write_vectored(cx, slices))
    }
}

impl Connected for MaybeTlsStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let socket = match self {
            Self::Plain(stream) => Some(stream),
            Self::Handshake(handshake, _) => handshake.get_ref(),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) | Self::Failed => None,
        };
        socket.map_or(
            TcpConnectInfo {
                local_addr: None,
                remote_addr: None,
            },
            Connected::connect_info,
        )
    }
}
