//! The content of a transaction: records, terminations and snoozes.

use rusqlite::{
    Connection, OptionalExtension, Row, Transaction, params,
    types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef},
};

use super::{
    chain::{TombstoneSum, next_head},
    ratings,
    record::{self, RecordColumns},
    recovery::read_head_row,
    sessions,
};
use crate::domain::{ChainHead, Effect, VerdictId};

/// The state that a transaction changes, adopted when it is committed.
#[derive(Clone, Copy)]
pub(super) struct ChainState {
    pub head: ChainHead,
    pub tombstone_sum: TombstoneSum,
}

impl ChainState {
    /// Appends a record and applies its effect.
    pub fn append(
        &mut self,
        transaction: &Transaction<'_>,
        id: VerdictId,
        effect: Effect,
        encoded: &record::RecordRow,
    ) -> rusqlite::Result<()> {
        self.insert_record(transaction, id, record::kind(effect), encoded)?;
        let (tenant, session) = (&encoded.columns.tenant, &encoded.columns.session);
        match effect {
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
            Effect::Disobeyed => update_disobedience(transaction, &encoded.columns),
            Effect::Rated { .. } => ratings::insert(transaction, id, &encoded.columns),
        }
    }

    fn insert_record(
        &mut self,
        transaction: &Transaction<'_>,
        id: VerdictId,
        kind: u8,
        encoded: &record::RecordRow,
    ) -> rusqlite::Result<()> {
        let columns = &encoded.columns;
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
            columns.tenant,
            columns.session,
            columns.agent,
            columns.time_ms,
            columns.detector,
            columns.action,
            columns.shadow,
            columns.operator,
            columns.reason,
            columns.profile,
            columns.wasted_events,
            columns.wasted_tokens,
            columns.wasted_usd,
            columns.labels_json,
            encoded.body,
            self.head.hash.0,
        ])?;
        let sql = "INSERT INTO record_labels (tenant, name, value, verdict_id)
                   VALUES (?1, ?2, ?3, ?4)";
        for (name, value) in &columns.labels {
            let mut statement = transaction.prepare_cached(sql)?;
            statement.execute(params![columns.tenant, name, value, IdBlob(id)])?;
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
    pub fn withdraw(
        &mut self,
        transaction: &Transaction<'_>,
        id: VerdictId,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE records SET withdrawn = 1
                   WHERE verdict_id = ?1 AND kind IN (?2, ?3, ?4) AND withdrawn = 0
                   RETURNING body";
        let kinds = [record::RESET, record::SNOOZE, record::RATING];
        let body: Option<Vec<u8>> = transaction
            .prepare_cached(sql)?
            .query_row(params![IdBlob(id), kinds[0], kinds[1], kinds[2]], |row| {
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
        ratings::remove(transaction, &withdrawal.columns.tenant, id)
    }

    pub fn save_sum(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let sql = "UPDATE chain SET tombstone_sum = ?1";
        let sum = self.tombstone_sum.0.to_be_bytes();
        transaction.prepare_cached(sql)?.execute([sum])?;
        Ok(())
    }
}

/// Notes with a termination what was sent after it.
fn update_disobedience(
    transaction: &Transaction<'_>,
    columns: &RecordColumns,
) -> rusqlite::Result<()> {
    let sql = "UPDATE tombstones SET disobeyed_events = max(disobeyed_events, ?4),
                   disobeyed_tokens = max(disobeyed_tokens, ?5),
                   disobeyed_usd = max(disobeyed_usd, ?6)
               WHERE tenant = ?1 AND session = ?2 AND agent = ?3 AND lifted_by IS NULL";
    transaction.prepare_cached(sql)?.execute(params![
        columns.tenant,
        columns.session,
        columns.agent,
        columns.wasted_events,
        columns.wasted_tokens,
        columns.wasted_usd,
    ])?;
    Ok(())
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

pub(super) fn tombstone_row<'a>(row: &'a Row<'_>) -> rusqlite::Result<(VerdictId, &'a [u8])> {
    let IdBlob(id) = row.get(0)?;
    Ok((id, row.get_ref(1)?.as_blob()?))
}

/// Whether a termination is on disk, or a later reset of its session is.
pub(super) fn is_obsolete(
    connection: &Connection,
    id: VerdictId,
    columns: &RecordColumns,
) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM records WHERE verdict_id = ?1)
                   OR EXISTS (SELECT 1 FROM tombstones WHERE verdict_id = ?1)
                   OR EXISTS (SELECT 1 FROM records WHERE tenant = ?2 AND session = ?3
                              AND verdict_id > ?1 AND kind = ?4 AND NOT withdrawn)";
    let mut statement = connection.prepare_cached(sql)?;
    let (tenant, session) = (&columns.tenant, &columns.session);
    let reset = record::kind(Effect::Reset);
    statement.query_row(params![IdBlob(id), tenant, session, reset], |row| {
        row.get(0)
    })
}

/// The position of the record of a verdict.
pub(super) fn find_record(
    connection: &Connection,
    id: VerdictId,
) -> rusqlite::Result<Option<ChainHead>> {
    let sql = "SELECT record, hash FROM records WHERE verdict_id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([IdBlob(id)], read_head_row).optional()
}
