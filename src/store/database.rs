//! The database: schema, commits, recovery, retention.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior,
    config::DbConfig,
    ffi, params,
    types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef},
};

use super::{
    chain::{START, TombstoneSum, next_head},
    dir::{FileIdentity, HeadFile, StoreDir, StoreError},
    record::{self, RecordColumns},
    sessions,
    tenant_share::tenant_share,
};
use crate::domain::{
    ChainHash, ChainHead, Effect, EncodedRecord, RecoveredState, SessionId, Tenant, VerdictId,
    VerdictRecord,
};

/// Schema versions, oldest first. A database of an older version is brought up to date
/// when it is opened; one of a newer version is refused.
const SCHEMAS: &[&str] = &[include_str!("schema-1.sql")];
pub(super) const SCHEMA_VERSION: i64 = SCHEMAS.len() as i64;
/// "Unsk", so that `file unstuck.db` and other programs can tell what it is.
const APPLICATION_ID: i64 = 0x556e_736b;

/// The write-ahead log is copied into the database when it has this many pages of 4 KiB.
const CHECKPOINT_PAGES: i64 = 1_000;
/// The file of the write-ahead log is cut to this size after a checkpoint.
const WAL_BYTES: i64 = 8 * 1024 * 1024;
/// The page cache of the writer, in KiB.
const CACHE_KIB: i64 = 8 * 1024;
/// The most rows that one transaction of the retention removes, about 10 ms of work.
/// Commits run between two of them.
const RETENTION_SLICE: usize = 1_000;
/// The most pages that are returned to the file system at a time.
const VACUUM_PAGES: usize = 1_000;
/// What the write-ahead log may have of `store.bytes_max`.
const WAL_SHARE: u64 = WAL_BYTES as u64;
/// A lifted tombstone is kept for this long, because a reset that is refused while its
/// commit is on its way must be undone.
const LIFTED_KEPT: Duration = Duration::from_secs(60 * 60);

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

/// The retention limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub verdicts_age_max: Duration,
    pub bytes_max: u64,
    pub tombstone_age_max: Duration,
    pub tombstones_max: usize,
}

