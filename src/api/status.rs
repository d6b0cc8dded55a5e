//! The handlers' errors as gRPC statuses.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Invalid;
use crate::{
    engine::{OpenError, Refused, SnoozeError},
    feed::Ended,
    pb,
    server::status::{DOMAIN, RETRY_AFTER, draining, exhausted},
    store::ReadError,
};

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        let message = invalid.to_string();
        let mut details = ErrorDetails::with_bad_request_violation(invalid.field, invalid.why);
        details.set_error_info(invalid.reason, DOMAIN, []);
        Self::with_error_details(Code::InvalidArgument, message, details)
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

pub(super) fn no_session() -> Status {
    let details = ErrorDetails::with_error_info("SESSION_NOT_FOUND", DOMAIN, []);
    Status::with_error_details(Code::NotFound, "there is no such session", details)
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
    let mut details = ErrorDetails::with_retry_info(Some(RETRY_AFTER));
    details.set_error_info("STORE_FAILING", DOMAIN, []);
    let message = "the store cannot be written to, so nothing was changed";
    Status::with_error_details(Code::Unavailable, message, details)
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
