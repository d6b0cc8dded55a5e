//! Errors of the server itself as gRPC statuses. This file and `api/status.rs`,
//! for the handlers' errors, are the only ones that name a gRPC code.

use std::time::Duration;

use axum::http::HeaderMap;
use prost::DecodeError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use uuid::Uuid;

use crate::{auth::AuthError, telemetry::Rejection};

/// The domain of `ErrorInfo`.
pub const DOMAIN: &str = "unstuck.v1";

/// The reason of an event or a call beyond `limits.events_per_second_max`.
pub const RATE_EXCEEDED: &str = "EVENTS_PER_SECOND_MAX";

/// When to retry after a limit was reached: idle sessions are evicted every second.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<AuthError> for Status {
    fn from(denied: AuthError) -> Self {
        let (code, reason) = match denied {
            AuthError::NoToken => (Code::Unauthenticated, "TOKEN_REQUIRED"),
            AuthError::UnknownToken => (Code::Unauthenticated, "TOKEN_UNKNOWN"),
            AuthError::InsufficientRole(_) => (Code::PermissionDenied, "ROLE_INSUFFICIENT"),
        };
        let details = ErrorDetails::with_error_info(reason, DOMAIN, []);
        Self::with_error_details(code, denied.to_string(), details)
    }
}

/// A limit is reached. The caller may retry.
pub fn exhausted(reason: &str, message: impl Into<String>) -> Status {
    exhausted_for(reason, message, RETRY_AFTER)
}

fn exhausted_for(reason: &str, message: impl Into<String>, retry_after: Duration) -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(retry_after));
    details.set_error_info(reason, DOMAIN, []);
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

pub fn too_many_streams(open_streams_max: usize, share: usize) -> Status {
    let limit = format!("limits.open_streams_max of {open_streams_max} streams");
    exhausted(
        "OPEN_STREAMS_MAX",
        limit_message(&limit, open_streams_max, share),
    )
}

/// UNAVAILABLE as for a drain: the connection is closed, and the client reconnects.
pub fn too_many_connections(connections_max: usize, retry_after: Duration) -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(retry_after));
    details.set_error_info("CONNECTIONS_MAX", DOMAIN, []);
    let message = format!(
        "limits.connections_max of {connections_max} connections is reached; use one connection \
         for many sessions, or reconnect later"
    );
    Status::with_error_details(Code::Unavailable, message, details)
}

pub fn too_many_health_watches(limit: usize, share: usize) -> Status {
    let message = format!(
        "{limit} health watches in total or {share} of one address are open; call Check instead"
    );
    exhausted("HEALTH_WATCHES_MAX", message)
}

/// UNAVAILABLE as for a drain: the client reconnects.
pub fn health_watch_too_old(health_watch_secs_max: u64) -> Status {
    let details = ErrorDetails::with_error_info("HEALTH_WATCH_SECS_MAX", DOMAIN, []);
    let message = format!(
        "the watch was open for limits.health_watch_secs_max, {health_watch_secs_max} s; watch \
         again"
    );
    Status::with_error_details(Code::Unavailable, message, details)
}

pub fn rate_exceeded(message: String, retry_after: Duration) -> Status {
    exhausted_for(RATE_EXCEEDED, message, retry_after)
}

pub fn too_many_calls(calls_max: usize, share: usize) -> Status {
    let limit = format!("limits.calls_max of {calls_max} calls at a time");
    exhausted("CALLS_MAX", limit_message(&limit, calls_max, share))
}

pub fn too_many_probes(limit: usize, share: usize) -> Status {
    let message =
        format!("{limit} health checks in total or {share} of one address are not finished");
    exhausted("CALLS_MAX", message)
}

pub fn too_many_pages(pages_max: usize, share: usize) -> Status {
    let limit = format!("the limit of {pages_max} large responses that are not read yet");
    exhausted("PAGES_MAX", limit_message(&limit, pages_max, share))
}

