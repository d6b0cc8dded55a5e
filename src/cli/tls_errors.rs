//! What is wrong with a TLS connection, in the words of the person who set it up. The errors
//! of the libraries name the symptom: "h2 protocol error", "corrupt message".

use std::{error::Error, io, iter, sync::Arc, time::Duration};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore,
    crypto::ring::default_provider, pki_types::ServerName,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Uri;

use super::{CliError, text_format::sanitize};

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

/// The message for a call that failed on its way over `http://`, if the port speaks TLS.
pub(super) async fn find_tls_port(server: &str, uri: &Uri) -> Option<CliError> {
    let is_plain = uri.scheme_str() == Some("http");
    if !is_plain
        || !tokio::time::timeout(PROBE_DEADLINE, speaks_tls(uri))
            .await
            .ok()??
    {
        return None;
    }
    let server = sanitize(server);
    Some(CliError::failed(format!(
        "{server}: plain text spoken to a TLS port: use https:// (--ca sets the CA to trust)"
    )))
}

/// Whether a TLS server answers. No certificate is trusted and nothing is sent: that the
/// server presents one is enough.
async fn speaks_tls(uri: &Uri) -> Option<bool> {
    let (host, port) = (uri.host()?, uri.port_u16().unwrap_or(80));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let socket = TcpStream::connect((host, port)).await.ok()?;
    let connector = TlsConnector::from(Arc::new(config));
    let Err(error) = connector.connect(name, socket).await else {
        return Some(true);
    };
    let is_tls = |error: &rustls::Error| !matches!(error, rustls::Error::InvalidMessage(_));
    Some(to_tls_error(&error).is_some_and(is_tls))
}
