//! Copies a database while a service uses it, and puts a copy back.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, OpenOptionsExt, chown},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, backup};

use super::{
    dir::{HeadFile, StoreDir, StoreError},
    record,
    recovery::{check_head, recover},
    schema::{self, database_error},
    verify::{LogVerification, verify_connection},
};
use crate::domain::SessionId;

/// Writes a copy of the database to a file that must not exist. A running service goes
/// on. The copy is checked like `verify` checks a log.
pub fn back_up(dir: &Path, file: &Path) -> Result<LogVerification, StoreError> {
    let dir = StoreDir(dir.to_owned());
    if !dir.database().exists() {
        return Err(StoreError::Empty { path: dir.0 });
    }
    // Create the file before anything is in it: it is as private as the store's directory.
    fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(StoreError::io(file))?;
    let copied = copy_and_check(&dir, file);
    if copied.is_err() {
        // A part of a copy must not pass for one.
        let _ = fs::remove_file(file);
    }
    copied
}

fn copy_and_check(dir: &StoreDir, file: &Path) -> Result<LogVerification, StoreError> {
    let lock = dir.lock_for_reading()?;
    let source = schema::open_read_only(dir, lock.is_some())?;
    copy(&source, file)?;
    check(file)
}

fn copy(source: &Connection, file: &Path) -> Result<(), StoreError> {
    let mut target = Connection::open(file).map_err(database_error(file))?;
    let copying = backup::Backup::new(source, &mut target).map_err(database_error(file))?;
    // All pages in one step, because a commit between two steps would restart it. A
    // running service can commit meanwhile; its write-ahead log grows until this is done.
    let ended = copying.step(-1).map_err(database_error(file))?;
    if !matches!(ended, backup::StepResult::Done) {
        return Err(StoreError::io(file)(std::io::Error::other(
            "the database is locked",
        )));
    }
    drop(copying);
    // The copy is one file: it has no write-ahead log beside it.
    target
        .pragma_update(None, "journal_mode", "DELETE")
        .map_err(database_error(file))?;
    drop(target);
    let written = fs::File::open(file).and_then(|file| file.sync_all());
    written.map_err(StoreError::io(file))
}

/// Checks a copy: its schema, chain and terminations.
fn check(file: &Path) -> Result<LogVerification, StoreError> {
    let connection = open_copy(file)?;
    let verified = verify_connection(&connection, file)?;
    let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
    Ok(LogVerification { bytes, ..verified })
}

fn open_copy(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = Connection::open_with_flags(file, flags).map_err(database_error(file))?;
    schema::check_version_of(&connection, file)?;
    Ok(connection)
}

/// A restore that has been checked and not made yet.
#[derive(Debug)]
pub struct RestorePlan {
    dir: StoreDir,
    file: PathBuf,
    /// The copy that is put back.
    pub copy: LogVerification,
    /// Whether the directory is not empty: the copy replaces what is there.
    pub replaces: bool,
    /// `None`: the database cannot be read, so that is unknown.
    pub changes: Option<RestoreChanges>,
    /// Holds the directory while it is replaced.
    _lock: fs::File,
}

/// The terminations that a restore changes, by session, and agent if it is only a
/// sub-agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RestoreChanges {
    /// In force now, and not in the copy.
    pub lifted: Vec<String>,
    /// In force in the copy, and not now.
    pub terminated: Vec<String>,
}

/// Checks whether the copy can be put into the directory. The service must be stopped.
pub fn plan_restore(dir: &Path, file: &Path) -> Result<RestorePlan, StoreError> {
    let dir = StoreDir(dir.to_owned());
    dir.create().map_err(StoreError::io(&dir.0))?;
    let lock = dir.lock()?;
    let copy = check(file)?;
    let mut entries = fs::read_dir(&dir.0).map_err(StoreError::io(&dir.0))?;
    let replaces = entries.next().is_some();
    let has_database = dir.database().exists() || dir.has_wal() || dir.read_head().is_some();
    let changes = if has_database {
        changes_by_restore(&dir, file)?
    } else {
        Some(RestoreChanges::default())
    };
    Ok(RestorePlan {
        dir,
        file: file.to_owned(),
        copy,
        replaces,
        changes,
        _lock: lock,
    })
}

