//! The file of contexts: the services that an operator works with, by name.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{CliError, user_dirs};
use crate::atomic_file::{self, Durability};

/// The address and the credentials of a service. The token itself is never in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Context {
    pub server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
}

/// `$XDG_CONFIG_HOME/unstuck/contexts.toml`
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ContextsFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

impl ContextsFile {
    /// Empty if there is no file.
    pub fn load() -> Result<Self, CliError> {
        match path() {
            Some(path) => Self::read(&path),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, CliError> {
        let unusable =
            |why: String| CliError::usage(format!("cannot read {}: {why}", path.display()));
        match fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| unusable(error.message().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    pub fn save(&self) -> Result<(), CliError> {
        let why = "there is no place for contexts: set XDG_CONFIG_HOME or HOME";
        let path = path().ok_or_else(|| CliError::usage(why))?;
        let text = toml::to_string(self).map_err(CliError::failed)?;
        replace_file(&path, &text)
            .map_err(|error| CliError::failed(format!("cannot write {}: {error}", path.display())))
    }

    /// A context by its name.
    pub fn get(&self, name: &str) -> Result<&Context, CliError> {
        self.contexts
            .get(name)
            .ok_or_else(|| CliError::not_found(format!("there is no context {name:?}")))
    }

    /// The current context. `None`: none is chosen.
    pub fn current(&self) -> Result<Option<&Context>, CliError> {
        let name = self.current.as_deref();
        name.map(|name| self.get(name)).transpose()
    }
}

fn path() -> Option<PathBuf> {
    Some(user_dirs::config_dir()?.join("contexts.toml"))
}

/// Only the owner may read the file: it names the files of secrets.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    atomic_file::replace(path, text.as_bytes(), 0o600, Durability::Synced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("unstuck/contexts.toml");
        let context = Context {
            server: "https://unstuck.example:50551".to_owned(),
            token_file: Some("/run/secrets/token".into()),
            ..Default::default()
        };
        let file = ContextsFile {
            current: Some("prod".to_owned()),
            contexts: [("prod".to_owned(), context)].into(),
        };
        assert_eq!(ContextsFile::read(&path).unwrap(), ContextsFile::default());
        replace_file(&path, &toml::to_string(&file).unwrap()).unwrap();
        assert_eq!(ContextsFile::read(&path).unwrap(), file);
        // A key that is misspelt, or a token that does not belong here, is not ignored.
        fs::write(&path, "[contexts.prod]\nserver = 'x'\ntoken = 'secret'").unwrap();
        let error = ContextsFile::read(&path).unwrap_err();
        assert_eq!(error.code, 2);
        assert!(error.message.contains("unknown field `token`"), "{error}");
        assert!(!error.message.contains("secret"), "{error}");
    }
}
