//! The client of a running service. Only this file creates a channel and turns a
//! gRPC status into a message and an exit code.

use std::{env, error::Error, fmt, fs, io, iter, ops::ControlFlow, path::PathBuf, time::Duration};

use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::AsciiMetadataValue,
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{CliError, block_on, text_format::sanitize};
use crate::{
    notify::install_crypto_provider,
    pb::{self, session_service_client::SessionServiceClient},
};

/// Long enough for a busy machine and an fsync, and no longer than a person waits
/// without any output.
const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// A thousand verdicts with all their text.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
const TOKEN_KEY: &str = "authorization";
/// Metadata key of the operator's name, for a service without tokens.
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

impl TlsArgs {
    fn is_set(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }

    fn client_config(&self) -> Result<ClientTlsConfig, CliError> {
        let config = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        Ok(match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => config.identity(Identity::from_pem(read(cert)?, read(key)?)),
            _ => config,
        })
    }
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

impl TokenArgs {
    fn authorization_header(&self) -> Result<Option<AsciiMetadataValue>, CliError> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => fs::read_to_string(file)
                .map_err(|error| CliError::usage(format!("cannot read {file:?}: {error}")))?,
            (None, None) => return Ok(None),
        };
        let mut header = AsciiMetadataValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| CliError::usage("invalid token format"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct OperatorArgs {
    /// The operator's name for the audit log [default: $USER]. A service with
    /// tokens records the token's name instead.
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

/// The endpoint for an address with or without a scheme. `--ca` and `--cert` imply
/// `https://`.
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
        return Err(usage_error(&"--ca and --cert need https://"));
    }
    let mut endpoint = Endpoint::from_shared(address).map_err(|error| usage_error(&error))?;
    if secure {
        install_crypto_provider();
        endpoint = endpoint
            .tls_config(tls.client_config()?)
            .map_err(|error| usage_error(&error))?;
    }
    // The deadline applies to a unary response, or to the start of a stream.
    Ok(endpoint
        .connect_timeout(CONNECT_DEADLINE.min(deadline))
        .timeout(deadline))
}

fn read(file: &PathBuf) -> Result<Vec<u8>, CliError> {
    fs::read(file).map_err(|error| CliError::usage(format!("cannot read {file:?}: {error}")))
}

/// Connects to the service and runs `command`.
pub(super) fn connect_and_run<T>(
    args: &ServerArgs,
    command: impl AsyncFnOnce(Client) -> Result<T, CliError>,
) -> Result<T, CliError> {
    block_on(async { command(Client::connect(args).await?).await })
}

impl Client {
    async fn connect(args: &ServerArgs) -> Result<Self, CliError> {
        let server = args.server.clone();
        let channel = build_endpoint(&server, &args.tls, DEADLINE)?
            .connect()
            .await
            .map_err(|error| connect_error(&server, &error))?;
        Ok(Self {
            service: SessionServiceClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            server,
            token: args.token.authorization_header()?,
            operator: None,
        })
    }

    /// The same client, which names the operator in every call.
    pub fn with_operator(self, args: &OperatorArgs) -> Result<Self, CliError> {
        let to_metadata = |name: &String| AsciiMetadataValue::try_from(name).ok();
        let operator =
            match &args.operator {
                Some(name) => Some(to_metadata(name).ok_or_else(|| {
                    CliError::usage("--operator: the name must be printable ASCII")
                })?),
                None => env::var("USER").ok().as_ref().and_then(to_metadata),
            };
        Ok(Self { operator, ..self })
    }

