//! The settings of an endpoint: an entry of `[[notify]]`.

use std::{collections::BTreeMap, fmt, fs, path::PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::domain::{Action, Labels, Tenant};

/// An entry of `[[notify]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Settings {
    /// The metric label, and the name in logs.
    pub name: String,
    pub url: TextOrSecret,
    #[serde(default)]
    pub format: Format,
    #[serde(default = "post")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// A template for the body. Empty: the body of `format`.
    #[serde(default)]
    pub body: String,
    /// The key that signs requests, or several while it is replaced.
    pub secret: Option<SecretSources>,
    /// Only verdicts with this action or a stronger one.
    #[serde(default = "warn")]
    pub min_action: Action,
    /// Only this tenant's sessions. `None`: all tenants.
    pub tenant: Option<Tenant>,
    /// Only sessions with all of these labels.
    #[serde(default)]
    pub labels: Labels,
    /// Also shadow verdicts, including those of snoozed sessions.
    #[serde(default)]
    pub shadow: bool,
    #[serde(default)]
    pub allow_http: bool,
    #[serde(default)]
    pub allow_private: bool,
    #[serde(default = "timeout_secs_max")]
    pub timeout_secs_max: u64,
    #[serde(default = "retry_millis_min")]
    pub retry_millis_min: u64,
    #[serde(default = "retry_millis_max")]
    pub retry_millis_max: u64,
    #[serde(default = "expiry_secs_max")]
    pub expiry_secs_max: u64,
}

impl Settings {
    /// The keys of an entry, to detect unknown ones.
    pub const KEYS: &'static [&'static str] = &[
        "name",
        "url",
        "format",
        "method",
        "headers",
        "body",
        "secret",
        "min_action",
        "tenant",
        "labels",
        "shadow",
        "allow_http",
        "allow_private",
        "timeout_secs_max",
        "retry_millis_min",
        "retry_millis_max",
        "expiry_secs_max",
    ];

    /// Whether the entries differ at most in `secret`, which a reload applies.
    pub fn differs_only_in_secret(&self, other: &Self) -> bool {
        let secret = self.secret.clone();
        *self
            == Self {
                secret,
                ..other.clone()
            }
    }
}

/// The format of a body without a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    #[default]
    CloudEvents,
    Slack,
    Discord,
}

/// A text, or the source of a secret one.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TextOrSecret {
    Plain(String),
    Secret(SecretSource),
}

/// One source of a secret, or a list of them with the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum SecretSources {
    Single(SecretSource),
    Several(Vec<SecretSource>),
}

/// The source of a secret, which is never in the configuration itself.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum SecretSource {
    Environment { env: String },
    File { file: PathBuf },
}

/// A secret that cannot be read. Names its source, never its value.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("the environment variable {0} is not set, or not UTF-8")]
    Environment(String),
    #[error("cannot read {path}: {why}")]
    File { path: PathBuf, why: std::io::Error },
    #[error("it is empty")]
    Empty,
}

impl SecretSources {
    pub fn as_slice(&self) -> &[SecretSource] {
        match self {
            Self::Single(source) => std::slice::from_ref(source),
            Self::Several(sources) => sources,
        }
    }
}

impl SecretSource {
    /// Reads the secret, without trailing line breaks.
    pub fn read(&self) -> Result<String, SecretError> {
        let text = match self {
            Self::Environment { env } => {
                std::env::var(env).map_err(|_| SecretError::Environment(env.clone()))?
            }
            Self::File { file } => fs::read_to_string(file).map_err(|why| SecretError::File {
                path: file.clone(),
                why,
            })?,
        };
        let secret = text.trim_end_matches(['\r', '\n']);
        if secret.is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(secret.to_owned())
    }
}

impl TextOrSecret {
    pub fn read(&self) -> Result<String, SecretError> {
        match self {
            Self::Plain(text) => Ok(text.clone()),
            Self::Secret(secret) => secret.read(),
        }
    }
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment { env } => write!(f, "the environment variable {env}"),
            Self::File { file } => write!(f, "the file {}", file.display()),
        }
    }
}

/// Omits plain text, which may hold a token despite the advice.
impl fmt::Debug for TextOrSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("a text"),
            Self::Secret(secret) => secret.fmt(f),
        }
    }
}

fn post() -> String {
    "POST".to_owned()
}

fn warn() -> Action {
    Action::Warn
}

/// Endpoints are expected to respond first and to work later.
fn timeout_secs_max() -> u64 {
    10
}

fn retry_millis_min() -> u64 {
    500
}

fn retry_millis_max() -> u64 {
    60_000
}

/// A notification that is a day old is no longer useful.
fn expiry_secs_max() -> u64 {
    24 * 60 * 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_its_source_and_not_in_debug_output() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "whsec_c2VjcmV0\n").unwrap();
        let entry = format!(
            "name = 'a'\nurl = 'https://x/token'\nsecret = {{ file = {:?} }}",
            file.path()
        );
        let settings: Settings = toml::from_str(&entry).unwrap();
        assert_eq!(
            settings.secret.clone().unwrap().as_slice()[0]
                .read()
                .unwrap(),
            "whsec_c2VjcmV0"
        );
        let shown = format!("{settings:?}");
        assert!(!shown.contains("c2VjcmV0") && !shown.contains("token"));
    }

    #[test]
    fn a_secret_error_names_its_source() {
        let missing = SecretSource::Environment {
            env: "UNSTUCK_NO_SUCH".to_owned(),
        };
        assert!(
            missing
                .read()
                .unwrap_err()
                .to_string()
                .contains("UNSTUCK_NO_SUCH")
        );
        let missing = SecretSource::File {
            file: "no/such/file".into(),
        };
        assert!(
            missing
                .read()
                .unwrap_err()
                .to_string()
                .contains("no/such/file")
        );
    }

    #[test]
    fn a_secret_in_the_configuration_is_rejected() {
        let entry = "name = 'a'\nurl = 'https://x'\nsecret = 'whsec_c2VjcmV0'";
        assert!(toml::from_str::<Settings>(entry).is_err());
    }
}