/// The connection of the writer.
pub(super) struct Database {
    connection: Connection,
    dir: StoreDir,
    files: OpenedFiles,
    head_file: HeadFile,
    /// The last write of `head` failed. That is logged once.
    is_head_stale: bool,
    head: ChainHead,
    tombstone_sum: TombstoneSum,
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

/// What a database contained when it was opened.
pub(super) struct Recovery {
    pub state: RecoveredState,
    pub head: ChainHead,
    /// The greatest id of a removed verdict.
    pub retained_after: VerdictId,
}

impl Recovery {
    /// Of a database without records.
    pub fn empty() -> Self {
        Self {
            state: RecoveredState::default(),
            head: START,
            retained_after: VerdictId(0),
        }
    }
}

impl Database {
    /// Opens the database for writing, and creates or upgrades it if necessary.
    pub fn open(dir: &StoreDir) -> Result<Self, StoreError> {
        let path = dir.database();
        let is_new = !path.exists();
        if is_new && let Some(head) = dir.read_head().filter(|head| head.record > 0) {
            let why = format!(
                "it is missing, and the file head says that it has {} records",
                head.record
            );
            return Err(StoreError::damaged(&path, why));
        }
        let connection = Connection::open(&path).map_err(database_error(&path))?;
        configure(&connection, is_new).map_err(database_error(&path))?;
        migrate(&connection, &path)?;
        if is_new {
            dir.sync().map_err(StoreError::io(&dir.0))?;
        }
        let files = OpenedFiles::of(dir)?;
        let (head, tombstone_sum) = read_chain(&connection).map_err(database_error(&path))?;
        check_head(&connection, dir, &head)?;
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
        recover(&self.connection, &self.dir.database(), tombstones_max)
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
        is_retry: bool,
    ) -> Result<Vec<ChainHead>, CommitError> {
        self.files.check().map_err(CommitError::Refused)?;
        let mut state = ChainState {
            head: self.head,
            tombstone_sum: self.tombstone_sum,
        };
        let mut positions = Vec::with_capacity(batch.len());
        let transaction = begin(&mut self.connection)?;
        for issued in batch {
            // A write that was refused may have been committed; see `Detached`.
            if is_retry && let Some(position) = find_record(&transaction, issued.verdict.id)? {
                positions.push(position);
                continue;
            }
            let encoded = record::encode(issued, text);
            state.append(&transaction, issued, &encoded)?;
            positions.push(state.head);
        }
        state.save_sum(&transaction)?;
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

    /// Removes a slice of what exceeds the limits: old records, then the oldest records
    /// while the files are too large, expired and surplus tombstones. Returns the greatest
    /// id of all removed verdicts, and whether more is to be removed.
    pub fn enforce_retention(
        &mut self,
        retention: &Retention,
        now: SystemTime,
    ) -> Result<(VerdictId, bool), CommitError> {
        let bytes_over = self.used_bytes()? > retention.bytes_max.saturating_sub(WAL_SHARE);
        let oldest = |age: Duration| {
            let since = now.checked_sub(age);
            since.map_or(VerdictId(0), VerdictId::lower_bound_at)
        };
        let mut state = ChainState {
            head: self.head,
            tombstone_sum: self.tombstone_sum,
        };
        let transaction = begin(&mut self.connection)?;
        // Frozen sessions go first: most of what they have heals by itself.
        let sessions_removed = if bytes_over {
            sessions::remove_oldest(&transaction)?
        } else {
            0
        };
        let expired = oldest(retention.verdicts_age_max);
        let records_over = bytes_over && sessions_removed == 0;
        let mut removed = sessions_removed;
        removed += remove_records(&transaction, expired, records_over)?;
        removed += state.remove_tombstones(&transaction, retention, oldest, now)?;
        if removed == 0 && bytes_over {
            // Only tombstones are left: the oldest have to go.
            removed += state.remove_oldest_tombstones(&transaction, RETENTION_SLICE)?;
        }
        let removed_id = read_removed(&transaction)?.2;
        if removed == 0 {
            drop(transaction);
            self.shrink_files(retention)?;
            return Ok((removed_id, false));
        }
        state.save_sum(&transaction)?;
        transaction.commit()?;
        self.tombstone_sum = state.tombstone_sum;
        self.return_pages()?;
        Ok((removed_id, true))
    }

    /// The bytes of the pages in use. The files are larger while they have free pages,
    /// and while a reader keeps the write-ahead log from being emptied; removing more
    /// records would not change that.
    fn used_bytes(&self) -> Result<u64, CommitError> {
        let read = |name: &str| -> rusqlite::Result<u64> {
            let value: i64 = self
                .connection
                .pragma_query_value(None, name, |row| row.get(0))?;
            Ok(u64::try_from(value).unwrap_or(0))
        };
        let pages = read("page_count")?.saturating_sub(read("freelist_count")?);
        Ok(pages * read("page_size")?)
    }

    /// Brings the files to the size of what is in them, if they are too large.
    fn shrink_files(&self, retention: &Retention) -> Result<(), CommitError> {
        if self.dir.bytes() <= retention.bytes_max {
            return Ok(());
        }
        self.return_pages()?;
        self.checkpoint()
    }

    /// Returns free pages at the end of the file to the file system.
    fn return_pages(&self) -> Result<(), CommitError> {
        let sql = format!("PRAGMA incremental_vacuum({VACUUM_PAGES})");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Copies the write-ahead log into the database and empties it.
    pub fn checkpoint(&self) -> Result<(), CommitError> {
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.connection.query_row(sql, [], |_| Ok(()))?;
        Ok(())
    }

    pub fn sync_head(&self) {
        // A stale head is harmless; see `HeadFile::write`.
        let _ = self.head_file.sync();
    }
}

/// The state that a transaction changes, adopted when it is committed.
#[derive(Clone, Copy)]
struct ChainState {
    head: ChainHead,
    tombstone_sum: TombstoneSum,
}

impl ChainState {
    /// Appends a record and applies its effect.
    fn append(
        &mut self,
        transaction: &Transaction<'_>,
        issued: &VerdictRecord,
        encoded: &record::Encoded,
    ) -> rusqlite::Result<()> {
        let id = issued.verdict.id;
        let kind = record::kind(issued.effect);
        self.insert_record(transaction, id, kind, encoded)?;
        let (tenant, session) = (&encoded.columns.tenant, &encoded.columns.session);
        match issued.effect {
            Effect::None => Ok(()),
            Effect::Terminated => {
                if encoded.columns.agent.is_empty() {
                    sessions::remove(transaction, tenant, session)?;
                }
                self.insert_tombstone(transaction, id, &encoded.columns, &encoded.body)
            }
            Effect::Reset => {
                sessions::remove(transaction, tenant, session)?;
                self.lift(transaction, tenant, session, id)
            }
            Effect::Snoozed(_) => {
                let until = encoded.columns.snoozed_until_ms;
                let sql = "INSERT INTO snoozes (verdict_id, tenant, session, until_ms)
                           VALUES (?1, ?2, ?3, ?4)";
                let mut statement = transaction.prepare_cached(sql)?;
                statement.execute(params![IdBlob(id), tenant, session, until])?;
                Ok(())
            }
        }
    }

    fn insert_record(
        &mut self,
        transaction: &Transaction<'_>,
        id: VerdictId,
        kind: u8,
        encoded: &record::Encoded,
    ) -> rusqlite::Result<()> {
        let RecordColumns {
            tenant,
            session,
            agent,
            time_ms,
            detector,
            action,
            shadow,
            operator,
            reason,
            profile,
            wasted_events,
            wasted_tokens,
            wasted_usd,
            labels,
            labels_json,
            snoozed_until_ms: _,
        } = &encoded.columns;
        self.head = next_head(&self.head, id, kind, &encoded.body);
        let sql = "INSERT INTO records (record, verdict_id, kind, tenant, session, agent, time_ms,
                       detector, action, shadow, operator, reason, profile, wasted_events,
                       wasted_tokens, wasted_usd, labels, body, hash)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
                       ?17, ?18, ?19)";
        transaction.prepare_cached(sql)?.execute(params![
            self.head.record as i64,
            IdBlob(id),
            kind,
            tenant,
            session,
            agent,
            time_ms,
            detector,
            action,
            shadow,
            operator,
            reason,
            profile,
            wasted_events,
            wasted_tokens,
            wasted_usd,
            labels_json,
            encoded.body,
            self.head.hash.0,
        ])?;
        let sql = "INSERT INTO record_labels (tenant, name, value, verdict_id)
                   VALUES (?1, ?2, ?3, ?4)";
        for (name, value) in labels {
            let mut statement = transaction.prepare_cached(sql)?;
            statement.execute(params![tenant, name, value, IdBlob(id)])?;
        }
        Ok(())
    }

