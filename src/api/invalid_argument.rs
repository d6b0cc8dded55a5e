use std::fmt::Display;

use thiserror::Error;

/// A message that cannot be taken, and the field at fault.
#[derive(Clone, Debug, Error)]
#[error("{field}: {description}")]
pub struct InvalidArgument {
    /// As a path from the event or request.
    pub field: String,
    pub description: String,
    /// For programs.
    pub reason: &'static str,
}

impl InvalidArgument {
    pub(super) fn new(field: &str, description: impl Display) -> Self {
        Self::with_reason("FIELD_INVALID", field, description)
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::with_reason("FIELD_REQUIRED", field, "is required")
    }

    pub(super) fn with_reason(
        reason: &'static str,
        field: &str,
        description: impl Display,
    ) -> Self {
        Self {
            field: field.to_owned(),
            description: description.to_string(),
            reason,
        }
    }
}
