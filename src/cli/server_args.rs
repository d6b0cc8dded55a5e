//! Chooses the service that a command calls: by flags, environment, contexts, configuration.

use std::{env, fmt, fs, path::PathBuf};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tonic::transport::Endpoint;
use unstuck_client::Options;

use super::{
    CliError, ConfigArgs,
    contexts_file::{Context, ContextsFile},
    local_service::{LocalDirs, is_private_dir},
    to_local_address,
};
use crate::server::{self, TlsSettings};

const SERVER_VARIABLE: &str = "UNSTUCK_SERVER";
/// The layer of the configuration above its file.
const GRPC_VARIABLE: &str = "UNSTUCK__SERVER__GRPC";
const UNIX_PREFIX: &str = "unix:";
const CONTEXT_VARIABLE: &str = "UNSTUCK_CONTEXT";

#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerArgs {
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    token: TokenArgs,
}

/// Where the service is. The variables are read here and not by clap: the order is
/// `--server`, `--context`, `UNSTUCK_SERVER`, `UNSTUCK_CONTEXT`, the current context, the
/// configuration.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AddressArgs {
    /// The address of the service's gRPC port, or `unix:PATH` [env: UNSTUCK_SERVER]
    /// [default: that of the current context, else of unstuck.toml, else the local service
    /// that hooks start, else 127.0.0.1:50551].
    #[arg(long, value_name = "ADDRESS", conflicts_with = "context")]
    server: Option<String>,
    /// The context to use instead of the current one [env: UNSTUCK_CONTEXT]; `unstuck
    /// context` lists them.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// The certificates of a TLS connection.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct TlsArgs {
    /// A PEM file with the CA certificate to trust, instead of the system's.
    #[arg(long, env = "UNSTUCK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A PEM file with a client certificate, for a service that requires one.
    #[arg(long, env = "UNSTUCK_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// A PEM file with the private key of the client certificate.
    #[arg(long, env = "UNSTUCK_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// The API token.
#[derive(Clone, clap::Args)]
struct TokenArgs {
    /// An API token. Prefer the environment variable or a file: other users of
    /// this machine can see command lines.
    #[arg(
        long,
        env = "UNSTUCK_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// A file with the API token.
    #[arg(
        long,
        env = "UNSTUCK_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "token"
    )]
    token_file: Option<PathBuf>,
}

/// Leaves the token out.
impl fmt::Debug for TokenArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenArgs")
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct OperatorArgs {
    /// The operator's name for the audit log [default: that of the context, else $USER]. A
    /// service with tokens records the token's name instead.
    #[arg(long, env = "UNSTUCK_OPERATOR", value_name = "NAME")]
    pub operator: Option<String>,
}

/// A service and how to reach it.
pub(super) struct Target {
    pub server: String,
    pub tls: TlsArgs,
    pub token: Option<String>,
    /// The operator's name of the context.
    pub operator: Option<String>,
}

impl ServerArgs {
    pub fn resolve(&self) -> Result<Target, CliError> {
        let mut target = self.address.resolve(&ConfigArgs { config: None })?;
        if let Some(token) = self.token.read()? {
            target.token = Some(token);
        }
        Ok(target)
    }
}

impl AddressArgs {
    /// The token and the certificates of a context are sent to its server only.
    pub fn resolve(&self, config: &ConfigArgs) -> Result<Target, CliError> {
        let named = match (&self.server, &self.context) {
            (None, None) => variable(SERVER_VARIABLE).map_or_else(
                || variable(CONTEXT_VARIABLE).map(ServerChoice::Context),
                |server| Some(ServerChoice::Server(server)),
            ),
            (Some(server), _) => Some(ServerChoice::Server(server.clone())),
            (None, Some(context)) => Some(ServerChoice::Context(context.clone())),
        };
        match named {
            Some(ServerChoice::Server(server)) => Ok(self.at(server)),
            Some(ServerChoice::Context(name)) => self.in_context(ContextsFile::load()?.get(&name)?),
            // A configuration that is named beats a context that is not.
            None if config.config.is_some() => Ok(self.at(configured_server(config)?)),
            None => match ContextsFile::load()?.current()? {
                Some(context) => self.in_context(context),
                None => Ok(self.at(configured_server(config)?)),
            },
        }
    }