    fn insert_tombstone(
        &mut self,
        transaction: &Transaction<'_>,
        id: VerdictId,
        columns: &RecordColumns,
        body: &[u8],
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO tombstones (verdict_id, tenant, session, agent, body)
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let RecordColumns {
            tenant,
            session,
            agent,
            ..
        } = columns;
        let mut statement = transaction.prepare_cached(sql)?;
        statement.execute(params![IdBlob(id), tenant, session, agent, body])?;
        self.tombstone_sum.add(id, body);
        Ok(())
    }

    /// Lifts the terminations and snoozes of a session that are older than this reset.
    fn lift(
        &mut self,
        transaction: &Transaction<'_>,
        tenant: &str,
        session: &str,
        reset: VerdictId,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE tombstones SET lifted_by = ?3
                   WHERE tenant = ?1 AND session = ?2 AND lifted_by IS NULL AND verdict_id < ?3
                   RETURNING verdict_id, body";
        let mut statement = transaction.prepare_cached(sql)?;
        let mut rows = statement.query(params![tenant, session, IdBlob(reset)])?;
        while let Some(row) = rows.next()? {
            let (id, body) = tombstone_row(row)?;
            self.tombstone_sum.subtract(id, body);
        }
        let sql = "UPDATE snoozes SET lifted_by = ?3
                   WHERE tenant = ?1 AND session = ?2 AND lifted_by IS NULL AND verdict_id < ?3";
        let mut statement = transaction.prepare_cached(sql)?;
        statement.execute(params![tenant, session, IdBlob(reset)])?;
        Ok(())
    }

