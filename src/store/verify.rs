//! Verifies an audit log, whether or not a service uses it.

use std::{collections::BTreeSet, fmt, path::Path};

use rusqlite::{Connection, Row};
use serde::Serialize;

use super::{
    chain::next_head,
    dir::{StoreDir, StoreError},
    record::{self, RecordColumns},
    recovery,
    schema::{self, database_error},
    transaction::IdBlob,
};
use crate::domain::{ChainHash, ChainHead, VerdictId};

/// The result of a verification.
#[derive(Clone, Debug, Serialize)]
pub struct LogVerification {
    /// The number of records that were checked.
    pub records: u64,
    /// The number of older records that retention has removed.
    pub removed: u64,
    pub tombstones: u64,
    pub bytes: u64,
    /// The last record. Compare it with one noted elsewhere.
    pub head: ChainHead,
    /// Whether a service uses the log.
    pub in_use: bool,
}

impl fmt::Display for LogVerification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            records,
            tombstones,
            bytes,
            head,
            ..
        } = self;
        write!(
            f,
            "intact: {records} records, {tombstones} terminations in force, {bytes} bytes; \
             head {} {}",
            head.record, head.hash
        )
    }
}

/// Reads the whole log and checks every hash. Read-only.
pub fn verify(dir: &Path) -> Result<LogVerification, StoreError> {
    let dir = StoreDir(dir.to_owned());
    let path = dir.database();
    if !path.exists() {
        return Err(recovery::missing(&dir));
    }
    let lock = dir.lock_for_reading()?;
    let in_use = lock.is_none();
    let connection = open_log(&dir, !in_use)?;
    let verified = verify_connection(&connection, &path)?;
    recovery::check_head(&connection, &dir, &verified.head)?;
    if dir.read_head().is_none() {
        let why = "it is missing or unreadable, so that the end of the log cannot be checked; \
                   a start of the service writes it";
        return Err(StoreError::damaged(&dir.head(), why));
    }
    Ok(LogVerification {
        bytes: dir.bytes(),
        in_use,
        ..verified
    })
}

fn open_log(dir: &StoreDir, is_exclusive: bool) -> Result<Connection, StoreError> {
    match schema::open_read_only(dir, is_exclusive) {
        Err(StoreError::Empty { .. }) => Err(recovery::missing(dir)),
        opened => opened,
    }
}

/// The last record of the log, whether or not a service uses it. Read-only.
pub fn read_chain_head(dir: &Path) -> Result<ChainHead, StoreError> {
    let dir = StoreDir(dir.to_owned());
    let path = dir.database();
    if !path.exists() {
        return Err(recovery::missing(&dir));
    }
    let lock = dir.lock_for_reading()?;
    let connection = open_log(&dir, lock.is_some())?;
    let (head, _) = recovery::read_chain(&connection).map_err(database_error(&path))?;
    recovery::check_head(&connection, &dir, &head)?;
    Ok(head)
}

/// Checks the structure, the chain, the columns and the tombstones of a database.
pub(super) fn verify_connection(
    connection: &Connection,
    path: &Path,
) -> Result<LogVerification, StoreError> {
    // Read in one transaction, so that a running service changes nothing meanwhile.
    let transaction = connection
        .unchecked_transaction()
        .map_err(database_error(path))?;
    check_structure(&transaction, path)?;
    let (removed, head) = check_chain(&transaction, path)?;
    let state = recovery::recover(&transaction, path, usize::MAX)?.state;
    Ok(LogVerification {
        records: head.record - removed,
        removed,
        tombstones: (state.sessions.len() + state.agents.len()) as u64,
        bytes: 0,
        head,
        in_use: false,
    })
}

fn check_structure(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let found: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(database_error(path))?;
    if found != "ok" {
        return Err(StoreError::damaged(path, found));
    }
    Ok(())
}

