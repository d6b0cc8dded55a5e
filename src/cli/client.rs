//! The client of a running service. Only this file creates a channel and turns a
//! gRPC status into a message and an exit code.

use std::{env, error::Error, ops::ControlFlow, time::Duration};

use pbjson_types::Timestamp;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::AsciiMetadataValue,
    transport::{self, Channel, Uri},
};
use unstuck_client::{Credentials, InvalidOptions, Options};

pub(super) use super::server_args::{OperatorArgs, ServerArgs};
use super::{
    CliError, block_on,
    server_args::{TlsArgs, build_endpoint},
    text_format::sanitize,
    tls_errors::{find_tls_error, probe_port},
};
use crate::pb::{self, session_service_client::SessionServiceClient};

/// Long enough for a busy machine and an fsync, and no longer than a person waits
/// without any output.
const DEADLINE: Duration = Duration::from_secs(10);
/// A thousand verdicts with all their text.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The generated client.
pub(super) type SessionClient = SessionServiceClient<Channel>;

/// A connection to the service.
#[derive(Clone)]
pub(super) struct Client {
    service: SessionServiceClient<Channel>,
    server: String,
    uri: Uri,
    tls: TlsArgs,
    token: Option<String>,
    default_operator: Option<String>,
    credentials: Credentials,
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
        let target = args.resolve()?;
        let server = target.server;
        // The deadline applies to a unary response, or to the start of a stream.
        let endpoint = build_endpoint(&server, &target.tls)?.timeout(DEADLINE);
        let uri = endpoint.uri().clone();
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| connect_error(&server, &error))?;
        Ok(Self {
            service: SessionServiceClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            server,
            uri,
            tls: target.tls,
            default_operator: target.operator.or_else(|| env::var("USER").ok()),
            credentials: build_credentials(target.token.clone(), None)?,
            token: target.token,
        })
    }

    /// The same client, which names the operator in every call.
    pub fn with_operator(self, args: &OperatorArgs) -> Result<Self, CliError> {
        // A name by default is left out if it cannot be sent.
        let is_sendable = |name: &String| name.parse::<AsciiMetadataValue>().is_ok();
        let default = self.default_operator.clone().filter(is_sendable);
        let operator = args.operator.clone().or(default);
        Ok(Self {
            credentials: build_credentials(self.token.clone(), operator)?,
            ..self
        })
    }

    /// Makes a unary call.
    pub async fn call<Q, A>(
        &self,
        message: Q,
        rpc: impl AsyncFnOnce(SessionServiceClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, CliError> {
        let result = rpc(self.service.clone(), self.build_request(message)).await;
        match result {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(self.explain_status(&status).await),
        }
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
    /// Returns since when sessions are known.
    pub async fn for_each_session_page(
        &self,
        request: pb::ListSessionsRequest,
        mut handle_page: impl FnMut(Vec<pb::Session>) -> Result<ControlFlow<()>, CliError>,
    ) -> Result<Option<Timestamp>, CliError> {
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
            Ok(((page.sessions, page.data_since), page.next_page_token))
        };
        let mut data_since = None;
        for_each_page(fetch_page, |(sessions, since)| {
            data_since = since;
            handle_page(sessions)
        })
        .await?;
        Ok(data_since)
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
        self.credentials.add_to(request.metadata_mut());
        request
    }

    /// The error for a status, which the transport may have made.
    pub async fn explain_status(&self, status: &Status) -> CliError {
        match find_transport_error(&self.server, &self.uri, &self.tls, status).await {
            Some(error) => error,
            None => self.error_for_status(status),
        }
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

fn build_credentials(
    token: Option<String>,
    operator: Option<String>,
) -> Result<Credentials, CliError> {
    let options = Options {
        token,
        operator,
        ..Options::default()
    };
    options.credentials().map_err(|error| match error {
        InvalidOptions::Operator => CliError::usage(format!("--operator: {error}")),
        _ => CliError::usage(error.to_string()),
    })
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

/// The error for a connection that was not made.
pub(super) fn connect_error(server: &str, error: &transport::Error) -> CliError {
    find_tls_error(server, error).unwrap_or_else(|| {
        CliError::failed(format!(
            "cannot connect to {}; is the service running? Start it with `unstuck serve`, set \
             its address with --server or UNSTUCK_SERVER",
            sanitize(server)
        ))
    })
}

/// The TLS error behind a status that the transport made. A plain text connection to a TLS
/// port fails at its first call, not before.
pub(super) async fn find_transport_error(
    server: &str,
    uri: &Uri,
    tls: &TlsArgs,
    status: &Status,
) -> Option<CliError> {
    let source = status.source()?;
    match find_tls_error(server, source) {
        Some(error) => Some(error),
        None => probe_port(server, uri, tls).await,
    }
}