    /// Appends a withdrawal of an operator action, and undoes its effect.
    fn withdraw(&mut self, transaction: &Transaction<'_>, id: VerdictId) -> rusqlite::Result<()> {
        let sql = "UPDATE records SET withdrawn = 1
                   WHERE verdict_id = ?1 AND kind IN (?2, ?3) AND withdrawn = 0 RETURNING body";
        let body: Option<Vec<u8>> = transaction
            .prepare_cached(sql)?
            .query_row(params![IdBlob(id), record::RESET, record::SNOOZE], |row| {
                row.get(0)
            })
            .optional()?;
        let Some(body) = body else {
            return Ok(());
        };
        let Some(withdrawal) = record::withdrawal(&body) else {
            return Ok(());
        };
        let withdrawal_id = record::withdrawal_id(id);
        self.insert_record(transaction, withdrawal_id, record::WITHDRAWAL, &withdrawal)?;
        let sql = "UPDATE tombstones SET lifted_by = NULL WHERE lifted_by = ?1
                   RETURNING verdict_id, body";
        let mut statement = transaction.prepare_cached(sql)?;
        let mut rows = statement.query(params![IdBlob(id)])?;
        while let Some(row) = rows.next()? {
            let (id, body) = tombstone_row(row)?;
            self.tombstone_sum.add(id, body);
        }
        for sql in [
            "UPDATE snoozes SET lifted_by = NULL WHERE lifted_by = ?1",
            "DELETE FROM snoozes WHERE verdict_id = ?1",
        ] {
            transaction.prepare_cached(sql)?.execute([IdBlob(id)])?;
        }
        Ok(())
    }

    /// Removes lifted, expired and surplus tombstones and ended snoozes. Returns how many
    /// rows were removed.
    fn remove_tombstones(
        &mut self,
        transaction: &Transaction<'_>,
        retention: &Retention,
        oldest: impl Fn(Duration) -> VerdictId,
        now: SystemTime,
    ) -> rusqlite::Result<usize> {
        let lifted_before = IdBlob(oldest(LIFTED_KEPT));
        let sql = "DELETE FROM tombstones WHERE verdict_id IN
                       (SELECT verdict_id FROM tombstones WHERE lifted_by < ?1 LIMIT ?2)";
        let limit = RETENTION_SLICE as i64;
        let mut removed = transaction
            .prepare_cached(sql)?
            .execute(params![lifted_before, limit])?;
        let sql = "DELETE FROM snoozes WHERE verdict_id IN
                       (SELECT verdict_id FROM snoozes
                        WHERE until_ms <= ?1 OR lifted_by < ?2 LIMIT ?3)";
        let now_ms = record::millis(now).0;
        removed +=
            transaction
                .prepare_cached(sql)?
                .execute(params![now_ms, lifted_before, limit])?;
        let expired = IdBlob(oldest(retention.tombstone_age_max));
        let sql = "SELECT verdict_id FROM tombstones WHERE verdict_id < ?1 LIMIT ?2";
        let ids = select_ids(transaction, sql, params![expired, limit])?;
        removed += self.remove(transaction, &ids)?;
        // Counting takes some 50 ms with a million tombstones, so it is done last.
        if removed == 0 {
            removed = self.remove_surplus(transaction, retention.tombstones_max)?;
        }
        Ok(removed)
    }