/// Follows the chain from the first retained record. Returns how many records were
/// removed before it, and the last one.
fn check_chain(connection: &Connection, path: &Path) -> Result<(u64, ChainHead), StoreError> {
    let (removed, hash, _) = recovery::read_removed(connection).map_err(database_error(path))?;
    let mut head = ChainHead {
        record: removed,
        hash,
    };
    let (mut labels, mut withdrawn, mut withdrawals) = (0, BTreeSet::new(), BTreeSet::new());
    let sql = "SELECT record, verdict_id, kind, body, hash, withdrawn, tenant, session, agent,
                   time_ms, detector, action, shadow, operator, reason, profile, wasted_events,
                   wasted_tokens, wasted_usd, labels
               FROM records ORDER BY record";
    let mut statement = connection.prepare(sql).map_err(database_error(path))?;
    let mut rows = statement.query([]).map_err(database_error(path))?;
    while let Some(row) = rows.next().map_err(database_error(path))? {
        let (next, id, kind) = check_link(row, &head, path)?;
        head = next;
        labels += check_columns(row, &head, path)?;
        if kind == record::WITHDRAWAL {
            withdrawals.insert(record::withdrawal_id(VerdictId(id)).0);
        }
        if row.get(5).map_err(database_error(path))? {
            withdrawn.insert(id);
        }
    }
    // The action itself may have been removed by now.
    if !withdrawn.is_subset(&withdrawals) {
        let why = "an operator action is marked withdrawn, and no record says so";
        return Err(StoreError::damaged(path, why));
    }
    let found: i64 = connection
        .query_row("SELECT count(*) FROM record_labels", [], |row| row.get(0))
        .map_err(database_error(path))?;
    if found != labels {
        let why = format!("record_labels has {found} rows, and the records have {labels} labels");
        return Err(StoreError::damaged(path, why));
    }
    Ok((removed, head))
}

/// Checks that a record follows the one before it. Returns the head after it, its verdict
/// id and its kind.
fn check_link(
    row: &Row<'_>,
    head: &ChainHead,
    path: &Path,
) -> Result<(ChainHead, u128, u8), StoreError> {
    let link = || -> rusqlite::Result<_> {
        let IdBlob(id) = row.get(1)?;
        let kind: u8 = row.get(2)?;
        let body = row.get_ref(3)?.as_blob()?;
        let next = next_head(head, id, kind, body);
        let number: i64 = row.get(0)?;
        let stored = ChainHash(row.get(4)?);
        let is_next = u64::try_from(number) == Ok(next.record) && stored == next.hash;
        Ok((next, id.0, kind, is_next))
    };
    let (next, id, kind, is_next) = link().map_err(database_error(path))?;
    if !is_next {
        let why = format!("record {} does not follow the one before it", next.record);
        return Err(StoreError::damaged(path, why));
    }
    Ok((next, id, kind))
}

/// Checks that the columns repeat the body. Returns the number of labels.
fn check_columns(row: &Row<'_>, head: &ChainHead, path: &Path) -> Result<i64, StoreError> {
    let differs = || {
        let why = format!("the columns of record {} differ from its body", head.record);
        StoreError::damaged(path, why)
    };
    let body = row.get_ref(3).map_err(database_error(path))?;
    let body = body.as_blob().map_err(|_| differs())?;
    let expected = record::columns(body).ok_or_else(differs)?;
    let stored = || -> rusqlite::Result<RecordColumns> {
        Ok(RecordColumns {
            tenant: row.get(6)?,
            session: row.get(7)?,
            agent: row.get(8)?,
            time_ms: row.get(9)?,
            detector: row.get(10)?,
            action: row.get(11)?,
            shadow: row.get(12)?,
            operator: row.get(13)?,
            reason: row.get(14)?,
            profile: row.get(15)?,
            wasted_events: row.get(16)?,
            wasted_tokens: row.get(17)?,
            wasted_usd: row.get(18)?,
            labels_json: row.get(19)?,
            // These are not columns of this table.
            labels: expected.labels.clone(),
            snoozed_until_ms: expected.snoozed_until_ms,
            rated: expected.rated.clone(),
        })
    };
    if stored().map_err(|_| differs())? != expected {
        return Err(differs());
    }
    Ok(expected.labels.len() as i64)
}
