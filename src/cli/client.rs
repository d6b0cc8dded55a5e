//! The running service, as operators' commands call it. This is the one place
//! where a channel is made, and where a status becomes a message and an exit
//! code.

use std::{env, error::Error, fmt, fs, io, iter, path::PathBuf, time::Duration};

use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::AsciiMetadataValue,
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{CliError, text_format::sanitize};
use crate::{
    notify::install_crypto_provider,
    pb::{self, session_service_client::SessionServiceClient},
};

/// Long enough for a busy machine and a disk that syncs; a person waits no
/// longer without a word.
const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// A thousand verdicts with all their text.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
const TOKEN_KEY: &str = "authorization";
/// How a service that asks for no token is told who acts.
const OPERATOR_KEY: &str = "unstuck-operator";

#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The address of the service's gRPC port.
    #[arg(
        long,
        env = "UNSTUCK_SERVER",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50551"
    )]
    server: String,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    token: TokenArgs,
}

/// How the service is known, and how we are known to it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct TlsArgs {
    /// A PEM file with the authority of the service's certificate, instead of
    /// those that this machine trusts.
    #[arg(long, env = "UNSTUCK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A PEM file with our own certificate, for a service that asks for one.
    #[arg(long, env = "UNSTUCK_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// A PEM file with its private key.
    #[arg(long, env = "UNSTUCK_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl TlsArgs {
    fn is_set(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }

    fn client_config(&self) -> Result<ClientTlsConfig, CliError> {
        let read = |file: &PathBuf| {
            fs::read(file)
                .map_err(|error| CliError::usage(format!("cannot read {file:?}: {error}")))
        };
        let tls = ClientTlsConfig::new();
        let tls = match &self.ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
            None => tls.with_native_roots(),
        };
        Ok(match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => tls.identity(Identity::from_pem(read(cert)?, read(key)?)),
            _ => tls,
        })
    }
}

/// What shows the service who calls.
#[derive(Clone, clap::Args)]
struct TokenArgs {
    /// A token of the service's, better in the variable or a file: everybody on
    /// this machine sees what others type.
    #[arg(
        long,
        env = "UNSTUCK_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// A file that holds the token.
    #[arg(
        long,
        env = "UNSTUCK_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "token"
    )]
    token_file: Option<PathBuf>,
}

/// Never the token.
impl fmt::Debug for TokenArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenArgs")
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

