//! Copies a database while a service uses it, and puts a copy back.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
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
    if file.exists() {
        let exists = std::io::ErrorKind::AlreadyExists;
        return Err(StoreError::io(file)(exists.into()));
    }
    let lock = dir.lock_for_reading()?;
    let source = schema::open_read_only(&dir, lock.is_some())?;
    let copied = copy(&source, file).and_then(|()| check(file));
    if copied.is_err() {
        // A part of a copy must not pass for one.
        let _ = fs::remove_file(file);
    }
    copied
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
    // One file, without a write-ahead log beside it.
    target
        .pragma_update(None, "journal_mode", "DELETE")
        .map_err(database_error(file))?;
    drop(target);
    // As private as the directory of the store.
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).map_err(StoreError::io(file))?;
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

/// What a restore would do.
#[derive(Debug)]
pub struct RestorePlan {
    dir: StoreDir,
    file: PathBuf,
    /// The copy that is put back.
    pub copy: LogVerification,
    /// Whether the directory has a database, which the copy replaces.
    pub replaces: bool,
    /// Terminations in force now that are not in the copy, by session, and agent if it is
    /// only a sub-agent. `None`: the database cannot be read, so that is unknown.
    pub lifted: Option<Vec<String>>,
    /// Holds the directory while it is replaced.
    _lock: fs::File,
}

/// Checks whether the copy can be put into the directory. The service must be stopped.
pub fn plan_restore(dir: &Path, file: &Path) -> Result<RestorePlan, StoreError> {
    let dir = StoreDir(dir.to_owned());
    dir.create().map_err(StoreError::io(&dir.0))?;
    let lock = dir.lock()?;
    let copy = check(file)?;
    let replaces = dir.database().exists();
    let lifted = if replaces {
        lifted_by_restore(&dir, file)?
    } else {
        Some(Vec::new())
    };
    Ok(RestorePlan {
        dir,
        file: file.to_owned(),
        copy,
        replaces,
        lifted,
        _lock: lock,
    })
}

impl RestorePlan {
    /// Replaces the database by the copy.
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
        // The old write-ahead log must not be applied to the new database.
        for suffix in ["-wal", "-shm"] {
            let mut name = path.clone().into_os_string();
            name.push(suffix);
            match fs::remove_file(name) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io(error));
                }
                _ => {}
            }
        }
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

/// The terminations in the directory's database that the copy does not have. `None`: it
/// cannot be read, which is what a restore is for.
fn lifted_by_restore(dir: &StoreDir, file: &Path) -> Result<Option<Vec<String>>, StoreError> {
    let Some(current) = current_terminations(dir) else {
        return Ok(None);
    };
    let copied = terminations(&open_copy(file)?).map_err(database_error(&dir.database()))?;
    let gone = current
        .into_iter()
        .filter(|termination| !copied.contains(termination));
    Ok(Some(
        gone.map(|(session, agent)| describe(&session, &agent))
            .collect(),
    ))
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
