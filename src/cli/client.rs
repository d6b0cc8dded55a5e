//! The running service, as operators' commands call it. This is the one place
//! where a channel is made, and where a status becomes a message and an exit
//! code.

use std::{env, error::Error, fmt, fs, io, iter, path::PathBuf, time::Duration};

use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::AsciiMetadataValue,
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{Failure, words::shown};
use crate::{
    notify::install_tls,
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

    fn config(&self) -> Result<ClientTlsConfig, Failure> {
        let read = |file: &PathBuf| {
            fs::read(file).map_err(|error| Failure::usage(format!("cannot read {file:?}: {error}")))
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
    fn header(&self) -> Result<Option<AsciiMetadataValue>, Failure> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => fs::read_to_string(file)
                .map_err(|error| Failure::usage(format!("cannot read {file:?}: {error}")))?,
            (None, None) => return Ok(None),
        };
        let header = AsciiMetadataValue::try_from(format!("Bearer {}", token.trim()));
        let mut header = header
            .map_err(|_| Failure::usage("the token is not one: it has characters of no token"))?;
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
pub(super) fn endpoint(
    server: &str,
    tls: &TlsArgs,
    deadline: Duration,
) -> Result<Endpoint, Failure> {
    let address = match server.split_once("://") {
        Some(_) => server.to_owned(),
        None if tls.is_set() => format!("https://{server}"),
        None => format!("http://{server}"),
    };
    let wrong = |error: &dyn fmt::Display| Failure::usage(format!("{server:?}: {error}"));
    let secure = address.starts_with("https://");
    if tls.is_set() && !secure {
        return Err(wrong(&"--ca and --cert are for https://"));
    }
    let mut endpoint = Endpoint::from_shared(address).map_err(|error| wrong(&error))?;
    if secure {
        install_tls();
        let tls = tls.config()?;
        endpoint = endpoint.tls_config(tls).map_err(|error| wrong(&error))?;
    }
    // The deadline is for the answer, or for a stream's beginning.
    Ok(endpoint
        .connect_timeout(CONNECT_DEADLINE.min(deadline))
        .timeout(deadline))
}

/// Runs a command that asks the service.
pub(super) fn run<T>(
    args: &ServerArgs,
    command: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    runtime.block_on(async { command(Client::connect(args).await?).await })
}

impl Client {
    async fn connect(args: &ServerArgs) -> Result<Self, Failure> {
        let server = args.server.clone();
        let channel = endpoint(&server, &args.tls, DEADLINE)?.connect().await;
        let channel = channel.map_err(|error| unreachable(&server, &error))?;
        Ok(Self {
            service: SessionServiceClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            server,
            token: args.token.header()?,
            operator: None,
        })
    }

    /// The same, in the name of an operator.
    pub fn operated_by(self, args: &OperatorArgs) -> Result<Self, Failure> {
        let named = |name: &String| AsciiMetadataValue::try_from(name).ok();
        let operator = match &args.operator {
            Some(name) => Some(named(name).ok_or_else(|| {
                Failure::usage("--operator: a name in printable ASCII, for the audit log")
            })?),
            None => env::var("USER").ok().as_ref().and_then(named),
        };
        Ok(Self { operator, ..self })
    }

    /// Asks the service one thing.
    pub async fn ask<Q, A>(
        &self,
        question: Q,
        call: impl AsyncFnOnce(SessionServiceClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Failure> {
        let answer = call(self.service.clone(), self.request(question)).await;
        let answer = answer.map_err(|status| self.failure(&status))?;
        Ok(answer.into_inner())
    }

    /// Verdicts as they happen. The status is the caller's to judge: a watch
    /// that breaks off begins anew.
    pub async fn watch(
        &self,
        request: pb::WatchVerdictsRequest,
    ) -> Result<Streaming<pb::WatchVerdictsResponse>, Status> {
        let mut service = self.service.clone();
        let answer = service.watch_verdicts(self.request(request)).await?;
        Ok(answer.into_inner())
    }

    /// A page of sessions.
    pub async fn sessions(
        &self,
        request: pb::ListSessionsRequest,
    ) -> Result<pb::ListSessionsResponse, Failure> {
        self.ask(request, async |mut service, request| {
            service.list_sessions(request).await
        })
        .await
    }

    /// Where it is, as it was given.
    pub fn server(&self) -> String {
        shown(&self.server)
    }

    fn request<Q>(&self, question: Q) -> Request<Q> {
        let mut request = Request::new(question);
        let metadata = request.metadata_mut();
        for (key, value) in [(TOKEN_KEY, &self.token), (OPERATOR_KEY, &self.operator)] {
            if let Some(value) = value {
                metadata.insert(key, value.clone());
            }
        }
        request
    }

    /// What a status means to the person who typed the command.
    pub fn failure(&self, status: &Status) -> Failure {
        let server = self.server();
        let message = shown(status.message());
        match status.code() {
            Code::NotFound => Failure::not_found(message),
            Code::InvalidArgument => Failure::usage(message),
            // With a source it is the transport that failed, else the service
            // says why it cannot do that now.
            Code::Unavailable if status.source().is_some() => {
                Failure::failed(format!("{server} does not answer: {message}"))
            }
            Code::Unavailable => Failure::failed(format!("{server} refused: {message}")),
            Code::DeadlineExceeded | Code::Cancelled => Failure::failed(format!(
                "{server} has not answered within {} s",
                DEADLINE.as_secs()
            )),
            Code::Unauthenticated => Failure::failed(format!(
                "{server} refused: {message} (UNSTUCK_TOKEN or --token-file gives it one)"
            )),
            Code::Unimplemented => Failure::failed(format!("{server} cannot do that: {message}")),
            code => Failure::failed(format!("{server} refused: {message} ({code:?})")),
        }
    }
}

fn unreachable(server: &str, error: &transport::Error) -> Failure {
    let server = shown(server);
    if let Some(why) = of_tls(error) {
        let why = shown(&why);
        return Failure::failed(format!(
            "{server} cannot be trusted: {why} (--ca says whom to trust)"
        ));
    }
    Failure::failed(format!(
        "nobody answers at {server}; is the service running? `unstuck serve` starts it, --server \
         or UNSTUCK_SERVER says where it is",
    ))
}

/// What TLS has against the connection, if that is why there is none.
fn of_tls(error: &transport::Error) -> Option<String> {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    let io = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    let mut inner = io.filter_map(|error| error.get_ref());
    let tls = inner.find_map(|cause| cause.downcast_ref::<rustls::Error>());
    tls.map(ToString::to_string)
}