    /// Removes the oldest tombstones of the tenants that have the most, so that no
    /// tenant displaces the tombstones of another.
    fn remove_surplus(
        &mut self,
        transaction: &Transaction<'_>,
        tombstones_max: usize,
    ) -> rusqlite::Result<usize> {
        let mut statement = transaction
            .prepare_cached("SELECT tenant, count(*) FROM tombstones GROUP BY tenant")?;
        let counts: Vec<(String, usize)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get::<_, u32>(1)? as usize)))?
            .collect::<rusqlite::Result<_>>()?;
        let share = tenant_share(counts.iter().map(|(_, count)| *count), tombstones_max);
        let sql = "SELECT verdict_id FROM tombstones WHERE tenant = ?1
                   ORDER BY verdict_id LIMIT ?2";
        let mut removed = 0;
        for (tenant, count) in counts {
            let surplus = count.saturating_sub(share).min(RETENTION_SLICE);
            if surplus > 0 {
                let ids = select_ids(transaction, sql, params![tenant, surplus as i64])?;
                removed += self.remove(transaction, &ids)?;
            }
        }
        Ok(removed)
    }

    fn remove_oldest_tombstones(
        &mut self,
        transaction: &Transaction<'_>,
        most: usize,
    ) -> rusqlite::Result<usize> {
        let sql = "SELECT verdict_id FROM tombstones ORDER BY verdict_id LIMIT ?1";
        let ids = select_ids(transaction, sql, params![most as i64])?;
        let removed = self.remove(transaction, &ids)?;
        if removed > 0 {
            tracing::warn!(
                removed,
                "store.bytes_max is reached: the oldest terminations are no longer on disk"
            );
        }
        Ok(removed)
    }

    fn remove(
        &mut self,
        transaction: &Transaction<'_>,
        ids: &[VerdictId],
    ) -> rusqlite::Result<usize> {
        let sql = "DELETE FROM tombstones WHERE verdict_id = ?1
                   RETURNING verdict_id, body, lifted_by IS NULL";
        let mut statement = transaction.prepare_cached(sql)?;
        for id in ids {
            let mut rows = statement.query([IdBlob(*id)])?;
            while let Some(row) = rows.next()? {
                let is_in_force: bool = row.get(2)?;
                let (id, body) = tombstone_row(row)?;
                if is_in_force {
                    self.tombstone_sum.subtract(id, body);
                }
            }
        }
        Ok(ids.len())
    }

    fn save_sum(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let sql = "UPDATE chain SET tombstone_sum = ?1";
        let sum = self.tombstone_sum.0.to_be_bytes();
        transaction.prepare_cached(sql)?.execute([sum])?;
        Ok(())
    }
}

/// Removes records from the beginning of the log: those that were issued before
/// `expired`, or any if the files are too large. Returns how many were removed.
fn remove_records(
    transaction: &Transaction<'_>,
    expired: VerdictId,
    bytes_over: bool,
) -> rusqlite::Result<usize> {
    let (removed, ..) = read_removed(transaction)?;
    let sql = "SELECT record, verdict_id, hash FROM records WHERE record <= ?1 ORDER BY record";
    let mut statement = transaction.prepare_cached(sql)?;
    let last = removed as i64 + RETENTION_SLICE as i64;
    let mut rows = statement.query([last])?;
    let mut through: Option<(i64, Vec<u8>)> = None;
    let mut greatest = VerdictId(0);
    while let Some(row) = rows.next()? {
        let IdBlob(id) = row.get(1)?;
        if id >= expired && !bytes_over {
            break;
        }
        greatest = greatest.max(id);
        through = Some((row.get(0)?, row.get(2)?));
    }
    drop(rows);
    let Some((through, hash)) = through else {
        return Ok(0);
    };
    let sql = "DELETE FROM record_labels WHERE (tenant, name, value, verdict_id) IN
                   (SELECT records.tenant, labels.key, labels.value, records.verdict_id
                    FROM records, json_each(records.labels) AS labels
                    WHERE records.record <= ?1)";
    transaction.prepare_cached(sql)?.execute([through])?;
    let sql = "DELETE FROM records WHERE record <= ?1";
    let count = transaction.prepare_cached(sql)?.execute([through])?;
    let sql = "UPDATE chain SET removed = ?1, removed_hash = ?2,
                   removed_id = max(removed_id, ?3)";
    transaction
        .prepare_cached(sql)?
        .execute(params![through, hash, IdBlob(greatest)])?;
    Ok(count)
}

/// A verdict id as 16 bytes, which sort like the id.
#[derive(Clone, Copy)]
pub(super) struct IdBlob(pub VerdictId);

impl ToSql for IdBlob {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.0.to_be_bytes().to_vec().into())
    }
}

impl FromSql for IdBlob {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes: [u8; 16] = FromSql::column_result(value)?;
        Ok(Self(VerdictId(u128::from_be_bytes(bytes))))
    }
}