    fn at(&self, server: String) -> Target {
        Target {
            server,
            tls: self.tls.clone(),
            token: None,
            operator: None,
        }
    }

    fn in_context(&self, context: &Context) -> Result<Target, CliError> {
        let stored = TlsArgs::from(context);
        let (cert, key) = match &self.tls.cert {
            Some(_) => (self.tls.cert.clone(), self.tls.key.clone()),
            None => (stored.cert, stored.key),
        };
        let token = TokenArgs {
            token: None,
            token_file: context.token_file.clone(),
        };
        Ok(Target {
            server: context.server.clone(),
            tls: TlsArgs {
                ca: self.tls.ca.clone().or(stored.ca),
                cert,
                key,
            },
            token: token.read()?,
            operator: context.operator.clone(),
        })
    }
}

/// The server that a flag or a variable names.
enum ServerChoice {
    Server(String),
    Context(String),
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The address at which a service with this configuration is reached from its machine.
fn configured_server(config: &ConfigArgs) -> Result<String, CliError> {
    let layers = config.load_layers()?;
    let is_configured = layers.file().is_some() || variable(GRPC_VARIABLE).is_some();
    if let Some(socket) = local_socket().filter(|_| !is_configured) {
        return Ok(format!("{UNIX_PREFIX}{}", socket.display()));
    }
    let server::Settings { grpc, .. } = layers.section("server").map_err(CliError::usage)?;
    if grpc.port() == 0 {
        let why = "server.grpc has port 0, so the port is not known: pass --server";
        return Err(CliError::usage(why));
    }
    let address = to_local_address(grpc).to_string();
    let tls: TlsSettings = layers.section("tls").map_err(CliError::usage)?;
    Ok(if tls.is_on() {
        format!("https://{address}")
    } else {
        address
    })
}

/// The socket of the local service, while it runs. The owner of its directory would get the
/// caller's commands.
fn local_socket() -> Option<PathBuf> {
    let dirs = LocalDirs::find(None)?.of_running_service();
    let socket = dirs.grpc_socket();
    let is_usable = is_private_dir(&dirs.sockets).unwrap_or(false) && socket.exists();
    is_usable.then_some(socket)
}

impl From<&Context> for TlsArgs {
    fn from(context: &Context) -> Self {
        Self {
            ca: context.ca.clone(),
            cert: context.cert.clone(),
            key: context.key.clone(),
        }
    }
}

impl TlsArgs {
    fn is_set(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }
}

impl TlsArgs {
    /// The client certificate with its chain, and its key. `None`: there is none, or it
    /// cannot be read.
    pub fn read_identity(&self) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let certificates = CertificateDer::pem_file_iter(self.cert.as_ref()?).ok()?;
        let key = PrivateKeyDer::from_pem_file(self.key.as_ref()?).ok()?;
        Some((certificates.collect::<Result<_, _>>().ok()?, key))
    }
}

impl TokenArgs {
    fn read(&self) -> Result<Option<String>, CliError> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(Some(token.clone())),
            (None, Some(file)) => fs::read_to_string(file)
                .map(Some)
                .map_err(|error| CliError::usage(format!("cannot read {file:?}: {error}"))),
            (None, None) => Ok(None),
        }
    }
}

fn read(file: &PathBuf) -> Result<Vec<u8>, CliError> {
    fs::read(file).map_err(|error| CliError::usage(format!("cannot read {file:?}: {error}")))
}

/// The endpoint for an address with or without a scheme. `--ca` and `--cert` imply
/// `https://`.
pub(super) fn build_endpoint(server: &str, tls: &TlsArgs) -> Result<Endpoint, CliError> {
    let has_plain_scheme = server.starts_with("http://") || server.starts_with(UNIX_PREFIX);
    if tls.is_set() && has_plain_scheme {
        let why = format!("{server:?}: --ca and --cert need https://");
        return Err(CliError::usage(why));
    }
    let identity = tls.cert.as_ref().zip(tls.key.as_ref());
    let options = Options {
        ca_pem: tls.ca.as_ref().map(read).transpose()?,
        identity_pem: identity
            .map(|(cert, key)| Ok::<_, CliError>((read(cert)?, read(key)?)))
            .transpose()?,
        ..Options::new(server)
    };
    options
        .endpoint()
        .map_err(|error| CliError::usage(error.to_string()))
}