    /// Makes a unary call.
    pub async fn call<Q, A>(
        &self,
        message: Q,
        rpc: impl AsyncFnOnce(SessionServiceClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, CliError> {
        let result = rpc(self.service.clone(), self.build_request(message)).await;
        let response = result.map_err(|status| self.error_for_status(&status))?;
        Ok(response.into_inner())
    }

    /// Opens a stream of live verdicts. Returns the status itself, because the
    /// caller reconnects after some of them.
    pub async fn watch_verdicts(
        &self,
        request: pb::WatchVerdictsRequest,
    ) -> Result<Streaming<pb::WatchVerdictsResponse>, Status> {
        let mut service = self.service.clone();
        let response = service.watch_verdicts(self.build_request(request)).await?;
        Ok(response.into_inner())
    }

    /// Passes the pages of the sessions to `handle_page` until it breaks, ordered by id.
    pub async fn for_each_session_page(
        &self,
        request: pb::ListSessionsRequest,
        handle_page: impl FnMut(Vec<pb::Session>) -> Result<ControlFlow<()>, CliError>,
    ) -> Result<(), CliError> {
        let fetch_page = async |page_token| {
            let request = pb::ListSessionsRequest {
                page_token,
                ..request.clone()
            };
            let page = self
                .call(request, async |mut service, request| {
                    service.list_sessions(request).await
                })
                .await?;
            Ok((page.sessions, page.next_page_token))
        };
        for_each_page(fetch_page, handle_page).await
    }

    /// Passes the pages of the verdicts to `handle_page` until it breaks.
    pub async fn for_each_verdict_page(
        &self,
        request: pb::ListVerdictsRequest,
        handle_page: impl FnMut(Vec<pb::Verdict>) -> Result<ControlFlow<()>, CliError>,
    ) -> Result<(), CliError> {
        let fetch_page = async |page_token| {
            let request = pb::ListVerdictsRequest {
                page_token,
                ..request.clone()
            };
            let page = self
                .call(request, async |mut service, request| {
                    service.list_verdicts(request).await
                })
                .await?;
            Ok((page.verdicts, page.next_page_token))
        };
        for_each_page(fetch_page, handle_page).await
    }

    /// The server's address, as given by the user.
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

    /// The error for a status.
    pub fn error_for_status(&self, status: &Status) -> CliError {
        let server = self.display_server();
        let message = sanitize(status.message());
        match status.code() {
            Code::NotFound => CliError::not_found(message),
            Code::InvalidArgument => CliError::usage(message),
            // A status with a source comes from the transport, one without from
            // the service.
            Code::Unavailable if status.source().is_some() => {
                CliError::failed(format!("no response from {server}: {message}"))
            }
            Code::Unavailable => CliError::failed(format!("{server} refused: {message}")),
            Code::DeadlineExceeded | Code::Cancelled => CliError::failed(format!(
                "no response from {server} within {} s",
                DEADLINE.as_secs()
            )),
            Code::Unauthenticated => CliError::failed(format!(
                "{server} refused: {message} (set UNSTUCK_TOKEN or --token-file)"
            )),
            Code::Unimplemented => {
                CliError::failed(format!("{server} does not support this: {message}"))
            }
            code => CliError::failed(format!("{server} refused: {message} ({code:?})")),
        }
    }
}

/// Fetches pages until `handle_page` breaks, or the page token is empty, which is the last
/// page's.
async fn for_each_page<P>(
    fetch_page: impl AsyncFn(String) -> Result<(P, String), CliError>,
    mut handle_page: impl FnMut(P) -> Result<ControlFlow<()>, CliError>,
) -> Result<(), CliError> {
    let mut page_token = String::new();
    loop {
        let (page, next_page_token) = fetch_page(page_token).await?;
        if handle_page(page)?.is_break() || next_page_token.is_empty() {
            return Ok(());
        }
        page_token = next_page_token;
    }
}

fn connect_error(server: &str, error: &transport::Error) -> CliError {
    let server = sanitize(server);
    if let Some(why) = find_tls_error(error) {
        let why = sanitize(&why);
        return CliError::failed(format!(
            "the certificate of {server} is not trusted: {why} (--ca sets the CA to trust)"
        ));
    }
    CliError::failed(format!(
        "cannot connect to {server}; is the service running? Start it with `unstuck serve`, set \
         its address with --server or UNSTUCK_SERVER",
    ))
}

/// The TLS error that prevented the connection, if one did.
fn find_tls_error(error: &transport::Error) -> Option<String> {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    let io = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    let mut inner = io.filter_map(|error| error.get_ref());
    let tls = inner.find_map(|cause| cause.downcast_ref::<rustls::Error>());
    tls.map(ToString::to_string)
}
