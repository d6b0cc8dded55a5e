//! Opens the database of a store, also on a disk that cannot be written.

use std::{fs::File, time::SystemTime};

use super::{
    database::Database,
    dir::{StoreDir, StoreError},
    recovery::{Recovery, check_head, missing, recover},
    schema::{is_unwritable, open_read_only},
};

/// A database as far as it could be opened.
pub(super) struct OpenedDatabase {
    /// `None`: the disk is full or read-only. The writer tries again.
    pub database: Option<Database>,
    pub recovery: Recovery,
    /// Why it cannot be written.
    pub failure: Option<String>,
}

/// Opens the database, or if the disk cannot be written reads what is there.
pub(super) fn open_database(
    dir: &StoreDir,
    tombstones_max: usize,
    now: SystemTime,
) -> Result<(File, OpenedDatabase), StoreError> {
    dir.create().map_err(StoreError::io(&dir.0))?;
    let lock = dir.lock()?;
    let failure = match Database::open(dir, now) {
        Ok(database) => {
            let opened = OpenedDatabase {
                recovery: database.recover(tombstones_max)?,
                database: Some(database),
                failure: None,
            };
            return Ok((lock, opened));
        }
        Err(error) if is_unwritable(&error) => error,
        Err(error) => return Err(error),
    };
    let recovery = match open_read_only(dir, true) {
        Ok(connection) => {
            let recovery = recover(&connection, &dir.database(), tombstones_max)?;
            check_head(&connection, dir, &recovery.head)?;
            recovery
        }
        Err(StoreError::Empty { .. }) => never_written(dir)?,
        Err(_) if !dir.database().exists() => never_written(dir)?,
        Err(error) => return Err(error),
    };
    let opened = OpenedDatabase {
        database: None,
        recovery,
        failure: Some(failure.to_string()),
    };
    Ok((lock, opened))
}

/// The state of a database that has no records, unless it should have some.
fn never_written(dir: &StoreDir) -> Result<Recovery, StoreError> {
    match missing(dir) {
        StoreError::Empty { .. } => Ok(Recovery::empty()),
        damaged => Err(damaged),
    }
}
