//! Frozen sessions in the database, and terminations that the queue had no room for. The
//! writer thread serves one request at a time between two commits of verdicts, so that
//! neither waits for long.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, mpsc},
    time::SystemTime,
};

use parking_lot::Mutex;
use rusqlite::{Connection, Row, Transaction, params};

use super::{
    Store, StoreError, StoreHealth,
    database::{CommitError, Database},
    dir::StoreDir,
    queue::BATCH_MAX,
    record, schema,
};
use crate::domain::{FrozenSession, Labels, SessionId, VerdictId, VerdictRecord};

/// How many removals may wait. Above it they are dropped: the rows expire.
const REMOVALS_MAX: usize = 65_536;
/// The most rows that one transaction removes.
pub(super) const REMOVAL_SLICE: usize = 1_000;

/// The most rows that one transaction removes while the files are too large. A session
/// may have 10 KiB, and no more than necessary should go.
const OVERSIZE_SLICE: usize = 100;

/// A write beside the queue of verdicts: of frozen sessions, or of terminations.
pub(super) enum StoreWrite {
    SaveSessions(Vec<FrozenSession>),
    RemoveSessions(Vec<SessionId>),
    /// Removes the sessions that were last active before this time.
    RemoveSessionsIdleSince(SystemTime),
    /// Terminations that the queue has dropped. Some of them may be on disk.
    AppendTerminations(Vec<VerdictRecord>),
}

/// The writes that wait for the writer thread, in their order.
#[derive(Default)]
pub(super) struct StoreWrites {
    state: Mutex<WaitingWrites>,
}

#[derive(Default)]
struct WaitingWrites {
    pending: VecDeque<PendingWrite>,
    /// The disk has refused the removals that are still pending.
    is_refused: bool,
    is_closed: bool,
    /// Removals for which there was no room.
    dropped_total: u64,
}

pub(super) struct PendingWrite {
    pub write: StoreWrite,
    /// `None`: no caller waits.
    done: Option<mpsc::SyncSender<Result<(), StoreError>>>,
}

impl PendingWrite {
    fn removal(ids: Vec<SessionId>) -> Self {
        Self {
            write: StoreWrite::RemoveSessions(ids),
            done: None,
        }
    }

    pub fn end(self, result: Result<(), StoreError>) {
        if let Some(done) = self.done {
            // The caller may have given up.
            let _ = done.send(result);
        }
    }
}

impl StoreWrites {
    /// Adds a write. The receiver gets its result, or nothing if the writer has ended.
    pub fn add(&self, write: StoreWrite) -> mpsc::Receiver<Result<(), StoreError>> {
        let (done, result) = mpsc::sync_channel(1);
        let mut state = self.state.lock();
        if !state.is_closed {
            let done = Some(done);
            state.pending.push_back(PendingWrite { write, done });
            state.is_refused = false;
        }
        result
    }

    /// Adds the removal of a session, which no caller waits for.
    pub fn add_removal(&self, id: SessionId) {
        let state = &mut *self.state.lock();
        if state.is_closed {
            return;
        }
        if let Some(last) = state.pending.back_mut()
            && let StoreWrite::RemoveSessions(ids) = &mut last.write
        {
            if ids.len() < REMOVALS_MAX {
                ids.push(id);
            } else {
                state.dropped_total += 1;
            }
            return;
        }
        state.pending.push_back(PendingWrite::removal(vec![id]));
    }

    /// Whether the writer has something to do at once. Removals that were refused are
    /// retried later.
    pub fn is_pending(&self) -> bool {
        let state = self.state.lock();
        !state.is_refused && !state.pending.is_empty()
    }

    /// Takes the next write. Many removals are returned in parts.
    pub fn next(&self) -> Option<PendingWrite> {
        let mut state = self.state.lock();
        let mut next = state.pending.pop_front()?;
        if let StoreWrite::RemoveSessions(ids) = &mut next.write
            && ids.len() > REMOVAL_SLICE
        {
            let rest = ids.split_off(REMOVAL_SLICE);
            state.pending.push_front(PendingWrite::removal(rest));
        }
        Some(next)
    }

