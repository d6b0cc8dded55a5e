//! Ratings of verdicts: in the table `ratings`, or without a disk in memory.

use std::{collections::BTreeMap, time::SystemTime};

use parking_lot::Mutex;
use rusqlite::{
    Connection, OptionalExtension, Transaction, params, params_from_iter, types::ToSql,
};

use super::{
    ReadError, Store,
    publisher::RECENT_MAX,
    record::{self, RatedVerdict, RecordColumns},
    transaction::IdBlob,
};
use crate::domain::{Feedback, Rating, Tenant, Verdict, VerdictId, VerdictRecord};

/// How many ratings of a tenant are kept; the oldest are removed. They are few, because
/// people make them, and outlive their records so that precision can be followed.
pub(super) const RATINGS_PER_TENANT_MAX: i64 = if cfg!(test) { 32 } else { 50_000 };

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
    let sql = "DELETE FROM ratings WHERE tenant = ?1 AND rating_id <=
                   (SELECT rating_id FROM ratings WHERE tenant = ?1
                    ORDER BY rating_id DESC LIMIT 1 OFFSET ?2)";
    let mut statement = transaction.prepare_cached(sql)?;
    statement.execute(params![columns.tenant, RATINGS_PER_TENANT_MAX])?;
    Ok(())
}

/// Removes a rating that was refused after all; an earlier one counts again.
pub(super) fn remove(
    transaction: &Transaction<'_>,
    tenant: &str,
    id: VerdictId,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM ratings WHERE tenant = ?1 AND rating_id = ?2";
    let mut statement = transaction.prepare_cached(sql)?;
    statement.execute(params![tenant, IdBlob(id)])?;
    Ok(())
}

/// Removes the oldest ratings, because the files are too large. Returns how many.
pub(super) fn remove_oldest(transaction: &Transaction<'_>, most: usize) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM ratings WHERE (tenant, verdict_id, rating_id) IN
                   (SELECT tenant, verdict_id, rating_id FROM ratings
                    ORDER BY rating_id LIMIT ?1)";
    transaction.prepare_cached(sql)?.execute([most as i64])
}

/// The ratings of a store without a disk, of as many verdicts as it keeps.
#[derive(Default)]
pub(super) struct MemoryRatings(Mutex<BTreeMap<VerdictId, (String, Feedback)>>);

impl MemoryRatings {
    pub fn contains(&self, id: VerdictId) -> bool {
        self.0.lock().contains_key(&id)
    }

    fn insert(&self, verdict: &Verdict, feedback: Feedback) {
        let mut ratings = self.0.lock();
        ratings.insert(verdict.id, (verdict.detector.to_string(), feedback));
        if ratings.len() > RECENT_MAX {
            ratings.pop_first();
        }
    }
}

/// How many verdicts are rated, by detector and rating.
pub type RatingCounts = BTreeMap<(String, Rating), u64>;

/// How many verdicts are rated, by detector, the number of the span of time, and rating.
pub type RatingCountsBySpan = BTreeMap<(String, usize, Rating), u64>;

impl Store {
    /// A verdict of this tenant, complete if it is recent, else as in the log. `None`: there
    /// is no such verdict, or it is no longer kept.
    pub fn find_verdict(
        &self,
        tenant: &Tenant,
        id: VerdictId,
    ) -> Result<Option<VerdictRecord>, ReadError> {
        let of_tenant = |found: &VerdictRecord| found.verdict.session.belongs_to(tenant);
        if let Some(recent) = self.publisher.find(id) {
            return Ok(Some(recent).filter(of_tenant));
        }
        let Some(disk) = &self.disk else {
            return Ok(None);
        };
        disk.readers.read(None, |connection| {
            let sql = "SELECT body FROM records
                       WHERE verdict_id = ?1 AND tenant = ?2 AND kind <> ?3 AND NOT withdrawn";
            let parameters = params![IdBlob(id), tenant.name(), record::WITHDRAWAL];
            let body: Option<Vec<u8>> = connection
                .prepare_cached(sql)?
                .query_row(parameters, |row| row.get(0))
                .optional()?;
            let found = body.and_then(|body| record::decode(id, &body));
            Ok(found.filter(of_tenant))
        })
    }

    /// A recent verdict, complete.
    pub fn recent_verdict(&self, id: VerdictId) -> Option<VerdictRecord> {
        self.publisher.find(id)
    }

