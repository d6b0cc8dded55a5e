//! Reads the state of a database, and checks that nothing of it is lost.

use std::{collections::HashMap, path::Path, time::SystemTime};

use rusqlite::{Connection, OptionalExtension, Row};

use super::{
    chain::{START, TombstoneSum},
    dir::{StoreDir, StoreError},
    record,
    schema::{DATA_SINCE, LAST_RUN, SESSIONS_REMOVED, check_version_of, database_error},
    tenant_share::tenant_share,
    transaction::{IdBlob, tombstone_row},
};
use crate::domain::{
    ChainHash, ChainHead, EncodedRecord, RecoveredState, SessionId, Tenant, VerdictId, Waste,
};

/// The content of a database when it was opened.
pub(super) struct Recovery {
    pub state: RecoveredState,
    pub head: ChainHead,
    /// The greatest id of a removed verdict.
    pub retained_after: VerdictId,
}

impl Recovery {
    /// The state of a database without records.
    pub fn empty() -> Self {
        Self {
            state: RecoveredState::default(),
            head: START,
            retained_after: VerdictId(0),
        }
    }
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
    state.last_run = Some(state.last_verdict.time());
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
    let mut tenants = HashMap::<Tenant, usize>::new();
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
    let mut agents = HashMap::new();
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
    let mut snoozes = HashMap::<SessionId, SystemTime>::new();
    while let Some(row) = rows.next()? {
        let (tenant, session): (String, String) = (row.get(0)?, row.get(1)?);
        if let Some(session) = record::session_id(&tenant, &session) {
            snoozes.insert(session, record::time(row.get(2)?, 0));
        }
    }
    state.snoozes = snoozes.into_iter().collect();
    Ok((state, sum))
}

/// Reads what a database has since schema version 3.
pub(super) fn read_additions(
    connection: &Connection,
    state: &mut RecoveredState,
) -> rusqlite::Result<()> {
    state.data_since = read_time(connection, DATA_SINCE)?;
    state.last_run = read_time(connection, LAST_RUN)?.or(state.last_run);
    state.sessions_removed = read_time(connection, SESSIONS_REMOVED)?;
    let sql = "SELECT verdict_id, body, disobeyed_events, disobeyed_tokens, disobeyed_usd
               FROM tombstones
               WHERE lifted_by IS NULL AND disobeyed_events > 0";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, body) = tombstone_row(row)?;
        let Some((session, agent)) = record::subject(body) else {
            continue;
        };
        let waste = Waste {
            events: row.get(2)?,
            tokens: row.get(3)?,
            // They are counted from the start.
            cached_tokens: 0,
            usd: row.get(4)?,
        };
        state.disobeyed.push((session, agent, id, waste));
    }
    Ok(())
}

/// A time in `meta`.
fn read_time(connection: &Connection, key: &str) -> rusqlite::Result<Option<SystemTime>> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    let millis: Option<String> = connection
        .query_row(sql, [key], |row| row.get(0))
        .optional()?;
    let millis = millis.and_then(|millis| millis.parse().ok());
    Ok(millis.map(|millis| record::time(millis, 0)))
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
pub(super) fn read_chain(connection: &Connection) -> rusqlite::Result<(ChainHead, TombstoneSum)> {
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

pub(super) fn read_head_row(row: &Row<'_>) -> rusqlite::Result<ChainHead> {
    let record: i64 = row.get(0)?;
    Ok(ChainHead {
        record: u64::try_from(record).unwrap_or(0),
        hash: ChainHash(row.get(1)?),
    })
}

/// Why there is no log: it was never written, or it is lost.
pub(super) fn missing(dir: &StoreDir) -> StoreError {
    match dir.read_head().filter(|head| head.record > 0) {
        Some(head) => {
            let why = format!(
                "its records are missing, and the file head says that it has {}; restore a \
                 backup, or move the directory away to start without them",
                head.record
            );
            StoreError::damaged(&dir.database(), why)
        }
        None => StoreError::Empty {
            path: dir.0.clone(),
        },
    }
}

/// Checks the version and the end of the log. Without a schema it must be new.
pub(super) fn check_end(connection: &Connection, dir: &StoreDir) -> Result<(), StoreError> {
    let path = dir.database();
    match check_version_of(connection, &path) {
        Err(StoreError::Empty { .. }) => check_head(connection, dir, &START),
        checked => {
            checked?;
            let (head, _) = read_chain(connection).map_err(database_error(&path))?;
            check_head(connection, dir, &head)
        }
    }
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
    if noted.record == 0 {
        return Ok(());
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