    /// Called when the disk refuses writes. Removals wait until it accepts them, because
    /// a removed session would be restored by the next start. All other writes are
    /// answered with the error, and their callers repeat them.
    pub fn refuse(&self, refused: Option<PendingWrite>, error: impl Fn() -> StoreError) {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.pending);
        let mut removals = Vec::new();
        for pending in refused.into_iter().chain(waiting) {
            match pending.write {
                StoreWrite::RemoveSessions(ids) => removals.extend(ids),
                StoreWrite::SaveSessions(_)
                | StoreWrite::RemoveSessionsIdleSince(_)
                | StoreWrite::AppendTerminations(_) => pending.end(Err(error())),
            }
        }
        state.dropped_total += removals.len().saturating_sub(REMOVALS_MAX) as u64;
        removals.truncate(REMOVALS_MAX);
        state.is_refused = true;
        if !removals.is_empty() {
            state.pending.push_back(PendingWrite::removal(removals));
        }
    }

    /// The removals that were dropped: their sessions stay on disk until they expire.
    pub fn dropped_total(&self) -> u64 {
        self.state.lock().dropped_total
    }

    /// Accepts no more writes. Those that wait can still be taken.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Drops all writes when the writer thread has ended: callers that wait get no result.
    pub fn clear(&self) {
        self.state.lock().pending.clear();
    }
}

impl Store {
    /// Writes the terminations that were lost while the disk failed, if it works again, and
    /// publishes them. `find` returns the terminations in force since the given one.
    pub fn rewrite_lost(
        &self,
        find: impl FnOnce(VerdictId) -> Vec<VerdictRecord>,
    ) -> Result<(), StoreError> {
        if self.health() != StoreHealth::Healthy {
            return Ok(());
        }
        let Some(since) = self.queue.take_lost_since() else {
            return Ok(());
        };
        let mut found = find(since);
        found.sort_unstable_by_key(|issued| issued.verdict.id);
        tracing::info!(
            found = found.len(),
            "writing terminations that the disk refused"
        );
        for some in found.chunks(BATCH_MAX) {
            let written = self.write(StoreWrite::AppendTerminations(some.to_vec()));
            if written.is_err() {
                self.queue.return_lost_since(since);
                return written;
            }
            self.queue
                .mark_written(some.iter().map(|issued| issued.verdict.id));
            self.publisher.publish_late(some);
        }
        Ok(())
    }

    /// Saves frozen sessions in one transaction and waits for it. Each replaces the saved
    /// state of its session. A store in memory saves nothing.
    pub fn save_sessions(&self, sessions: Vec<FrozenSession>) -> Result<(), StoreError> {
        self.write(StoreWrite::SaveSessions(sessions))
    }

    /// Removes frozen sessions that were last active before this time, at most
    /// `REMOVAL_SLICE` of them, and waits for it.
    pub fn remove_sessions_idle_since(&self, time: SystemTime) -> Result<(), StoreError> {
        self.write(StoreWrite::RemoveSessionsIdleSince(time))
    }

    fn write(&self, write: StoreWrite) -> Result<(), StoreError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let result = disk.writes.add(write);
        self.queue.wake();
        let ended = || write_error(&disk.dir, "the writer has ended".to_owned());
        result.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Requests the removal of a saved session and does not wait. A session that is
    /// terminated or reset is removed in the transaction of that record.
    pub fn remove_session(&self, id: SessionId) {
        if let Some(disk) = &self.disk {
            disk.writes.add_removal(id);
        }
    }

    /// Reads all frozen sessions, the most recently active first.
    pub fn load_sessions(&self, each: impl FnMut(FrozenSession)) -> Result<(), StoreError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        // On a full or read-only disk there is no writer yet, and nothing can be created.
        let is_open = disk.readers.is_open.read();
        let connection = schema::open_read_only(&disk.dir, !*is_open)?;
        load(&connection, each).map_err(schema::database_error(&disk.dir.database()))
    }
}

