//! One HTTP request to the local service or a team's.

use std::{io, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use reqwest::{Client, Url, redirect};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use super::HookTarget;
use crate::{
    cli::local_service::{LocalDirs, is_private_dir},
    notify::install_crypto_provider,
};

/// The largest reply. Replies are a few sentences.
const REPLY_BYTES_MAX: usize = 1024 * 1024;
/// The response header that asks for an interruption: no reply ends the run of this agent.
const INTERRUPT: &str = "unstuck-interrupt";
/// The request header that forbids a delayed reply, because this command would time out.
const COMMAND: &str = "unstuck-command";
const JSON: &str = "application/json";

/// Why an agent gets no reply.
#[derive(Debug, Error)]
pub(in crate::cli) enum HookFailure {
    #[error("the local service was not running; it has been started")]
    Started,
    #[error("the local service is not running")]
    NoService,
    #[error("cannot start the local service: {0}")]
    CannotStart(String),
    #[error("no reply within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error("the service cannot be reached: {0}")]
    Unreachable(String),
    #[error("the service answered {0}")]
    Status(u16),
    #[error("the service's reply is not a JSON object")]
    BadReply,
    #[error("the payload is not a JSON object")]
    NotAnObject,
    #[error("the payload is larger than 4 MiB")]
    TooLarge,
    #[error("cannot read standard input: {0}")]
    Input(String),
    #[error("cannot use the configuration: {0}")]
    Config(String),
    #[error("there is no home directory: set HOME")]
    NoHome,
    #[error("the command panicked")]
    Panicked,
    #[error("the agent was not interrupted: {0}")]
    NotInterrupted(String),
}

impl HookFailure {
    /// Whether no reply was printed before the failure.
    pub fn is_without_reply(&self) -> bool {
        !matches!(self, Self::NotInterrupted(_))
    }

    fn unreachable(error: impl std::fmt::Display) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// The reply to the agent.
pub(in crate::cli) struct HookReply {
    pub body: Vec<u8>,
    pub interrupt: bool,
}

pub(in crate::cli) async fn post(
    target: &HookTarget,
    path: &str,
    body: Vec<u8>,
) -> Result<HookReply, HookFailure> {
    match target {
        HookTarget::Local(dirs) => {
            let socket = connect_local(dirs).await?;
            post_plain(socket, "localhost", path, None, body).await
        }
        HookTarget::Team { url, token } if url.scheme() == "http" => {
            let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or(80));
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let socket = TcpStream::connect((name, port)).await;
            let socket = socket.map_err(HookFailure::unreachable)?;
            let path = format!("{}{path}", url.path().trim_end_matches('/'));
            post_plain(
                socket,
                &format!("{host}:{port}"),
                &path,
                token.as_deref(),
                body,
            )
            .await
        }
        HookTarget::Team { url, token } => post_tls(url, path, token.as_deref(), body).await,
    }
}

/// Connects to the local service, unless another user may own its socket and read payloads.
async fn connect_local(dirs: &LocalDirs) -> Result<UnixStream, HookFailure> {
    match is_private_dir(&dirs.sockets) {
        Ok(true) => {}
        Ok(false) => {
            let why = format!("{} is open to other users", dirs.sockets.display());
            return Err(HookFailure::Unreachable(why));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(HookFailure::NoService);
        }
        Err(error) => return Err(HookFailure::unreachable(error)),
    }
    UnixStream::connect(dirs.http_socket())
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => HookFailure::NoService,
            _ => HookFailure::unreachable(error),
        })
}

async fn post_plain(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    path: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> Result<HookReply, HookFailure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
        .await
        .map_err(HookFailure::unreachable)?;
    tokio::spawn(connection);
    let mut request = Request::post(path)
        .header(HOST, host)
        .header(CONTENT_TYPE, JSON)
        .header(COMMAND, "1");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(body)));
    let request = request.map_err(HookFailure::unreachable)?;
    let response = sender.send_request(request).await;
    let response = response.map_err(HookFailure::unreachable)?;
    let (status, interrupt) = (
        response.status(),
        response.headers().contains_key(INTERRUPT),
    );
    let body = Limited::new(response.into_body(), REPLY_BYTES_MAX)
        .collect()
        .await;
    let body = body.map_err(HookFailure::unreachable)?.to_bytes();
    check_reply(status, interrupt, &body)
}

async fn post_tls(
    url: &Url,
    path: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> Result<HookReply, HookFailure> {
    install_crypto_provider();
    let client = Client::builder()
        // A redirect to another address must not get the payload.
        .redirect(redirect::Policy::none())
        .https_only(true)
        .user_agent(concat!("unstuck/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(HookFailure::unreachable)?;
    let url = format!("{}{path}", url.as_str().trim_end_matches('/'));
    let request = client.post(url).header(CONTENT_TYPE, JSON);
    let mut request = request.header(COMMAND, "1").body(body);
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let mut response = request.send().await.map_err(|error| {
        // reqwest's text names the address twice and not the cause.
        let cause = std::iter::successors(Some(&error as &dyn std::error::Error), |it| it.source());
        HookFailure::unreachable(cause.last().map(ToString::to_string).unwrap_or_default())
    })?;
    let (status, interrupt) = (
        response.status(),
        response.headers().contains_key(INTERRUPT),
    );
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(HookFailure::unreachable)? {
        if body.len() + chunk.len() > REPLY_BYTES_MAX {
            return Err(HookFailure::BadReply);
        }
        body.extend_from_slice(&chunk);
    }
    check_reply(status, interrupt, &body)
}

/// Checks that the body is a reply: some agents accept any text as one.
fn check_reply(status: StatusCode, interrupt: bool, body: &[u8]) -> Result<HookReply, HookFailure> {
    if status != StatusCode::OK {
        return Err(HookFailure::Status(status.as_u16()));
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|_| HookFailure::BadReply)?;
    let mut body = serde_json::to_vec(&object).map_err(|_| HookFailure::BadReply)?;
    body.push(b'\n');
    Ok(HookReply { body, interrupt })
}