pub(super) fn too_many_unread_bytes(unread_bytes_max: usize, share: usize) -> Status {
    let limit = format!("limits.unread_bytes_max of {unread_bytes_max} bytes");
    exhausted(
        "UNREAD_BYTES_MAX",
        limit_message(&limit, unread_bytes_max, share),
    )
}

/// The message for a limit, with the tenant's share if there are several tenants.
fn limit_message(limit: &str, max: usize, share: usize) -> String {
    if share < max {
        format!("{limit} is reached; this tenant's share is {share}")
    } else {
        format!("{limit} is reached")
    }
}

pub fn call_too_long(call_secs_max: u64) -> Status {
    let details = ErrorDetails::with_error_info("CALL_SECS_MAX", DOMAIN, []);
    let message =
        format!("the call was not finished after limits.call_secs_max, {call_secs_max} s");
    Status::with_error_details(Code::DeadlineExceeded, message, details)
}

pub fn slow_reader() -> Status {
    let message = "responses were not read for limits.slow_reader_secs_max; read them, reconnect \
                   and resend what was not answered";
    exhausted("SLOW_READER", message)
}

/// UNAVAILABLE as for a drain: it is not an error of the client, which may reconnect.
pub fn idle() -> Status {
    let details = ErrorDetails::with_error_info("STREAM_IDLE", DOMAIN, []);
    let message = "nothing was sent for limits.stream_idle_secs_max; reconnect when there is \
                   something to send";
    Status::with_error_details(Code::Unavailable, message, details)
}

pub fn draining() -> Status {
    let details = ErrorDetails::with_error_info("DRAINING", DOMAIN, []);
    let message = "the service is shutting down; reconnect and resend what was not answered";
    Status::with_error_details(Code::Unavailable, message, details)
}

/// A bug. The log has the details; the caller gets a reference to search for.
pub fn internal() -> Status {
    let reference = Uuid::now_v7().to_string();
    tracing::error!(reference, "a call or a stream panicked: this is a bug");
    let message = format!("internal error; reference {reference}");
    let info = [("reference".to_owned(), reference)];
    let details = ErrorDetails::with_error_info("INTERNAL", DOMAIN, info);
    Status::with_error_details(Code::Internal, message, details)
}

/// A message beyond `limits.message_bytes_max`. The text is tonic's.
pub(super) fn message_too_large(message_bytes: usize, message_bytes_max: usize) -> Status {
    Status::out_of_range(format!(
        "Error, decoded message length too large: found {message_bytes} bytes, the limit is: \
         {message_bytes_max} bytes"
    ))
}

/// The client set the flag for compression, which the service does not offer.
pub(super) fn compressed_message(flag: u8) -> Status {
    Status::internal(format!(
        "protocol error: received message with compression flag {flag}; messages must not be \
         compressed"
    ))
}

/// The client closed the stream in the middle of a message.
pub(super) fn truncated_message() -> Status {
    Status::internal("Unexpected EOF decoding stream.")
}

/// The request as a whole is no protobuf message.
pub fn undecodable_message(error: &DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// The client reset the stream.
pub(super) fn is_cancelled(status: &Status) -> bool {
    status.code() == Code::Cancelled
}

/// The rejection behind a status that is made before a handler runs: the message was
/// too large or could not be decoded.
pub fn transport_rejection(code: Code) -> Option<Rejection> {
    match code {
        Code::OutOfRange => Some(Rejection::MessageBytesMax),
        Code::Internal => Some(Rejection::Undecodable),
        _ => None,
    }
}

/// The same for a response. Our own errors have details and are not counted here.
pub fn transport_rejection_in(headers: &HeaderMap) -> Option<Rejection> {
    let is_ours = headers.contains_key(Status::GRPC_STATUS_DETAILS);
    let code = headers.get(Status::GRPC_STATUS).filter(|_| !is_ours)?;
    transport_rejection(Code::from_bytes(code.as_bytes()))
}
