//! The schema of the database, and how connections are opened.

use std::{path::Path, time::Duration};

use rusqlite::{
    Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, config::DbConfig,
};

use super::{
    dir::{StoreDir, StoreError},
    record,
    recovery::read_removed,
};
use crate::domain::VerdictId;

/// Schema versions, oldest first. A database of an older version is brought up to date
/// when it is opened; one of a newer version is refused.
const SCHEMAS: &[&str] = &[
    include_str!("schema-1.sql"),
    include_str!("schema-2.sql"),
    include_str!("schema-3.sql"),
];
pub(super) const SCHEMA_VERSION: i64 = SCHEMAS.len() as i64;
/// "Unsk", so that `file unstuck.db` and other programs can tell what it is.
const APPLICATION_ID: i64 = 0x556e_736b;

/// The write-ahead log is copied into the database when it has this many pages of 4 KiB.
const CHECKPOINT_PAGES: i64 = 1_000;
/// The file of the write-ahead log is cut to this size after a checkpoint.
pub(super) const WAL_BYTES: i64 = 8 * 1024 * 1024;
/// The page cache of the writer, in KiB.
const CACHE_KIB: i64 = 8 * 1024;

/// Starts a transaction that writes.
pub(super) fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// How long a commit waits for another program that writes to the database, such as
/// `sqlite3`. Below `store.sync_secs_max`.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn configure(connection: &Connection, is_new: bool) -> rusqlite::Result<()> {
    if is_new {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Whether closing the last connection copies the write-ahead log into the database and
/// deletes it.
pub(super) fn set_checkpoint_on_close(
    connection: &Connection,
    is_wanted: bool,
) -> rusqlite::Result<()> {
    let setting = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    connection.set_db_config(setting, !is_wanted)?;
    Ok(())
}

/// Applies the schemas that the database does not have yet. A new one has no verdicts up
/// to `begins_after`.
pub(super) fn migrate(
    connection: &Connection,
    path: &Path,
    begins_after: VerdictId,
) -> Result<(), StoreError> {
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(database_error(path))?;
    check_schema_version(found, path)?;
    let applied = usize::try_from(found).unwrap_or(0);
    for (index, schema) in SCHEMAS.iter().enumerate().skip(applied) {
        let version = index + 1;
        let first = match version {
            1 => format!(
                "PRAGMA application_id = {APPLICATION_ID};
                 INSERT INTO chain VALUES (1, 0, x'{:064}', x'{:032x}', x'{:032}');",
                0, begins_after.0, 0
            ),
            3 => {
                let since = data_since(connection).map_err(database_error(path))?;
                format!("INSERT INTO meta VALUES ('{DATA_SINCE}', '{since}');")
            }
            _ => String::new(),
        };
        let sql =
            format!("BEGIN IMMEDIATE; {schema} {first} PRAGMA user_version = {version}; COMMIT;");
        connection
            .execute_batch(&sql)
            .map_err(database_error(path))?;
    }
    Ok(())
}

/// The key in `meta` of the time before which there are no data.
pub(super) const DATA_SINCE: &str = "data_since_ms";

/// The key in `meta` of the time when a process last used the database.
pub(super) const LAST_RUN: &str = "last_run_ms";

/// The key in `meta` of the time when saved sessions were last removed because the files
/// were too large.
pub(super) const SESSIONS_REMOVED: &str = "sessions_removed_ms";

/// The time in milliseconds before which a database has no data: when it was created, or
/// when the last removed record was issued.
fn data_since(connection: &Connection) -> rusqlite::Result<i64> {
    let (.., removed) = read_removed(connection)?;
    Ok(record::millis(removed.time()).0)
}

fn check_schema_version(found: i64, path: &Path) -> Result<(), StoreError> {
    if found > SCHEMA_VERSION {
        return Err(StoreError::NewerSchema {
            path: path.to_owned(),
            found,
            known: SCHEMA_VERSION,
        });
    }
    Ok(())
}

/// Opens the database for reading only. If `is_exclusive`, nothing is written beside it
/// either, so that it can be read on a full or read-only disk; no process may use it then.
pub(super) fn open_read_only(dir: &StoreDir, is_exclusive: bool) -> Result<Connection, StoreError> {
    let path = dir.database();
    let opened = if is_exclusive {
        open_exclusive(dir, &path)
    } else {
        Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    };
    let connection = opened.map_err(database_error(&path))?;
    check_version_of(&connection, &path)?;
    Ok(connection)
}

fn open_exclusive(dir: &StoreDir, path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    if !dir.has_wal() {
        let uri = format!("file:{}?immutable=1", percent_encode(path));
        return Connection::open_with_flags(uri, flags);
    }
    // The directory is locked, so the file needs no lock, which a read-only file could not
    // have. In the exclusive mode the index of the write-ahead log is in memory.
    let connection = Connection::open_with_flags_and_vfs(path, flags, c"unix-none")?;
    set_checkpoint_on_close(&connection, false)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(connection)
}

/// Refuses a database of a newer schema, and one without a schema.
pub(super) fn check_version_of(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(database_error(path))?;
    check_schema_version(found, path)?;
    if found == 0 {
        return Err(StoreError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(())
}

fn percent_encode(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    const KEPT: percent_encoding::AsciiSet = percent_encoding::NON_ALPHANUMERIC
        .remove(b'/')
        .remove(b'.')
        .remove(b'-')
        .remove(b'_');
    percent_encoding::percent_encode(path.as_os_str().as_bytes(), &KEPT).to_string()
}

/// Tells damage from a disk that cannot be used.
pub(super) fn database_error(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    move |source| match source.sqlite_error_code() {
        // Without a code a value has the wrong type or length.
        None | Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::damaged(&path, source.to_string())
        }
        _ => StoreError::Database {
            path: path.clone(),
            source,
        },
    }
}

/// Whether the error means that the disk cannot be written now: it may be later.
pub(super) fn is_unwritable(error: &StoreError) -> bool {
    match error {
        StoreError::Io { .. } => true,
        StoreError::Database { source, .. } => matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::ReadOnly
                    | ErrorCode::CannotOpen
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::PermissionDenied
            )
        ),
        StoreError::InUse { .. }
        | StoreError::Damaged { .. }
        | StoreError::NewerSchema { .. }
        | StoreError::Empty { .. } => false,
    }
}