impl Database {
    /// Applies a write in one transaction.
    pub fn apply(&mut self, write: &StoreWrite, text: bool) -> Result<(), CommitError> {
        if let StoreWrite::AppendTerminations(terminations) = write {
            return self.append_lost(terminations, text);
        }
        let transaction = self.begin_checked()?;
        match write {
            StoreWrite::AppendTerminations(_) => {}
            StoreWrite::SaveSessions(sessions) => {
                for session in sessions {
                    save(&transaction, session)?;
                }
            }
            StoreWrite::RemoveSessions(ids) => {
                for id in ids {
                    remove(&transaction, id.tenant().name(), id.as_str())?;
                }
            }
            StoreWrite::RemoveSessionsIdleSince(time) => {
                let sql = "DELETE FROM sessions WHERE rowid IN
                               (SELECT rowid FROM sessions WHERE last_seen_ms < ?1 LIMIT ?2)";
                let (before, limit) = (record::millis(*time).0, REMOVAL_SLICE as i64);
                transaction.prepare_cached(sql)?.execute([before, limit])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn save(transaction: &Transaction<'_>, session: &FrozenSession) -> rusqlite::Result<()> {
    let FrozenSession {
        id,
        profile,
        labels,
        last_seen,
        head,
        window,
    } = session;
    let sql = "INSERT OR REPLACE INTO sessions
                   (tenant, session, profile, labels, last_seen_ms, head, recent)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    transaction.prepare_cached(sql)?.execute(params![
        id.tenant().name(),
        id.as_str(),
        &**profile,
        serde_json::json!(**labels).to_string(),
        record::millis(*last_seen).0,
        head,
        window,
    ])?;
    Ok(())
}

/// Removes the frozen state of a session that was terminated, reset or ended.
pub(super) fn remove(
    transaction: &Transaction<'_>,
    tenant: &str,
    session: &str,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM sessions WHERE tenant = ?1 AND session = ?2";
    transaction
        .prepare_cached(sql)?
        .execute([tenant, session])?;
    Ok(())
}

/// Removes the sessions that have been idle for longest. Returns how many.
pub(super) fn remove_oldest(transaction: &Transaction<'_>) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM sessions WHERE rowid IN
                   (SELECT rowid FROM sessions ORDER BY last_seen_ms LIMIT ?1)";
    transaction
        .prepare_cached(sql)?
        .execute([OVERSIZE_SLICE as i64])
}

/// Reads all frozen sessions, the most recently active first.
pub(super) fn load(
    connection: &Connection,
    mut each: impl FnMut(FrozenSession),
) -> rusqlite::Result<()> {
    let sql = "SELECT tenant, session, profile, labels, last_seen_ms, head, recent
               FROM sessions ORDER BY last_seen_ms DESC";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // An id that is not valid was not written by this service.
        if let Some(session) = read_row(row)? {
            each(session);
        }
    }
    Ok(())
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<Option<FrozenSession>> {
    let (tenant, session): (String, String) = (row.get(0)?, row.get(1)?);
    let (profile, labels): (String, String) = (row.get(2)?, row.get(3)?);
    let labels: Labels = serde_json::from_str(&labels).unwrap_or_default();
    let last_seen = record::time(row.get(4)?, 0);
    let (head, window) = (row.get(5)?, row.get(6)?);
    let session = record::session_id(&tenant, &session).map(|id| FrozenSession {
        id,
        profile: profile.into(),
        labels: Arc::new(labels),
        last_seen,
        head,
        window,
    });
    Ok(session)
}

/// The error of a write that was not applied.
pub(super) fn write_error(dir: &StoreDir, why: String) -> StoreError {
    StoreError::Io {
        path: dir.database(),
        source: io::Error::other(why),
    }
}

#[cfg(test)]
mod tests;
