//! Maps the handlers' errors to gRPC statuses. `server/status.rs` does so for the
//! server's own.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{InvalidArgument, present};
use crate::{
    engine::{OpenError, RecordError, SnoozeError},
    feed::FeedError,
    pb,
    server::status::{DOMAIN, RATE_EXCEEDED, RETRY_AFTER, draining, exhausted, rate_exceeded},
    store::ReadError,
};

impl From<InvalidArgument> for Status {
    fn from(invalid: InvalidArgument) -> Self {
        let message = invalid.to_string();
        let mut details =
            ErrorDetails::with_bad_request_violation(invalid.field, invalid.description);
        details.set_error_info(invalid.reason, DOMAIN, []);
        Self::with_error_details(Code::InvalidArgument, message, details)
    }
}

impl From<InvalidArgument> for pb::Error {
    fn from(invalid: InvalidArgument) -> Self {
        Self {
            code: Code::InvalidArgument as i32,
            message: invalid.to_string(),
            reason: invalid.reason.to_owned(),
            field: invalid.field,
            retry_after: None,
        }
    }
}

impl From<RecordError> for Status {
    fn from(refused: RecordError) -> Self {
        let details = match refused {
            RecordError::SessionsMax(_)
            | RecordError::StateBytesMax(_)
            | RecordError::AgentsMax(_) => {
                return exhausted(refusal_reason(refused), refused.to_string());
            }
            RecordError::EventsPerSecondMax { retry_after, .. } => {
                return rate_exceeded(refused.to_string(), retry_after);
            }
            RecordError::Quarantined(reference) => {
                let info = [("reference".to_owned(), reference.to_string())];
                ErrorDetails::with_error_info(refusal_reason(refused), DOMAIN, info)
            }
        };
        Self::with_error_details(refusal_code(refused), refused.to_string(), details)
    }
}

impl From<RecordError> for pb::Error {
    fn from(refused: RecordError) -> Self {
        Self {
            code: refusal_code(refused) as i32,
            message: refused.to_string(),
            reason: refusal_reason(refused).to_owned(),
            field: String::new(),
            retry_after: retry_after(refused).map(present::duration_to_pb),
        }
    }
}

/// `None`: to send it again does not help.
fn retry_after(refused: RecordError) -> Option<Duration> {
    match refused {
        RecordError::SessionsMax(_) | RecordError::StateBytesMax(_) | RecordError::AgentsMax(_) => {
            Some(RETRY_AFTER)
        }
        RecordError::EventsPerSecondMax { retry_after, .. } => Some(retry_after),
        RecordError::Quarantined(_) => None,
    }
}

fn refusal_reason(refused: RecordError) -> &'static str {
    match refused {
        RecordError::SessionsMax(_) => "SESSIONS_MAX",
        RecordError::StateBytesMax(_) => "STATE_BYTES_MAX",
        RecordError::AgentsMax(_) => "AGENTS_MAX",
        RecordError::EventsPerSecondMax { .. } => RATE_EXCEEDED,
        RecordError::Quarantined(_) => "SESSION_QUARANTINED",
    }
}

fn refusal_code(refused: RecordError) -> Code {
    match refused {
        RecordError::SessionsMax(_)
        | RecordError::StateBytesMax(_)
        | RecordError::AgentsMax(_)
        | RecordError::EventsPerSecondMax { .. } => Code::ResourceExhausted,
        RecordError::Quarantined(_) => Code::Internal,
    }
}

impl From<OpenError> for Status {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Terminated => {
                let details = ErrorDetails::with_error_info("SESSION_TERMINATED", DOMAIN, []);
                Self::with_error_details(Code::FailedPrecondition, error.to_string(), details)
            }
            OpenError::NoProfile(_) => InvalidArgument::new("profile", error.to_string()).into(),
            OpenError::Record(refused) => refused.into(),
        }
    }
}

pub(super) fn session_not_found() -> Status {
    let details = ErrorDetails::with_error_info("SESSION_NOT_FOUND", DOMAIN, []);
    Status::with_error_details(Code::NotFound, "there is no such session", details)
}

pub(super) fn verdict_not_found() -> Status {
    let details = ErrorDetails::with_error_info("VERDICT_NOT_FOUND", DOMAIN, []);
    let message = "there is no such verdict, or it is no longer kept";
    Status::with_error_details(Code::NotFound, message, details)
}

pub(super) fn not_rateable() -> Status {
    let details = ErrorDetails::with_error_info("NOT_A_DETECTORS_VERDICT", DOMAIN, []);
    let message = "only a detector's verdict can be rated";
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

impl From<FeedError> for Status {
    fn from(ended: FeedError) -> Self {
        let message = ended.to_string();
        let (code, reason) = match ended {
            FeedError::Draining => return draining(),
            FeedError::Unreadable(error) => return error.into(),
            FeedError::TooSlow(_) => return exhausted("WATCHER_TOO_SLOW", message),
            FeedError::Unreachable => (Code::Unavailable, "REDIS_UNREACHABLE"),
            FeedError::UnknownVerdict => (Code::OutOfRange, "VERDICT_UNKNOWN"),
        };
        let details = ErrorDetails::with_error_info(reason, DOMAIN, []);
        Self::with_error_details(code, message, details)
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Self {
        let (code, reason) = match &error {
            ReadError::NotRetained => (Code::OutOfRange, "VERDICT_NOT_RETAINED"),
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
            SnoozeError::Unknown => session_not_found(),
            SnoozeError::Terminated => OpenError::Terminated.into(),
        }
    }
}

/// Rejects an operator action while the store cannot be written: it must survive a
/// restart.
pub(super) fn store_not_writable() -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(RETRY_AFTER));
    details.set_error_info("STORE_FAILING", DOMAIN, []);
    let message = "the store cannot be written to, so nothing was changed";
    Status::with_error_details(Code::Unavailable, message, details)
}

/// The HTTP status and the error message for the console's JSON routes.
pub fn to_http_error(status: &Status) -> (u16, pb::Error) {
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
        retry_after: details
            .retry_info()
            .and_then(|retry| retry.retry_delay)
            .map(present::duration_to_pb),
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
