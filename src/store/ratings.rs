//! Ratings of verdicts on disk.

use rusqlite::{Transaction, params};

use super::{
    record::{RatedVerdict, RecordColumns},
    transaction::IdBlob,
};
use crate::domain::VerdictId;

/// How many ratings of one verdict are kept. The newest counts. Earlier ones are needed
/// while a later one can still be withdrawn.
const RATINGS_OF_VERDICT_MAX: i64 = 8;

/// Inserts the rating with this record.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    id: VerdictId,
    columns: &RecordColumns,
) -> rusqlite::Result<()> {
    let Some(rated) = &columns.rated else {
        return Ok(());
    };
    let RatedVerdict {
        id: verdict,
        detector,
        rating,
    } = rated;
    let sql = "INSERT INTO ratings (tenant, verdict_id, rating_id, session, detector, rating,
                   operator, reason, time_ms)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    transaction.prepare_cached(sql)?.execute(params![
        columns.tenant,
        IdBlob(*verdict),
        IdBlob(id),
        columns.session,
        detector,
        *rating as u32 + 1,
        columns.operator,
        columns.reason,
        columns.time_ms,
    ])?;
    let sql = "DELETE FROM ratings WHERE tenant = ?1 AND verdict_id = ?2 AND rating_id <=
                   (SELECT rating_id FROM ratings WHERE tenant = ?1 AND verdict_id = ?2
                    ORDER BY rating_id DESC LIMIT 1 OFFSET ?3)";
    let mut statement = transaction.prepare_cached(sql)?;
    statement.execute(params![
        columns.tenant,
        IdBlob(*verdict),
        RATINGS_OF_VERDICT_MAX
    ])?;
    Ok(())
}
