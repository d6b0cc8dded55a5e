//! The only file that names a gRPC code.

use axum::http::HeaderMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use uuid::Uuid;

use super::Invalid;
use crate::{
    auth::Denied,
    engine::{OpenError, Refused, SnoozeError},
    feed::Ended,
    pb,
    store::ReadError,
    telemetry::Rejection,
};

/// The domain of `ErrorInfo`.
const DOMAIN: &str = "unstuck.v1";

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        let message = invalid.to_string();
        let mut details = ErrorDetails::with_bad_request_violation(invalid.field, invalid.why);
        details.set_error_info(invalid.reason, DOMAIN, []);
        Self::with_error_details(Code::InvalidArgument, message, details)
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        let (code, reason) = match denied {
            Denied::NoToken => (Code::Unauthenticated, "TOKEN_REQUIRED"),
            Denied::UnknownToken => (Code::Unauthenticated, "TOKEN_UNKNOWN"),
            Denied::Role(_) => (Code::PermissionDenied, "ROLE_INSUFFICIENT"),
        };
        let details = ErrorDetails::with_error_info(reason, DOMAIN, []);
        Self::with_error_details(code, denied.to_string(), details)
    }
}

impl From<Invalid> for pb::Error {
    fn from(invalid: Invalid) -> Self {
        Self {
            code: Code::InvalidArgument as i32,
            message: invalid.to_string(),
            reason: invalid.reason.to_owned(),
            field: invalid.field,
        }
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let details = match refused {
            Refused::Sessions(_) | Refused::Bytes(_) | Refused::Agents(_) => {
                return exhausted(reason(refused), refused.to_string());
            }
            Refused::Quarantined(reference) => {
                let info = [("reference".to_owned(), reference.to_string())];
                ErrorDetails::with_error_info(reason(refused), DOMAIN, info)
            }
        };
        Self::with_error_details(code(refused), refused.to_string(), details)
    }
}

impl From<Refused> for pb::Error {
    fn from(refused: Refused) -> Self {
        Self {
            code: code(refused) as i32,
            message: refused.to_string(),
            reason: reason(refused).to_owned(),
            field: String::new(),
        }
    }
}

fn reason(refused: Refused) -> &'static str {
    match refused {
        Refused::Sessions(_) => "SESSIONS_MAX",
        Refused::Bytes(_) => "STATE_BYTES_MAX",
        Refused::Agents(_) => "AGENTS_MAX",
        Refused::Quarantined(_) => "SESSION_QUARANTINED",
    }
}

fn code(refused: Refused) -> Code {
    match refused {
        Refused::Sessions(_) | Refused::Bytes(_) | Refused::Agents(_) => Code::ResourceExhausted,
        Refused::Quarantined(_) => Code::Internal,
    }
}

impl From<OpenError> for Status {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Terminated => {
                let details = ErrorDetails::with_error_info("SESSION_TERMINATED", DOMAIN, []);
                Self::with_error_details(Code::FailedPrecondition, error.to_string(), details)
            }
            OpenError::NoProfile(_) => Invalid::field("profile", error.to_string()).into(),
            OpenError::Refused(refused) => refused.into(),
        }
    }
}

/// A limit was met; it may be worth trying again.
fn exhausted(reason: &str, message: impl Into<String>) -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(Refused::RETRY_AFTER));
    details.set_error_info(reason, DOMAIN, []);
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

pub(super) fn too_many_streams(open_streams_max: usize, share: usize) -> Status {
    let limit = format!("limits.open_streams_max of {open_streams_max} streams");
    exhausted("OPEN_STREAMS_MAX", reached(&limit, open_streams_max, share))
}

pub(super) fn too_many_calls(calls_max: usize, share: usize) -> Status {
    let limit = format!("limits.calls_max of {calls_max} calls at a time");
    exhausted("CALLS_MAX", reached(&limit, calls_max, share))
}

pub(super) fn too_many_pages(pages_max: usize, share: usize) -> Status {
    let limit = format!("the limit of {pages_max} large answers that are not read yet");
    exhausted("PAGES_MAX", reached(&limit, pages_max, share))
}

/// A limit, or the part of it that is this tenant's.
fn reached(limit: &str, most: usize, share: usize) -> String {
    match share < most {
        true => format!("{limit}, of which {share} are this tenant's, is reached"),
        false => format!("{limit} is reached"),
    }
}

pub(super) fn call_too_long(call_secs_max: u64) -> Status {
    let details = ErrorDetails::with_error_info("CALL_SECS_MAX", DOMAIN, []);
    let message = format!("the call was not over after limits.call_secs_max, {call_secs_max} s");
    Status::with_error_details(Code::DeadlineExceeded, message, details)
}

