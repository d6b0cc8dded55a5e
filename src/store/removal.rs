//! Removes what exceeds the retention, a slice at a time.

use std::time::{Duration, SystemTime};

use rusqlite::{Transaction, params, types::ToSql};

use super::{
    database::{CommitError, Database},
    ratings, record,
    recovery::read_removed,
    schema::{BUSY_TIMEOUT, LAST_RUN, SESSIONS_REMOVED, WAL_BYTES, begin},
    sessions,
    tenant_share::tenant_share,
    transaction::{ChainState, IdBlob, tombstone_row},
};
use crate::domain::VerdictId;

/// The most rows that one transaction of the retention removes, about 10 ms of work.
/// Commits run between two of them.
const RETENTION_SLICE: usize = 1_000;
/// The most pages that are returned to the file system at a time.
const VACUUM_PAGES: usize = 1_000;
/// The part of `store.bytes_max` that is reserved for the write-ahead log.
const WAL_SHARE: u64 = WAL_BYTES as u64;
/// A lifted tombstone is kept for this long, because a reset that is refused while its
/// commit is on its way must be undone.
const LIFTED_KEPT: Duration = Duration::from_secs(60 * 60);

/// The retention limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub verdicts_age_max: Duration,
    pub bytes_max: u64,
    pub tombstone_age_max: Duration,
    pub tombstones_max: usize,
}

/// The rows that a slice of the retention has removed.
#[derive(Default)]
pub(super) struct RemovedSlice {
    /// The greatest id of all removed verdicts.
    pub retained_after: VerdictId,
    /// Terminations in force that had to go.
    pub terminations: Vec<VerdictId>,
    /// More is to be removed.
    pub has_more: bool,
}

impl Database {
    /// Removes a slice of what exceeds the limits: old records, expired and surplus
    /// tombstones; while the files are too large the oldest records, then saved sessions,
    /// then ratings, then tombstones.
    pub fn enforce_retention(
        &mut self,
        retention: &Retention,
        now: SystemTime,
    ) -> Result<RemovedSlice, CommitError> {
        let bytes_over = self.exceeds(retention.bytes_max)?;
        let oldest = |age: Duration| {
            let since = now.checked_sub(age);
            since.map_or(VerdictId(0), VerdictId::lower_bound_at)
        };
        let mut state = ChainState {
            head: self.head,
            tombstone_sum: self.tombstone_sum,
        };
        let transaction = begin(&mut self.connection)?;
        let expired = oldest(retention.verdicts_age_max);
        let mut removed = remove_records(&transaction, expired, bytes_over)?;
        removed += state.remove_tombstones(&transaction, retention, oldest, now)?;
        if removed == 0 && bytes_over {
            // The log is empty: profiles, labels and counts of live sessions go next.
            let sessions = sessions::remove_oldest(&transaction)?;
            if sessions > 0 {
                save_time(&transaction, SESSIONS_REMOVED, now)?;
            }
            removed += sessions;
        }
        let mut slice = RemovedSlice::default();
        if removed == 0 && bytes_over {
            removed += ratings::remove_oldest(&transaction, RETENTION_SLICE)?;
        }
        if removed == 0 && bytes_over {
            // Only tombstones are left: the oldest have to go.
            slice.terminations = state.remove_oldest_tombstones(&transaction)?;
            removed += slice.terminations.len();
        }
        slice.retained_after = read_removed(&transaction)?.2;
        slice.has_more = removed > 0;
        if removed == 0 {
            // The next start compares its clock with this time.
            save_time(&transaction, LAST_RUN, now)?;
            transaction.commit()?;
            self.shrink_files(retention)?;
            return Ok(slice);
        }
        state.save_sum(&transaction)?;
        transaction.commit()?;
        self.tombstone_sum = state.tombstone_sum;
        self.return_pages()?;
        Ok(slice)
    }

    /// Whether the database is too large, with the share of its write-ahead log.
    pub fn exceeds(&self, bytes_max: u64) -> Result<bool, CommitError> {
        Ok(self.used_bytes()? > bytes_max.saturating_sub(WAL_SHARE))
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

    /// Returns the free pages of files that are too large.
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

    /// Copies the write-ahead log into the database and empties it. If a reader is in the
    /// way, that is left for the next time, because verdicts wait meanwhile.
    fn checkpoint(&self) -> Result<(), CommitError> {
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.connection.busy_timeout(Duration::ZERO)?;
        let ended = self.connection.query_row(sql, [], |_| Ok(()));
        self.connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(ended?)
    }
}

impl ChainState {
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
            removed = self
                .remove_surplus(transaction, retention.tombstones_max)?
                .len();
        }
        Ok(removed)
    }

    /// Removes the oldest tombstones of the tenants that have the most, so that no
    /// tenant displaces the tombstones of another.
    fn remove_surplus(
        &mut self,
        transaction: &Transaction<'_>,
        tombstones_max: usize,
    ) -> rusqlite::Result<Vec<VerdictId>> {
        let mut statement = transaction
            .prepare_cached("SELECT tenant, count(*) FROM tombstones GROUP BY tenant")?;
        let counts: Vec<(String, usize)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get::<_, u32>(1)? as usize)))?
            .collect::<rusqlite::Result<_>>()?;
        let share = tenant_share(counts.iter().map(|(_, count)| *count), tombstones_max);
        let sql = "SELECT verdict_id FROM tombstones WHERE tenant = ?1
                   ORDER BY verdict_id LIMIT ?2";
        let mut removed = Vec::new();
        for (tenant, count) in counts {
            let surplus = count.saturating_sub(share).min(RETENTION_SLICE);
            if surplus > 0 {
                let ids = select_ids(transaction, sql, params![tenant, surplus as i64])?;
                self.remove(transaction, &ids)?;
                removed.extend(ids);
            }
        }
        Ok(removed)
    }

    /// Removes a slice of the tombstones although they are in force.
    fn remove_oldest_tombstones(
        &mut self,
        transaction: &Transaction<'_>,
    ) -> rusqlite::Result<Vec<VerdictId>> {
        let sql = "SELECT count(*) FROM tombstones";
        let count: u32 = transaction.query_row(sql, [], |row| row.get(0))?;
        let left = (count as usize).saturating_sub(RETENTION_SLICE);
        let removed = self.remove_surplus(transaction, left)?;
        if !removed.is_empty() {
            tracing::error!(
                removed = removed.len(),
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
}

/// Notes a time that does not go back.
fn save_time(transaction: &Transaction<'_>, key: &str, now: SystemTime) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE
               SET value = excluded.value
               WHERE CAST(value AS INTEGER) < CAST(excluded.value AS INTEGER)";
    let now_ms = record::millis(now).0.to_string();
    transaction
        .prepare_cached(sql)?
        .execute(params![key, now_ms])?;
    Ok(())
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

fn select_ids(
    transaction: &Transaction<'_>,
    sql: &str,
    parameters: &[&dyn ToSql],
) -> rusqlite::Result<Vec<VerdictId>> {
    let mut statement = transaction.prepare_cached(sql)?;
    let ids = statement.query_map(parameters, |row| row.get(0).map(|IdBlob(id)| id))?;
    ids.collect()
}
