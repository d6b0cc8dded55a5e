use std::{collections::BTreeMap, fmt, fs, path::PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::domain::{Action, Labels, Tenant};

/// An entry of `[[notify]]`.
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// Its metric label, and its name in logs.
    pub name: String,
    pub url: TextOrSecret,
    #[serde(default)]
    pub format: Format,
    #[serde(default = "post")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// A template for the body; empty: what the format has.
    #[serde(default)]
    pub body: String,
    /// Signs what is sent.
    pub secret: Option<SecretSource>,
    /// This action and stronger.
    #[serde(default = "warn")]
    pub least_action: Action,
    /// Only this tenant's sessions; left out: everybody's.
    pub tenant: Option<Tenant>,
    /// Only sessions that have all of these.
    #[serde(default)]
    pub labels: Labels,
    /// Verdicts of shadow mode and of snoozed sessions too.
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
    /// The keys of an entry, for the check of unknown keys.
    pub const KEYS: &'static [&'static str] = &[
        "name",
        "url",
        "format",
        "method",
        "headers",
        "body",
        "secret",
        "least_action",
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
}

/// What the body is like where no template says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    #[default]
    CloudEvents,
    Slack,
    Discord,
}

/// A text, or where a secret one is kept.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum TextOrSecret {
    Plain(String),
    Secret(SecretSource),
}

/// Where a secret is kept: never in the configuration itself.
#[derive(Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum SecretSource {
    Environment { env: String },
    File { file: PathBuf },
}

/// A secret that cannot be had. Says where it was sought, never what it is.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("the environment variable {0} is not set, or not text")]
    Environment(String),
    #[error("cannot read {path}: {why}")]
    File { path: PathBuf, why: std::io::Error },
    #[error("it is empty")]
    Empty,
}

impl SecretSource {
    /// A line end at the end is not part of it.
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
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(text.to_owned())
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

/// A plain text may still hold a token that somebody wrote there.
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

/// Receivers are asked to answer at once and to work later.
fn timeout_secs_max() -> u64 {
    10
}

fn retry_millis_min() -> u64 {
    500
}

fn retry_millis_max() -> u64 {
    60_000
}

/// After a day nobody stops an agent because of it.
fn expiry_secs_max() -> u64 {
    24 * 60 * 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_where_it_is_kept_and_shown_nowhere() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "whsec_c2VjcmV0\n").unwrap();
        let entry = format!(
            "name = 'a'\nurl = 'https://x/token'\nsecret = {{ file = {:?} }}",
            file.path()
        );
        let settings: Settings = toml::from_str(&entry).unwrap();
        assert_eq!(
            settings.secret.clone().unwrap().read().unwrap(),
            "whsec_c2VjcmV0"
        );
        let shown = format!("{settings:?}");
        assert!(!shown.contains("c2VjcmV0") && !shown.contains("token"));
    }

    #[test]
    fn a_secret_that_cannot_be_had_is_named_by_its_place() {
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
    fn a_secret_cannot_stand_in_the_configuration() {
        let entry = "name = 'a'\nurl = 'https://x'\nsecret = 'whsec_c2VjcmV0'";
        assert!(toml::from_str::<Settings>(entry).is_err());
    }
}
