//! The user's own directories, by the XDG specification: a relative variable is ignored.

use std::{env, path::PathBuf};

/// `$XDG_CONFIG_HOME/unstuck`
pub(super) fn config_dir() -> Option<PathBuf> {
    under("XDG_CONFIG_HOME", ".config")
}

/// `$XDG_STATE_HOME/unstuck`
pub(super) fn state_dir() -> Option<PathBuf> {
    under("XDG_STATE_HOME", ".local/state")
}

/// `$XDG_RUNTIME_DIR/unstuck`
pub(super) fn runtime_dir() -> Option<PathBuf> {
    Some(absolute("XDG_RUNTIME_DIR")?.join("unstuck"))
}

/// The user's own configuration file.
pub(super) fn config_file() -> Option<PathBuf> {
    Some(config_dir()?.join("unstuck.toml"))
}

pub(super) fn home() -> Option<PathBuf> {
    absolute("HOME")
}

/// The directory that a variable names.
pub(super) fn absolute(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os(variable)?);
    path.is_absolute().then_some(path)
}

fn under(variable: &str, default: &str) -> Option<PathBuf> {
    let base = absolute(variable).or_else(|| Some(home()?.join(default)))?;
    Some(base.join("unstuck"))
}