impl TokenArgs {
    fn authorization_header(&self) -> Result<Option<AsciiMetadataValue>, CliError> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => fs::read_to_string(file)
                .map_err(|error| CliError::usage(format!("cannot read {file:?}: {error}")))?,
            (None, None) => return Ok(None),
        };
        let header = AsciiMetadataValue::try_from(format!("Bearer {}", token.trim()));
        let mut header = header
            .map_err(|_| CliError::usage("the token is not one: it has characters of no token"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct OperatorArgs {
    /// Who acts, for the audit log; else the user's name on this machine. A
    /// service that asks for tokens goes by the token's name instead.
    #[arg(long, env = "UNSTUCK_OPERATOR", value_name = "NAME")]
    operator: Option<String>,
}

/// A connection to the service.
#[derive(Clone)]
pub(super) struct Client {
    service: SessionServiceClient<Channel>,
    server: String,
    token: Option<AsciiMetadataValue>,
    operator: Option<AsciiMetadataValue>,
}

/// Where to connect to: an address with or without a scheme. Who says how the
/// service is to be known means TLS.
pub(super) fn build_endpoint(
    server: &str,
    tls: &TlsArgs,
    deadline: Duration,
) -> Result<Endpoint, CliError> {
    let address = match server.split_once("://") {
        Some(_) => server.to_owned(),
        None if tls.is_set() => format!("https://{server}"),
        None => format!("http://{server}"),
    };
    let usage_error = |error: &dyn fmt::Display| CliError::usage(format!("{server:?}: {error}"));
    let secure = address.starts_with("https://");
    if tls.is_set() && !secure {
        return Err(usage_error(&"--ca and --cert are for https://"));
    }
    let mut endpoint = Endpoint::from_shared(address).map_err(|error| usage_error(&error))?;
    if secure {
        install_crypto_provider();
        let tls = tls.client_config()?;
        endpoint = endpoint
            .tls_config(tls)
            .map_err(|error| usage_error(&error))?;
    }
    // The deadline is for the answer, or for a stream's beginning.
    Ok(endpoint
        .connect_timeout(CONNECT_DEADLINE.min(deadline))
        .timeout(deadline))
}

/// Runs a command that asks the service.
pub(super) fn connect_and_run<T>(
    args: &ServerArgs,
    command: impl AsyncFnOnce(Client) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::failed)?;
    runtime.block_on(async { command(Client::connect(args).await?).await })
}

impl Client {
    async fn connect(args: &ServerArgs) -> Result<Self, CliError> {
        let server = args.server.clone();
        let channel = build_endpoint(&server, &args.tls, DEADLINE)?
            .connect()
            .await;
        let channel = channel.map_err(|error| connect_error(&server, &error))?;
        Ok(Self {
            service: SessionServiceClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            server,
            token: args.token.authorization_header()?,
            operator: None,
        })
    }

    /// The same, in the name of an operator.
    pub fn with_operator(self, args: &OperatorArgs) -> Result<Self, CliError> {
        let to_metadata = |name: &String| AsciiMetadataValue::try_from(name).ok();
        let operator = match &args.operator {
            Some(name) => Some(to_metadata(name).ok_or_else(|| {
                CliError::usage("--operator: a name in printable ASCII, for the audit log")
            })?),
            None => env::var("USER").ok().as_ref().and_then(to_metadata),
        };
        Ok(Self { operator, ..self })
    }

    /// Asks the service one thing.
    pub async fn call<Q, A>(
        &self,
        message: Q,
        rpc: impl AsyncFnOnce(SessionServiceClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, CliError> {
        let result = rpc(self.service.clone(), self.build_request(message)).await;
        let response = result.map_err(|status| self.error_for_status(&status))?;
        Ok(response.into_inner())
    }

    /// Verdicts as they happen. The status is the caller's to judge: a watch
    /// that breaks off begins anew.
    pub async fn watch_verdicts(
        &self,
        request: pb::WatchVerdictsRequest,
    ) -> Result<Streaming<pb::WatchVerdictsResponse>, Status> {
        let mut service = self.service.clone();
        let response = service.watch_verdicts(self.build_request(request)).await?;
        Ok(response.into_inner())
    }

    /// A page of sessions.
    pub async fn list_sessions(
        &self,
        request: pb::ListSessionsRequest,
    ) -> Result<pb::ListSessionsResponse, CliError> {
        self.call(request, async |mut service, request| {
            service.list_sessions(request).await
        })
        .await
    }

    /// Where it is, as it was given.
    pub fn display_server(&self) -> String {
        sanitize(&self.server)
    }

    fn build_request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        for (key, value) in [(TOKEN_KEY, &self.token), (OPERATOR_KEY, &self.operator)] {
            if let Some(value) = value {
                metadata.insert(key, value.clone());
            }
        }
        request
    }

    /// What a status means to the person who typed the command.
    pub fn error_for_status(&self, status: &Status) -> CliError {
        let server = self.display_server();
        let message = sanitize(status.message());
        match status.code() {
            Code::NotFound => CliError::not_found(message),
            Code::InvalidArgument => CliError::usage(message),
            // With a source it is the transport that failed, else the service
            // says why it cannot do that now.
            Code::Unavailable if status.source().is_some() => {
                CliError::failed(format!("{server} does not answer: {message}"))
            }
            Code::Unavailable => CliError::failed(format!("{server} refused: {message}")),
            Code::DeadlineExceeded | Code::Cancelled => CliError::failed(format!(
                "{server} has not answered within {} s",
                DEADLINE.as_secs()
            )),
            Code::Unauthenticated => CliError::failed(format!(
                "{server} refused: {message} (UNSTUCK_TOKEN or --token-file gives it one)"
            )),
            Code::Unimplemented => CliError::failed(format!("{server} cannot do that: {message}")),
            code => CliError::failed(format!("{server} refused: {message} ({code:?})")),
        }
    }
}

fn connect_error(server: &str, error: &transport::Error) -> CliError {
    let server = sanitize(server);
    if let Some(why) = find_tls_error(error) {
        let why = sanitize(&why);
        return CliError::failed(format!(
            "{server} cannot be trusted: {why} (--ca says whom to trust)"
        ));
    }
    CliError::failed(format!(
        "nobody answers at {server}; is the service running? `unstuck serve` starts it, --server \
         or UNSTUCK_SERVER says where it is",
    ))
}

/// What TLS has against the connection, if that is why there is none.
fn find_tls_error(error: &transport::Error) -> Option<String> {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    let io = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    let mut inner = io.filter_map(|error| error.get_ref());
    let tls = inner.find_map(|cause| cause.downcast_ref::<rustls::Error>());
    tls.map(ToString::to_string)
}
