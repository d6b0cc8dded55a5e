//! How to reach a service: its address, certificates and credentials.

use std::{fmt, time::Duration};

use thiserror::Error;
use tonic::{
    Request, Status,
    metadata::{AsciiMetadataValue, MetadataMap},
    service::Interceptor,
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity},
};

const TOKEN_KEY: &str = "authorization";
/// The operator's name, for a service without tokens.
const OPERATOR_KEY: &str = "unstuck-operator";
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
const UNIX_PREFIX: &str = "unix:";

/// Where a service is, and what it needs to know of its caller.
#[derive(Clone, Default)]
pub struct Options {
    /// `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. Without a scheme
    /// it is `https://` if there are certificates, else `http://`.
    pub server: String,
    /// The CA certificate to trust, in PEM. `None`: those of the system.
    pub ca_pem: Option<Vec<u8>>,
    /// A client certificate with its chain, and its key, in PEM.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// An API token.
    pub token: Option<String>,
    /// The operator's name, for a service without tokens.
    pub operator: Option<String>,
}

/// Options with which no connection can be made.
#[derive(Debug, Error)]
pub enum InvalidOptions {
    #[error("{server:?}: {why}")]
    Server { server: String, why: String },
    #[error("invalid token format")]
    Token,
    #[error("the operator's name must be printable ASCII")]
    Operator,
}

impl Options {
    /// A service without TLS and tokens.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            ..Self::default()
        }
    }

    /// The endpoint. A connection is given up after 3 s.
    pub fn endpoint(&self) -> Result<Endpoint, InvalidOptions> {
        let invalid = |why: &dyn fmt::Display| InvalidOptions::Server {
            server: self.server.clone(),
            why: why.to_string(),
        };
        let address = self.address();
        let is_secure = address.starts_with("https://");
        if self.has_certificates() && !is_secure {
            return Err(invalid(&"certificates need https://"));
        }
        let mut endpoint = Endpoint::from_shared(address).map_err(|error| invalid(&error))?;
        if is_secure {
            // Fails if the process has a provider already, which is then used.
            let _ = rustls::crypto::ring::default_provider().install_default();
            endpoint = endpoint
                .tls_config(self.tls_config())
                .map_err(|error| invalid(&error))?;
        }
        Ok(endpoint.connect_timeout(CONNECT_DEADLINE))
    }

    /// The metadata of each call.
    pub fn credentials(&self) -> Result<Credentials, InvalidOptions> {
        let token = self.token.as_deref().map(bearer).transpose()?;
        let operator = self
            .operator
            .as_deref()
            .map(|name| AsciiMetadataValue::try_from(name).map_err(|_| InvalidOptions::Operator));
        Ok(Credentials {
            token,
            operator: operator.transpose()?,
        })
    }

    fn address(&self) -> String {
        let server = &self.server;
        match server {
            _ if server.contains("://") || server.starts_with(UNIX_PREFIX) => server.clone(),
            _ if self.has_certificates() => format!("https://{server}"),
            _ => format!("http://{server}"),
        }
    }

    fn has_certificates(&self) -> bool {
        self.ca_pem.is_some() || self.identity_pem.is_some()
    }

    fn tls_config(&self) -> ClientTlsConfig {
        let config = match &self.ca_pem {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match &self.identity_pem {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        }
    }
}

/// Leaves the token and the private key out.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("server", &self.server)
            .field("operator", &self.operator)
            .finish_non_exhaustive()
    }
}

fn bearer(token: &str) -> Result<AsciiMetadataValue, InvalidOptions> {
    let mut header = AsciiMetadataValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| InvalidOptions::Token)?;
    // Keeps it out of debug output and of HPACK's table.
    header.set_sensitive(true);
    Ok(header)
}

/// Adds the caller's token and name to a call.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    token: Option<AsciiMetadataValue>,
    operator: Option<AsciiMetadataValue>,
}

impl Credentials {
    pub fn add_to(&self, metadata: &mut MetadataMap) {
        for (key, value) in [(TOKEN_KEY, &self.token), (OPERATOR_KEY, &self.operator)] {
            if let Some(value) = value {
                metadata.insert(key, value.clone());
            }
        }
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.add_to(request.metadata_mut());
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(options: &Options) -> String {
        options
            .endpoint()
            .map_or_else(|error| error.to_string(), |it| it.uri().to_string())
    }

    #[test]
    fn an_address_without_a_scheme_is_secure_if_there_are_certificates() {
        assert_eq!(uri(&Options::new("localhost:1")), "http://localhost:1/");
        assert_eq!(
            uri(&Options::new("https://localhost:1")),
            "https://localhost:1/"
        );
        let trusting = Options {
            ca_pem: Some(Vec::new()),
            ..Options::new("localhost:1")
        };
        assert_eq!(uri(&trusting), "https://localhost:1/");
        let contradictory = Options {
            server: "http://localhost:1".into(),
            ..trusting
        };
        assert!(uri(&contradictory).ends_with("certificates need https://"));
    }

    #[test]
    fn credentials_are_metadata_and_a_token_is_not_printed() {
        let options = Options {
            token: Some("secret-token\n".into()),
            operator: Some("ann".into()),
            ..Options::new("localhost:1")
        };
        let credentials = options.credentials().unwrap();
        let mut metadata = MetadataMap::new();
        credentials.add_to(&mut metadata);
        assert_eq!(metadata.get(TOKEN_KEY).unwrap(), "Bearer secret-token");
        assert_eq!(metadata.get(OPERATOR_KEY).unwrap(), "ann");
        assert!(!format!("{options:?} {credentials:?} {metadata:?}").contains("secret"));
        let broken = Options {
            token: Some("a\nb".into()),
            ..options
        };
        assert_eq!(
            broken.credentials().unwrap_err().to_string(),
            "invalid token format"
        );
    }
}
