//! Explains why a TLS connection failed, in the words of the person who set it up. The errors
//! of the libraries name the symptom: "h2 protocol error", "corrupt message".

use std::{error::Error, io, iter, sync::Arc, time::Duration};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, InvalidMessage,
    SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{io::AsyncReadExt, net::TcpStream};
use tokio_rustls::TlsConnector;
use tonic::transport::Uri;

use super::{CliError, server_args::TlsArgs, text_format::sanitize};

/// The probe is made after a failure, while a person waits.
const PROBE_DEADLINE: Duration = Duration::from_secs(3);

/// The message for an error in whose causes there is one of TLS.
pub(super) fn find_tls_error(server: &str, error: &(dyn Error + 'static)) -> Option<CliError> {
    let causes = iter::successors(Some(error), |&cause| cause.source());
    let mut tls_errors = causes.filter_map(to_tls_error);
    let server = sanitize(server);
    Some(CliError::failed(match tls_errors.next()? {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            format!("{server}: plain text is spoken on this port: use http://")
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
            "the certificate of {server} is not trusted: unknown certificate authority (--ca sets \
             the CA to trust)"
        ),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            format!("{server} requires a client certificate (--cert and --key)")
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => format!(
            "{server} does not accept the client certificate of --cert: unknown certificate \
             authority"
        ),
        rustls::Error::InvalidCertificate(why) => format!(
            "the certificate of {server} is not trusted: {} (--ca sets the CA to trust)",
            sanitize(&why.to_string())
        ),
        other => format!(
            "no TLS connection to {server}: {}",
            sanitize(&other.to_string())
        ),
    }))
}

fn to_tls_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let direct = cause.downcast_ref::<rustls::Error>();
    // An I/O error is not the source of itself: what it wraps is skipped by `source`.
    let wrapped = || cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref();
    direct.or_else(wrapped)
}

/// The message for a call that failed on its way, if a connection without one tells why.
pub(super) async fn probe_port(server: &str, uri: &Uri, tls: &TlsArgs) -> Option<CliError> {
    let is_plain = uri.scheme_str() == Some("http");
    let probe = tokio::time::timeout(PROBE_DEADLINE, probe_tls(uri, tls));
    let error = match probe.await.ok()?? {
        Ok(()) if is_plain => {
            let server = sanitize(server);
            return Some(CliError::failed(format!(
                "{server}: plain text spoken to a TLS port: use https:// (--ca sets the CA to \
                 trust)"
            )));
        }
        Ok(()) => return None,
        Err(error) => error,
    };
    // A plain text service does not speak TLS: there is nothing to say.
    if is_plain {
        None
    } else {
        find_tls_error(server, &error)
    }
}

/// Makes a TLS connection and sends nothing. A service that rejects the client certificate
/// says so after the handshake; a client that has sent more may not get to read it.
/// `None`: there is no connection to try it on.
async fn probe_tls(uri: &Uri, tls: &TlsArgs) -> Option<io::Result<()>> {
    let is_plain = uri.scheme_str() == Some("http");
    let (host, port) = (uri.host()?, uri.port_u16()?);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate));
    let config = match tls.read_identity() {
        Some((certificates, key)) => config.with_client_auth_cert(certificates, key).ok()?,
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let socket = TcpStream::connect((host, port)).await.ok()?;
    let mut stream = match TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
    {
        Ok(stream) => stream,
        Err(error) => return Some(Err(error)),
    };
    // That a server answers is all that a plain text client needs to know.
    if is_plain {
        return Some(Ok(()));
    }
    Some(stream.read_u8().await.map(|_| ()))
}

/// Accepts every certificate, for a probe that sends nothing.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