impl RestorePlan {
    /// Replaces the database by the copy. The former one is kept as `replaced.db`: its
    /// write-ahead log must not be applied to the copy, and has its last records.
    pub fn run(self) -> Result<(), StoreError> {
        let Self {
            dir, file, copy, ..
        } = self;
        let path = dir.database();
        let new = path.with_extension("db-restored");
        let io = |error| StoreError::io(&path)(error);
        fs::copy(&file, &new).map_err(io)?;
        fs::File::open(&new)
            .and_then(|new| new.sync_all())
            .map_err(io)?;
        // Until the copy is in place, a start is refused for lack of records.
        let (former, former_wal) = (dir.0.join("replaced.db"), dir.0.join("replaced.db-wal"));
        for (from, to) in [(path.clone(), &former), (dir.wal(), &former_wal)] {
            for renamed in [fs::remove_file(to), fs::rename(from, to)] {
                renamed.or_else(ignore_missing).map_err(io)?;
            }
        }
        let index = path.with_extension("db-shm");
        fs::remove_file(index).or_else(ignore_missing).map_err(io)?;
        fs::rename(&new, &path).map_err(io)?;
        let head = HeadFile::open(&dir).map_err(io)?;
        // The service may run as another user than this command.
        let owner = fs::metadata(&dir.0).map_err(io)?;
        for file in [&path, &dir.head()] {
            chown(file, Some(owner.uid()), Some(owner.gid())).map_err(io)?;
        }
        head.write(&copy.head)
            .and_then(|()| head.sync())
            .map_err(io)?;
        dir.forget_withdrawn();
        dir.sync().map_err(io)
    }
}

fn ignore_missing(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Compares the terminations of the directory's database with those of the copy. `None`: it
/// cannot be read, which is what a restore is for.
fn changes_by_restore(dir: &StoreDir, file: &Path) -> Result<Option<RestoreChanges>, StoreError> {
    let Some(current) = current_terminations(dir) else {
        return Ok(None);
    };
    let copied = terminations(&open_copy(file)?).map_err(database_error(&dir.database()))?;
    let names = |found: &BTreeSet<(SessionId, String)>, other: &BTreeSet<(SessionId, String)>| {
        let only = found.difference(other);
        only.map(|(session, agent)| describe(session, agent))
            .collect()
    };
    Ok(Some(RestoreChanges {
        lifted: names(&current, &copied),
        terminated: names(&copied, &current),
    }))
}

/// The terminations in the directory's database. `None`: it is damaged.
fn current_terminations(dir: &StoreDir) -> Option<BTreeSet<(SessionId, String)>> {
    let connection = schema::open_read_only(dir, true).ok()?;
    let recovery = recover(&connection, &dir.database(), usize::MAX).ok()?;
    check_head(&connection, dir, &recovery.head).ok()?;
    terminations(&connection).ok()
}

fn terminations(connection: &Connection) -> rusqlite::Result<BTreeSet<(SessionId, String)>> {
    let mut statement =
        connection.prepare("SELECT body FROM tombstones WHERE lifted_by IS NULL")?;
    let mut rows = statement.query([])?;
    let mut found = BTreeSet::new();
    while let Some(row) = rows.next()? {
        let body = row.get_ref(0)?.as_blob()?;
        if let Some((session, agent)) = record::subject(body) {
            found.insert((session, agent.as_str().to_owned()));
        }
    }
    Ok(found)
}

fn describe(session: &SessionId, agent: &str) -> String {
    let tenant = session.tenant();
    let mut text = if tenant.is_default() {
        session.to_string()
    } else {
        format!("{}/{session}", tenant.name())
    };
    if !agent.is_empty() {
        text += &format!(" (agent {agent})");
    }
    text
}