pub(super) fn slow_reader() -> Status {
    let message = "responses were not read for limits.slow_reader_secs_max; read them, reconnect \
                   and resend what was not answered";
    exhausted("SLOW_READER", message)
}

/// Like a drain it is nobody's fault, and asks to reconnect.
pub(super) fn idle() -> Status {
    let details = ErrorDetails::with_error_info("STREAM_IDLE", DOMAIN, []);
    let message = "nothing was sent for limits.stream_idle_secs_max; reconnect when there is \
                   something to send";
    Status::with_error_details(Code::Unavailable, message, details)
}

pub(super) fn no_session() -> Status {
    let details = ErrorDetails::with_error_info("SESSION_NOT_FOUND", DOMAIN, []);
    Status::with_error_details(Code::NotFound, "there is no such session", details)
}

pub(super) fn draining() -> Status {
    let details = ErrorDetails::with_error_info("DRAINING", DOMAIN, []);
    let message = "the service is shutting down; reconnect and resend what was not answered";
    Status::with_error_details(Code::Unavailable, message, details)
}

/// A fault of ours. What it was stands in the log; the caller gets a name to
/// look for.
pub(super) fn internal() -> Status {
    let reference = Uuid::now_v7().to_string();
    tracing::error!(reference, "a bug: a call or a stream panicked");
    let message = format!("a fault of the service; reference {reference}");
    let info = [("reference".to_owned(), reference)];
    let details = ErrorDetails::with_error_info("INTERNAL", DOMAIN, info);
    Status::with_error_details(Code::Internal, message, details)
}

impl From<Ended> for Status {
    fn from(ended: Ended) -> Self {
        let message = ended.to_string();
        let (code, reason) = match ended {
            Ended::Draining => return draining(),
            Ended::Unreadable(error) => return error.into(),
            Ended::TooSlow(_) => return exhausted("WATCHER_TOO_SLOW", message),
            Ended::Unknown => (Code::OutOfRange, "VERDICT_UNKNOWN"),
        };
        let details = ErrorDetails::with_error_info(reason, DOMAIN, []);
        Self::with_error_details(code, message, details)
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Self {
        let (code, reason) = match &error {
            ReadError::Forgotten => (Code::OutOfRange, "VERDICT_FORGOTTEN"),
            ReadError::Unreadable(source) => {
                tracing::error!(error = %source, "the audit log cannot be read");
                (Code::DataLoss, "AUDIT_LOG_UNREADABLE")
            }
        };
        let details = ErrorDetails::with_error_info(reason, DOMAIN, []);
        Self::with_error_details(code, error.to_string(), details)
    }
}

impl From<SnoozeError> for Status {
    fn from(error: SnoozeError) -> Self {
        match error {
            SnoozeError::Unknown => no_session(),
            SnoozeError::Terminated => OpenError::Terminated.into(),
        }
    }
}

/// The disk takes nothing, and what was asked must outlive the process.
pub(super) fn not_durable() -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(Refused::RETRY_AFTER));
    details.set_error_info("STORE_FAILING", DOMAIN, []);
    let message = "the store cannot be written to, so nothing was changed";
    Status::with_error_details(Code::Unavailable, message, details)
}

/// Why a message was not read, where it was not: the transport says so before any
/// of our code has seen it.
pub(super) fn unread(code: Code) -> Option<Rejection> {
    match code {
        Code::OutOfRange => Some(Rejection::MessageBytesMax),
        Code::Internal => Some(Rejection::Undecodable),
        _ => None,
    }
}

/// The same of an answer that is under way. What we refuse ourselves has details.
pub(super) fn unread_in(headers: &HeaderMap) -> Option<Rejection> {
    let is_ours = headers.contains_key(Status::GRPC_STATUS_DETAILS);
    let code = headers.get(Status::GRPC_STATUS).filter(|_| !is_ours)?;
    unread(Code::from_bytes(code.as_bytes()))
}

/// The same for those who are not spoken to in gRPC: a status of HTTP, and what
/// is wrong.
pub fn as_http(status: &Status) -> (u16, pb::Error) {
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| info.reason.clone());
    let violation = details
        .bad_request()
        .and_then(|bad| bad.field_violations.first());
    let error = pb::Error {
        code: status.code() as i32,
        message: status.message().to_owned(),
        reason: reason.unwrap_or_default(),
        field: violation.map(|it| it.field.clone()).unwrap_or_default(),
    };
    let http = match status.code() {
        Code::InvalidArgument | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists => 409,
        Code::ResourceExhausted => 429,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        _ => 500,
    };
    (http, error)
}