    /// The ratings by operators of these verdicts of a tenant.
    pub fn feedback(
        &self,
        tenant: &Tenant,
        ids: &[VerdictId],
    ) -> Result<BTreeMap<VerdictId, Feedback>, ReadError> {
        let Some(disk) = &self.disk else {
            let ratings = self.memory_ratings.0.lock();
            let known = ids.iter().filter_map(|id| Some((*id, ratings.get(id)?)));
            return Ok(known
                .map(|(id, (_, feedback))| (id, feedback.clone()))
                .collect());
        };
        disk.readers.read(BTreeMap::new(), |connection| {
            let mut feedback = BTreeMap::new();
            if !has_ratings(connection)? {
                return Ok(feedback);
            }
            let sql = "SELECT rating, operator, reason, time_ms FROM ratings
                       WHERE tenant = ?1 AND verdict_id = ?2 ORDER BY rating_id DESC LIMIT 1";
            let mut statement = connection.prepare_cached(sql)?;
            for id in ids {
                let mut rows = statement.query(params![tenant.name(), IdBlob(*id)])?;
                if let Some(row) = rows.next()?
                    && let Some(rating) = rating_of(row.get(0)?)
                {
                    let known = Feedback {
                        rating,
                        operator: row.get(1)?,
                        reason: row.get(2)?,
                        time: record::time(row.get(3)?, 0),
                    };
                    feedback.insert(*id, known);
                }
            }
            Ok(feedback)
        })
    }

    /// Notes a rating that has happened. On disk its record has done so.
    pub fn apply_rating(&self, verdict: &Verdict, feedback: Feedback) {
        if self.disk.is_none() {
            self.memory_ratings.insert(verdict, feedback);
        }
    }

    /// How many verdicts of all tenants are rated. Reads all ratings.
    pub fn rating_counts(&self) -> Result<RatingCounts, ReadError> {
        let mut counts = RatingCounts::new();
        let Some(disk) = &self.disk else {
            for (detector, feedback) in self.memory_ratings.0.lock().values() {
                *counts
                    .entry((detector.clone(), feedback.rating))
                    .or_default() += 1;
            }
            return Ok(counts);
        };
        disk.readers.read(counts, |connection| {
            let mut counts = RatingCounts::new();
            if !has_ratings(connection)? {
                return Ok(counts);
            }
            // The bare column `rating` is that of the row with the greatest id.
            let sql = "SELECT detector, rating, count(*) FROM
                           (SELECT detector, rating, max(rating_id) FROM ratings
                            GROUP BY tenant, verdict_id)
                       GROUP BY detector, rating";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let count: u32 = row.get(2)?;
                if let Some(rating) = rating_of(row.get(1)?) {
                    counts.insert((row.get(0)?, rating), count.into());
                }
            }
            Ok(counts)
        })
    }
}

impl Store {
    /// How many verdicts of a tenant are rated, by the span of time in which they were
    /// issued: from one of these times to the next, from the last to now.
    pub fn rating_counts_by_span(
        &self,
        tenant: &Tenant,
        starts: &[SystemTime],
    ) -> Result<RatingCountsBySpan, ReadError> {
        let mut counts = RatingCountsBySpan::new();
        let bounds: Vec<VerdictId> = (starts.iter())
            .map(|start| VerdictId::lower_bound_at(*start))
            .collect();
        let Some(disk) = &self.disk else {
            for (id, (detector, feedback)) in &*self.memory_ratings.0.lock() {
                let span = bounds.iter().filter(|bound| *bound <= id).count();
                let rated = self.publisher.find(*id);
                let is_own = rated.is_some_and(|rated| rated.verdict.session.belongs_to(tenant));
                if let (Some(span), true) = (span.checked_sub(1), is_own) {
                    let key = (detector.clone(), span, feedback.rating);
                    *counts.entry(key).or_default() += 1;
                }
            }
            return Ok(counts);
        };
        let Some(first) = bounds.first() else {
            return Ok(counts);
        };
        disk.readers.read(counts, |connection| {
            let mut counts = RatingCountsBySpan::new();
            if !has_ratings(connection)? {
                return Ok(counts);
            }
            // The number of the span is that of the bounds below the id, less one. The bare
            // column `rating` is that of the row with the greatest id.
            let passed: Vec<String> = (0..bounds.len())
                .map(|bound| format!("(verdict_id >= ?{})", bound + 3))
                .collect();
            let sql = format!(
                "SELECT detector, {} - 1 AS span, rating, count(*) FROM
                     (SELECT detector, verdict_id, rating, max(rating_id) FROM ratings
                      WHERE tenant = ?1 AND verdict_id >= ?2 GROUP BY verdict_id)
                 GROUP BY detector, span, rating",
                passed.join(" + ")
            );
            let mut parameters: Vec<Box<dyn ToSql>> =
                vec![Box::new(tenant.name().to_owned()), Box::new(IdBlob(*first))];
            for bound in &bounds {
                parameters.push(Box::new(IdBlob(*bound)));
            }
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params_from_iter(parameters.iter()))?;
            while let Some(row) = rows.next()? {
                let (span, count): (u32, u32) = (row.get(1)?, row.get(3)?);
                if let Some(rating) = rating_of(row.get(2)?) {
                    counts.insert((row.get(0)?, span as usize, rating), count.into());
                }
            }
            Ok(counts)
        })
    }
}

fn rating_of(column: u32) -> Option<Rating> {
    let index = (column as usize).checked_sub(1)?;
    Rating::ALL.get(index).copied()
}

/// Whether the database has the table. One of an older schema that is read from a disk
/// that cannot be written does not.
pub(super) fn has_ratings(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'ratings'";
    connection.prepare_cached(sql)?.exists([])
}
