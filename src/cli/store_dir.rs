//! The store directory that a command works on.

use std::path::PathBuf;

use super::{CliError, ConfigArgs};
use crate::store::{self, StoreError};

#[derive(Debug, clap::Args)]
pub(super) struct StoreDirArgs {
    /// The store directory, instead of the configured one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

impl StoreDirArgs {
    pub fn resolve(&self) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let layers = self.config.load_layers()?;
        let settings: store::Settings = layers.section("store").map_err(CliError::usage)?;
        if settings.dir.as_os_str().is_empty() {
            return Err(CliError::usage(
                "store.dir is empty: state is kept in memory only",
            ));
        }
        Ok(settings.dir)
    }
}

/// A missing audit log, or one of a newer version, is wrong usage; any other error is a
/// failure.
pub(super) fn store_error(error: StoreError) -> CliError {
    match error {
        StoreError::Empty { .. } | StoreError::NewerSchema { .. } => CliError::usage(error),
        error => CliError::failed(error),
    }
}
