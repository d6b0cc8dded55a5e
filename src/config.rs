//! Loads the settings from the built-in files, one TOML file and the environment. Each
//! module owns the type of its settings; this module merges the layers, checks them
//! against the known keys and hands them out by section.
//!
//! Every error of a user is one line with the key, the file and line or the variable,
//! and what would be valid.
//!
//! Uses: domain, text, auth, tools, facts, detect, policy, telemetry, rules, engine, store, cluster, notify, server, console, hooks.
//! They own the types of their settings. Only app and cli use this module.

mod diff;
mod document;
mod layers;
mod memory_budget;
mod profile_builder;
mod schema;
mod sections;
mod settings;
mod variables;

#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Display, Write},
    sync::Arc,
};

use thiserror::Error;

pub use self::{
    diff::changed_keys,
    layers::{BuiltInFiles, Layers},
    memory_budget::MemoryBudget,
    schema::{TableKeys, find_nearest},
    settings::{Config, DEFAULTS, TABLE_KEYS, load_layers, load_layers_of},
};

/// The largest configuration file that is read. It is a hundred times the size of a
/// file with every key, so a larger one is not a configuration.
pub const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

/// Characters of a user's text that an error repeats.
const ESCAPED_CHARS_MAX: usize = 400;

/// Why the service does not start with this configuration. The message is one line
/// without control characters, whatever the file contains.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {}: {why}", EscapedText(file))]
    Unreadable { file: String, why: String },

    #[error("syntax error {location}: {}", EscapedText(why))]
    Syntax {
        location: SourceLocation,
        why: String,
    },

    #[error("unknown key `{}` {location}{}", EscapedText(key), did_you_mean(nearest.as_deref()))]
    UnknownKey {
        key: String,
        location: SourceLocation,
        nearest: Option<String>,
    },

    #[error(
        "wrong type for `{}` {location}: expected {expected}, found {}",
        EscapedText(key),
        EscapedText(found)
    )]
    Type {
        key: String,
        location: SourceLocation,
        expected: &'static str,
        found: String,
    },

    #[error("invalid `{}`{}: {}", EscapedText(key), with_leading_space(location.as_ref()), EscapedText(why))]
    Invalid {
        key: String,
        /// `None` for a default, and where it is unknown.
        location: Option<SourceLocation>,
        why: String,
    },

    #[error("unknown profile `{}`{}", EscapedText(name), did_you_mean(nearest.as_deref()))]
    UnknownProfile {
        name: String,
        nearest: Option<String>,
    },

    /// It does not occur: the layers are checked before they are merged.
    #[error("cannot merge the configuration: {}", EscapedText(&.0.to_string()))]
    Merge(#[from] ::config::ConfigError),
}

impl ConfigError {
    /// A setting of the right type that makes no sense, such as a detector that can
    /// never fire. [`Layers::invalid`] adds where it was set.
    pub fn invalid(key: &str, why: impl Display) -> Self {
        Self::Invalid {
            key: key.to_owned(),
            location: None,
            why: why.to_string(),
        }
    }
}

/// The place at which a user set a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceLocation {
    Line { file: Arc<str>, line: usize },
    Variable(Arc<str>),
}

impl Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "at {}:{line}", EscapedText(file)),
            Self::Variable(name) => write!(f, "from {}", EscapedText(name)),
        }
    }
}

fn with_leading_space(location: Option<&SourceLocation>) -> String {
    location
        .map(|location| format!(" {location}"))
        .unwrap_or_default()
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest
        .map(|known| format!("; did you mean `{known}`?"))
        .unwrap_or_default()
}

/// A user's text, escaped as by `{:?}` but without quotes, and truncated. It can
/// neither break the line nor control a terminal.
struct EscapedText<'a>(&'a str);

impl Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(ESCAPED_CHARS_MAX) {
            match c {
                '"' | '\'' | '\\' => f.write_char(c)?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        if self.0.chars().nth(ESCAPED_CHARS_MAX).is_some() {
            f.write_char('…')?;
        }
        Ok(())
    }
}

/// Whether a key needs no quotes in TOML.
fn is_bare_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Returns `path.key`, quoted as in TOML, so that a dot inside a key does not look like
/// a separator.
fn join_key(path: &str, key: &str) -> String {
    let quoted = if is_bare_key(key) {
        key.to_owned()
    } else {
        format!("{key:?}")
    };
    if path.is_empty() {
        quoted
    } else {
        format!("{path}.{quoted}")
    }
}