/// Starts a transaction that writes.
fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn configure(connection: &Connection, is_new: bool) -> rusqlite::Result<()> {
    if is_new {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Applies the schemas that the database does not have yet.
fn migrate(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(database_error(path))?;
    check_schema_version(found, path)?;
    let applied = usize::try_from(found).unwrap_or(0);
    for (index, schema) in SCHEMAS.iter().enumerate().skip(applied) {
        let version = index + 1;
        let first = if version == 1 {
            format!(
                "PRAGMA application_id = {APPLICATION_ID};
                 INSERT INTO chain VALUES (1, 0, x'{:064}', x'{:032}', x'{:032}');",
                0, 0, 0
            )
        } else {
            String::new()
        };
        let sql =
            format!("BEGIN IMMEDIATE; {schema} {first} PRAGMA user_version = {version}; COMMIT;");
        connection
            .execute_batch(&sql)
            .map_err(database_error(path))?;
    }
    Ok(())
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
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
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

/// Reads the state of a database. Checks that its terminations are those that were
/// committed.
pub(super) fn recover(
    connection: &Connection,
    path: &Path,
    tombstones_max: usize,
) -> Result<Recovery, StoreError> {
    let (head, expected) = read_chain(connection).map_err(database_error(path))?;
    let (mut state, sum) = read_state(connection).map_err(database_error(path))?;
    if sum != expected {
        let why = "its terminations are not those that were written; restore a backup, or move \
                   the directory away to start without them";
        return Err(StoreError::damaged(path, why));
    }
    limit_sessions(&mut state.sessions, tombstones_max, |(session, record)| {
        (session.tenant(), record.id)
    });
    let (.., retained_after) = read_removed(connection).map_err(database_error(path))?;
    let sql = "SELECT verdict_id FROM records WHERE kind <> ?1 ORDER BY verdict_id DESC LIMIT 1";
    let last = connection
        .query_row(sql, [record::WITHDRAWAL], |row| row.get(0))
        .optional()
        .map_err(database_error(path))?;
    state.last_verdict = last.map_or(retained_after, |IdBlob(id)| id.max(retained_after));
    Ok(Recovery {
        state,
        head,
        retained_after,
    })
}

/// Keeps the newest `most`. Those of the tenants with the most are removed first, so
/// that no tenant displaces the sessions of another.
fn limit_sessions<T>(list: &mut Vec<T>, most: usize, key: impl Fn(&T) -> (Tenant, VerdictId)) {
    if list.len() <= most {
        return;
    }
    let mut tenants = std::collections::HashMap::<Tenant, usize>::new();
    for item in &*list {
        *tenants.entry(key(item).0).or_default() += 1;
    }
    let share = tenant_share(tenants.values().copied(), most);
    list.sort_unstable_by_key(|item| std::cmp::Reverse(key(item).1));
    tenants.clear();
    list.retain(|item| {
        let kept = tenants.entry(key(item).0).or_default();
        *kept += 1;
        *kept <= share
    });
}

/// The terminations and snoozes in force, and the sum of the terminations.
fn read_state(connection: &Connection) -> rusqlite::Result<(RecoveredState, TombstoneSum)> {
    let mut state = RecoveredState::default();
    let mut sum = TombstoneSum::default();
    let mut agents = std::collections::HashMap::new();
    let sql = "SELECT verdict_id, body FROM tombstones WHERE lifted_by IS NULL
               ORDER BY verdict_id";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, body) = tombstone_row(row)?;
        sum.add(id, body);
        // The body decides, because the sum covers it.
        let Some((session, agent)) = record::subject(body) else {
            continue;
        };
        let encoded = EncodedRecord {
            id,
            bytes: body.into(),
            decode: record::decode,
        };
        if agent.is_main() {
            state.sessions.push((session, encoded));
        } else {
            agents.insert((session, agent), encoded);
        }
    }
    state.agents = agents
        .into_iter()
        .map(|((session, agent), encoded)| (session, agent, encoded))
        .collect();
    let sql = "SELECT tenant, session, until_ms FROM snoozes WHERE lifted_by IS NULL
               ORDER BY verdict_id";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut snoozes = std::collections::HashMap::<SessionId, SystemTime>::new();
    while let Some(row) = rows.next()? {
        let (tenant, session): (String, String) = (row.get(0)?, row.get(1)?);
        if let Some(session) = record::session_id(&tenant, &session) {
            snoozes.insert(session, record::time(row.get(2)?, 0));
        }
    }
    state.snoozes = snoozes.into_iter().collect();
    Ok((state, sum))
}

fn tombstone_row<'a>(row: &'a Row<'_>) -> rusqlite::Result<(VerdictId, &'a [u8])> {
    let IdBlob(id) = row.get(0)?;
    Ok((id, row.get_ref(1)?.as_blob()?))
}

fn select_ids(
    transaction: &Transaction<'_>,
    sql: &str,
    parameters: &[&dyn ToSql],
) -> rusqlite::Result<Vec<VerdictId>> {
    let mut statement = transaction.prepare_cached(sql)?;
    let ids = statement.query_map(parameters, |row| row.get(0).map(|IdBlob(id)| id))?;
    ids.collect()
}

/// The position of the record of a verdict.
fn find_record(connection: &Connection, id: VerdictId) -> rusqlite::Result<Option<ChainHead>> {
    let sql = "SELECT record, hash FROM records WHERE verdict_id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([IdBlob(id)], read_head_row).optional()
}

/// The number, the hash and the greatest id of the removed records.
pub(super) fn read_removed(
    connection: &Connection,
) -> rusqlite::Result<(u64, ChainHash, VerdictId)> {
    let sql = "SELECT removed, removed_hash, removed_id FROM chain";
    connection.query_row(sql, [], |row| {
        let removed: i64 = row.get(0)?;
        let IdBlob(id) = row.get(2)?;
        Ok((
            u64::try_from(removed).unwrap_or(0),
            ChainHash(row.get(1)?),
            id,
        ))
    })
}

/// The last record, and the sum that the tombstones must have.
fn read_chain(connection: &Connection) -> rusqlite::Result<(ChainHead, TombstoneSum)> {
    let (record, hash, _) = read_removed(connection)?;
    let removed = ChainHead { record, hash };
    let sum: [u8; 16] =
        connection.query_row("SELECT tombstone_sum FROM chain", [], |row| row.get(0))?;
    let last = connection
        .query_row(
            "SELECT record, hash FROM records ORDER BY record DESC LIMIT 1",
            [],
            read_head_row,
        )
        .optional()?;
    Ok((
        last.unwrap_or(removed),
        TombstoneSum(u128::from_be_bytes(sum)),
    ))
}

fn read_head_row(row: &Row<'_>) -> rusqlite::Result<ChainHead> {
    let record: i64 = row.get(0)?;
    Ok(ChainHead {
        record: u64::try_from(record).unwrap_or(0),
        hash: ChainHash(row.get(1)?),
    })
}

/// Compares the end of the log with the file `head`, which was written after the last
/// commit.
pub(super) fn check_head(
    connection: &Connection,
    dir: &StoreDir,
    head: &ChainHead,
) -> Result<(), StoreError> {
    let Some(noted) = dir.read_head() else {
        return Ok(());
    };
    let path = dir.database();
    if noted.record > head.record {
        let why = format!(
            "its end is missing: it has {} records, and the file head says {}; restore a backup, \
             or move the directory away to start without them",
            head.record, noted.record
        );
        return Err(StoreError::damaged(&path, why));
    }
    let sql = "SELECT record, hash FROM records WHERE record = ?1";
    let found = connection
        .query_row(sql, [noted.record as i64], read_head_row)
        .optional()
        .map_err(database_error(&path))?;
    match found {
        Some(found) if found != noted => {
            let why = format!("record {} is not the one that was written", noted.record);
            Err(StoreError::damaged(&path, why))
        }
        _ => Ok(()),
    }
}

fn commit_error(path: &Path, error: CommitError) -> StoreError {
    let (CommitError::Refused(why) | CommitError::Detached(why) | CommitError::Unsynced(why)) =
        error;
    StoreError::io(path)(std::io::Error::other(why))
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
