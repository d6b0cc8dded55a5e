use std::fmt::Display;

use thiserror::Error;

/// A message that cannot be taken, and the field at fault.
#[derive(Clone, Debug, Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// As a path from the event or request.
    pub field: String,
    pub why: String,
    /// For programs.
    pub reason: &'static str,
}

impl Invalid {
    pub(super) fn field(field: &str, why: impl Display) -> Self {
        Self::because("FIELD_INVALID", field, why)
    }

    pub(super) fn required(field: &str) -> Self {
        Self::because("FIELD_REQUIRED", field, "is required")
    }

    pub(super) fn because(reason: &'static str, field: &str, why: impl Display) -> Self {
        Self {
            field: field.to_owned(),
            why: why.to_string(),
            reason,
        }
    }
}
