//! The connection of the writer: opening, commits and withdrawals.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use rusqlite::{Connection, Transaction, ffi};

use super::{
    chain::TombstoneSum,
    dir::{FileIdentity, HeadFile, StoreDir, StoreError},
    record,
    recovery::{self, Recovery, check_end, missing, read_chain},
    schema::{begin, configure, database_error, migrate, set_checkpoint_on_close},
    transaction::{ChainState, find_record, is_obsolete},
};
use crate::domain::{ChainHead, Effect, EncodedRecord, VerdictId, VerdictRecord};

/// Why a write is not durable.
#[derive(Debug)]
pub(super) enum CommitError {
    /// The disk is full, read-only or gone, or the database cannot be opened. The write
    /// may be retried.
    Refused(String),
    /// The transaction was committed, but to files that are no longer in the directory.
    /// The write may be retried, and operator actions in it must be undone.
    Detached(String),
    /// The sync failed. The content of the disk is unknown.
    Unsynced(String),
}

impl From<rusqlite::Error> for CommitError {
    fn from(error: rusqlite::Error) -> Self {
        let extended = error.sqlite_error().map(|error| error.extended_code);
        match extended {
            Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC) => {
                Self::Unsynced(error.to_string())
            }
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// The connection of the writer.
pub(super) struct Database {
    pub(super) connection: Connection,
    pub(super) dir: StoreDir,
    files: OpenedFiles,
    head_file: HeadFile,
    /// The last write of `head` failed. That is logged once.
    is_head_stale: bool,
    pub(super) head: ChainHead,
    pub(super) tombstone_sum: TombstoneSum,
}

/// The files that were opened, to notice when they are deleted or replaced.
struct OpenedFiles(Vec<(PathBuf, FileIdentity)>);

impl OpenedFiles {
    fn of(dir: &StoreDir) -> Result<Self, StoreError> {
        let identify = |path: PathBuf| {
            let identity = FileIdentity::of(&path).map_err(StoreError::io(&path))?;
            Ok((path, identity))
        };
        let files: Result<_, StoreError> = [dir.database(), dir.wal()]
            .map(identify)
            .into_iter()
            .collect();
        files.map(Self)
    }

    /// Fails if one was deleted or replaced: commits would go to a file that cannot be
    /// opened again.
    fn check(&self) -> Result<(), String> {
        for (path, opened) in &self.0 {
            match FileIdentity::of(path) {
                Ok(identity) if identity == *opened => {}
                Ok(_) => {
                    return Err(format!(
                        "{} was replaced while the service runs; restart it",
                        path.display()
                    ));
                }
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        Ok(())
    }
}

impl Database {
    /// Opens the database for writing, and creates or upgrades it if necessary.
    /// A new one has no verdicts from before `now`.
    pub fn open(dir: &StoreDir, now: SystemTime) -> Result<Self, StoreError> {
        let path = dir.database();
        let is_new = !path.exists();
        if is_new && let damaged @ StoreError::Damaged { .. } = missing(dir) {
            return Err(damaged);
        }
        let connection = Connection::open(&path).map_err(database_error(&path))?;
        // Nothing is written before the end of the log has been checked, not even by
        // closing the connection: a refused database is left as it was found.
        set_checkpoint_on_close(&connection, false).map_err(database_error(&path))?;
        check_end(&connection, dir)?;
        configure(&connection, is_new).map_err(database_error(&path))?;
        migrate(&connection, &path, VerdictId::lower_bound_at(now))?;
        if is_new {
            dir.sync().map_err(StoreError::io(&dir.0))?;
        }
        let files = OpenedFiles::of(dir)?;
        let (head, tombstone_sum) = read_chain(&connection).map_err(database_error(&path))?;
        let head_file = HeadFile::open(dir).map_err(StoreError::io(&dir.head()))?;
        let mut database = Self {
            connection,
            dir: dir.clone(),
            files,
            head_file,
            is_head_stale: false,
            head,
            tombstone_sum,
        };
        database
            .withdraw(&dir.read_withdrawn())
            .map_err(|error| commit_error(&path, error))?;
        dir.forget_withdrawn();
        database.write_head();
        Ok(database)
    }

    pub fn recover(&self, tombstones_max: usize) -> Result<Recovery, StoreError> {
        let path = self.dir.database();
        let mut recovery = recovery::recover(&self.connection, &path, tombstones_max)?;
        recovery::read_additions(&self.connection, &mut recovery.state)
            .map_err(database_error(&path))?;
        set_checkpoint_on_close(&self.connection, true).map_err(database_error(&path))?;
        Ok(recovery)
    }

    pub fn head(&self) -> ChainHead {
        self.head
    }

    /// Writes the verdicts in one transaction and syncs it. An empty batch tests whether
    /// writes succeed. Returns the position of each record.
    pub fn append(
        &mut self,
        batch: &[VerdictRecord],
        text: bool,
    ) -> Result<Vec<ChainHead>, CommitError> {
        let records = batch.iter().map(|issued| {
            let encoded = record::encode(issued, text);
            (issued.verdict.id, issued.effect, encoded)
        });
        self.append_records(records, false)
    }

    /// Writes terminations that were refused before. If `may_exist`, some may have been
    /// committed; see `Detached`.
    pub fn append_refused(
        &mut self,
        batch: &[&EncodedRecord],
        may_exist: bool,
    ) -> Result<Vec<ChainHead>, CommitError> {
        let records = batch.iter().filter_map(|refused| {
            let encoded = record::encoded(&refused.bytes)?;
            Some((refused.id, Effect::Terminated, encoded))
        });
        self.append_records(records, may_exist)
    }

    /// Writes terminations that were lost while writes failed. Those that are on disk are
    /// skipped, and so are those that a reset has lifted meanwhile.
    pub fn append_lost(&mut self, batch: &[VerdictRecord], text: bool) -> Result<(), CommitError> {
        let mut lost = Vec::new();
        for issued in batch {
            let encoded = record::encode(issued, text);
            if !is_obsolete(&self.connection, issued.verdict.id, &encoded.columns)? {
                lost.push((issued.verdict.id, Effect::Terminated, encoded));
            }
        }
        self.append_records(lost.into_iter(), false).map(drop)
    }

    fn append_records(
        &mut self,
        records: impl Iterator<Item = (VerdictId, Effect, record::RecordRow)>,
        may_exist: bool,
    ) -> Result<Vec<ChainHead>, CommitError> {
        self.files.check().map_err(CommitError::Refused)?;
        let mut state = ChainState {
            head: self.head,
            tombstone_sum: self.tombstone_sum,
        };
        let mut positions = Vec::new();
        let transaction = begin(&mut self.connection)?;
        for (id, effect, encoded) in records {
            if may_exist && let Some(position) = find_record(&transaction, id)? {
                positions.push(position);
                continue;
            }
            state.append(&transaction, id, effect, &encoded)?;
            positions.push(state.head);
        }
        state.save_sum(&transaction)?;
        // With this sync (`synchronous = FULL`) the verdicts of the batch are durable.
        transaction.commit()?;
        self.committed(state)?;
        Ok(positions)
    }

    /// Starts a transaction, if the files are still those that were opened.
    pub fn begin_checked(&mut self) -> Result<Transaction<'_>, CommitError> {
        self.files.check().map_err(CommitError::Refused)?;
        Ok(begin(&mut self.connection)?)
    }

    /// Undoes operator actions that were refused although their commit succeeded later:
    /// tombstones that they lifted are in force again. Unknown ids are ignored.
    pub fn withdraw(&mut self, ids: &[VerdictId]) -> Result<(), CommitError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut state = ChainState {
            head: self.head,
            tombstone_sum: self.tombstone_sum,
        };
        let transaction = begin(&mut self.connection)?;
        for id in ids {
            state.withdraw(&transaction, *id)?;
        }
        state.save_sum(&transaction)?;
        transaction.commit()?;
        self.committed(state)
    }

    fn committed(&mut self, state: ChainState) -> Result<(), CommitError> {
        self.head = state.head;
        self.tombstone_sum = state.tombstone_sum;
        // A file that was removed during the commit does not make it durable.
        self.files.check().map_err(CommitError::Detached)?;
        self.write_head();
        Ok(())
    }

    /// Writes the file `head`. An older one is harmless as long as nothing is lost, so a
    /// commit is durable without it.
    fn write_head(&mut self) {
        let written = self.head_file.write(&self.head);
        if let Err(error) = &written
            && !self.is_head_stale
        {
            tracing::error!(%error, "cannot write the file head; a missing end of the log would not be noticed");
        }
        self.is_head_stale = written.is_err();
    }

    pub fn sync_head(&self) {
        // A stale head is harmless; see `HeadFile::write`.
        let _ = self.head_file.sync();
    }
}

fn commit_error(path: &Path, error: CommitError) -> StoreError {
    let (CommitError::Refused(why) | CommitError::Detached(why) | CommitError::Unsynced(why)) =
        error;
    StoreError::io(path)(std::io::Error::other(why))
}
