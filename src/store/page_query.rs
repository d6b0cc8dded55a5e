//! The SQL of a page of the audit log.

use rusqlite::{Connection, ToSql, params};

use super::{
    reader::{ReadError, VerdictFilter},
    record,
    transaction::IdBlob,
};
use crate::domain::VerdictId;

/// How many rows a page examines, unless more verdicts were asked for. As many of a range
/// of times are sorted; a wider range is read in the order of ids.
pub(super) const EXAMINED_MAX: usize = if cfg!(test) { 16 } else { 10_000 };

/// The order of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    OldestFirst,
    NewestFirst,
}

/// The times of a filter in milliseconds, both inclusive: a column has no more.
pub(super) struct TimeRange {
    start_ms: Option<i64>,
    end_ms: Option<i64>,
}

impl TimeRange {
    pub fn new(filter: &VerdictFilter) -> Self {
        Self {
            start_ms: filter.start.map(|start| record::millis(start).0),
            end_ms: filter.end.map(|end| record::millis(end).0),
        }
    }

    /// Whether too many rows are in the range to sort them for each page. Only a filter
    /// by nothing but time sorts.
    pub fn is_wide(
        &self,
        connection: &Connection,
        filter: &VerdictFilter,
    ) -> Result<bool, ReadError> {
        let Some(tenant) = &filter.tenant else {
            return Ok(false);
        };
        let has_other_index = !filter.labels.is_empty() || filter.rated_only;
        if index_of(filter, false) != BY_TIME || has_other_index {
            return Ok(false);
        }
        let sql = "SELECT count(*) FROM (SELECT 1 FROM records INDEXED BY records_by_time
                       WHERE tenant = ?1 AND time_ms BETWEEN ?2 AND ?3 LIMIT ?4)";
        let (start, end) = (
            self.start_ms.unwrap_or(i64::MIN),
            self.end_ms.unwrap_or(i64::MAX),
        );
        let limit = EXAMINED_MAX as i64 + 1;
        let rows: i64 = connection
            .prepare_cached(sql)?
            .query_row(params![tenant.name(), start, end, limit], |row| row.get(0))?;
        Ok(rows == limit)
    }
}

/// The SQL of the rows that a page examines: those that match the most selective part of
/// its filter, for which there is an index. Rows that do not match the rest are selected
/// without a body, so that they count: a filter that matches little must not search the
/// whole log for one page.
pub(super) struct PageQuery {
    pub sql: String,
    pub parameters: Vec<Box<dyn ToSql>>,
}

impl PageQuery {
    /// Selects one row more than `rows_max`, which tells whether there is another page. If
    /// `is_wide`, rows of all times are selected, in the order of their ids.
    pub fn new(
        filter: &VerdictFilter,
        from: VerdictId,
        order: Order,
        rows_max: usize,
        is_wide: bool,
    ) -> Self {
        let mut query = Self {
            sql: String::new(),
            parameters: Vec::new(),
        };
        let (comparison, direction) = match order {
            Order::OldestFirst => (">", "ASC"),
            Order::NewestFirst => ("<", "DESC"),
        };
        let (source, ordered_by) = query.source(filter, is_wide);
        let id = query.bind(IdBlob(from));
        query.sql = format!(
            "SELECT records.verdict_id, CASE WHEN records.kind <> {} AND NOT records.withdrawn",
            record::WITHDRAWAL
        );
        query.add_conditions(filter);
        query.add_times(filter);
        query.sql += &format!(
            " THEN records.body END, records.record, records.hash
             FROM {source} {ordered_by} {comparison} {id}"
        );
        if source.starts_with("records ") {
            query.add_indexed(filter, is_wide);
        }
        let limit = i64::try_from(rows_max).map_or(i64::MAX, |rows| rows.saturating_add(1));
        let limit = query.bind(limit);
        query.sql += &format!(" ORDER BY {ordered_by} {direction} LIMIT {limit}");
        query
    }

    /// The tables up to the first condition on the id, and the column of the id. The rows
    /// of a label are in the order of their ids too.
    fn source(&mut self, filter: &VerdictFilter, is_wide: bool) -> (String, &'static str) {
        let label = filter.labels.iter().next();
        if let (true, Some(tenant)) = (filter.rated_only, &filter.tenant) {
            let tenant = self.bind(tenant.name().to_owned());
            let tables = format!(
                "ratings AS rated CROSS JOIN records ON records.verdict_id = rated.verdict_id
                 WHERE rated.tenant = {tenant} AND rated.rating_id =
                     (SELECT max(rating_id) FROM ratings AS other
                      WHERE other.tenant = rated.tenant
                          AND other.verdict_id = rated.verdict_id) AND"
            );
            return (tables, "rated.verdict_id");
        }
        match (label, &filter.tenant, &filter.session) {
            (Some((name, value)), Some(tenant), None) => {
                let tenant = self.bind(tenant.name().to_owned());
                let (name, value) = (self.bind(name.clone()), self.bind(value.clone()));
                let tables = format!(
                    "record_labels AS label CROSS JOIN records
                         ON records.verdict_id = label.verdict_id
                     WHERE label.tenant = {tenant} AND label.name = {name}
                         AND label.value = {value} AND"
                );
                (tables, "label.verdict_id")
            }
            _ => {
                let tables = format!("records INDEXED BY {} WHERE", index_of(filter, is_wide));
                (tables, "records.verdict_id")
            }
        }
    }

    fn add_conditions(&mut self, filter: &VerdictFilter) {
        if let Some(tenant) = &filter.tenant {
            self.require("records.tenant =", tenant.name().to_owned());
        }
        if let Some(session) = &filter.session {
            self.require("records.session =", session.as_str().to_owned());
        }
        if !filter.detector.is_empty() {
            self.require("records.detector =", filter.detector.clone());
        }
        if let Some(action) = filter.min_action {
            self.require("records.action >=", action as u32 + 1);
        }
        for (name, value) in &filter.labels {
            let (name, value) = (self.bind(name.clone()), self.bind(value.clone()));
            self.sql += &format!(
                " AND EXISTS (SELECT 1 FROM record_labels AS other
                      WHERE other.tenant = records.tenant AND other.name = {name}
                          AND other.value = {value} AND other.verdict_id = records.verdict_id)"
            );
        }
    }

    /// The conditions that an index of `records` answers.
    fn add_indexed(&mut self, filter: &VerdictFilter, is_wide: bool) {
        let index = index_of(filter, is_wide);
        if let Some(tenant) = &filter.tenant {
            self.require("records.tenant =", tenant.name().to_owned());
        }
        match &filter.session {
            Some(session) if index == BY_SESSION => {
                self.require("records.session =", session.as_str().to_owned());
            }
            _ if index == BY_DETECTOR => {
                self.require("records.detector =", filter.detector.clone());
            }
            _ if index == BY_TIME => self.add_times(filter),
            _ => {}
        }
    }

    fn add_times(&mut self, filter: &VerdictFilter) {
        let times = TimeRange::new(filter);
        if let Some(start) = times.start_ms {
            self.require("records.time_ms >=", start);
        }
        if let Some(end) = times.end_ms {
            self.require("records.time_ms <=", end);
        }
    }

    fn require(&mut self, comparison: &str, value: impl ToSql + 'static) {
        let parameter = self.bind(value);
        self.sql += &format!(" AND {comparison} {parameter}");
    }

    fn bind(&mut self, value: impl ToSql + 'static) -> String {
        self.parameters.push(Box::new(value));
        format!("?{}", self.parameters.len())
    }
}

const BY_DETECTOR: &str = "records_by_detector";
const BY_SESSION: &str = "records_by_session";
const BY_TIME: &str = "records_by_time";

/// The index with the fewest rows for this filter.
fn index_of(filter: &VerdictFilter, is_wide: bool) -> &'static str {
    let has_time = filter.start.is_some() || filter.end.is_some();
    match filter {
        VerdictFilter { tenant: None, .. } => "records_by_id",
        VerdictFilter {
            session: Some(_), ..
        } => BY_SESSION,
        VerdictFilter { detector, .. } if !detector.is_empty() => BY_DETECTOR,
        _ if has_time && !is_wide => BY_TIME,
        _ => "records_by_tenant",
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use rusqlite::params_from_iter;

    use super::*;
    use crate::{
        domain::{Action, Labels, SessionId, Tenant},
        store::{database::Database, dir::StoreDir, schema},
    };

    fn of_tenant() -> VerdictFilter {
        VerdictFilter {
            tenant: Some(Tenant::default()),
            ..VerdictFilter::default()
        }
    }

    /// Checks what the plan of each filter searches. The last of each is `is_wide`.
    fn check_plans(filters: impl IntoIterator<Item = (&'static str, VerdictFilter, bool)>) {
        let dir = tempfile::tempdir().unwrap();
        let dir = StoreDir(dir.path().to_owned());
        let _database = Database::open(&dir, UNIX_EPOCH).unwrap();
        let connection = schema::open_read_only(&dir, false).unwrap();
        for (expected, filter, is_wide) in filters {
            for order in [Order::OldestFirst, Order::NewestFirst] {
                let query = PageQuery::new(&filter, VerdictId(1), order, 10, is_wide);
                let sql = format!("EXPLAIN QUERY PLAN {}", query.sql);
                let mut statement = connection.prepare(&sql).unwrap();
                let parameters = params_from_iter(query.parameters.iter());
                let steps = statement.query_map(parameters, |row| row.get::<_, String>(3));
                let plan: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
                let plan = plan.join("; ");
                assert!(plan.contains(expected), "{expected}: {plan}");
                assert!(!plan.contains("SCAN"), "{expected}: {plan}");
                // Rows that do not match are among those that a page counts.
                let (_, conditions) = query.sql.split_once(" THEN ").unwrap();
                assert!(!conditions.contains("action"), "{conditions}");
                // Only the rows of a narrow range of times are sorted.
                let is_sorted = plan.contains("TEMP B-TREE");
                assert_eq!(is_sorted, expected.contains("by_time"), "{plan}");
            }
        }
    }

    /// No filter needs a scan of the table, and a page in the order of ids none of the
    /// index: each plan searches one with all that the filter fixes.
    #[test]
    fn each_filter_has_its_index() {
        let session = SessionId::parse("s").unwrap();
        let label = Labels::from([("team".to_owned(), "blue".to_owned())]);
        let filters = [
            ("records_by_id", VerdictFilter::default()),
            ("records_by_tenant (tenant=?", of_tenant()),
            (
                "records_by_session (tenant=? AND session=?",
                VerdictFilter {
                    session: Some(session),
                    ..of_tenant()
                },
            ),
            (
                "records_by_detector (tenant=? AND detector=?",
                VerdictFilter {
                    detector: "cycle".to_owned(),
                    ..of_tenant()
                },
            ),
            (
                "records_by_time (tenant=? AND time_ms>?",
                VerdictFilter {
                    start: Some(UNIX_EPOCH),
                    ..of_tenant()
                },
            ),
            (
                "PRIMARY KEY (tenant=? AND name=? AND value=? AND verdict_id",
                VerdictFilter {
                    labels: label,
                    ..of_tenant()
                },
            ),
            (
                "rated USING PRIMARY KEY (tenant=? AND verdict_id",
                VerdictFilter {
                    rated_only: true,
                    ..of_tenant()
                },
            ),
        ];
        let narrow = filters.map(|(expected, filter)| (expected, filter, false));
        let of_time = VerdictFilter {
            end: Some(UNIX_EPOCH),
            ..of_tenant()
        };
        let wide = ("records_by_tenant (tenant=? AND verdict_id", of_time, true);
        check_plans(narrow.into_iter().chain([wide]));
    }

    #[test]
    fn combined_filters_are_read_by_one_of_their_parts_in_the_order_of_ids() {
        let label = Labels::from([("team".to_owned(), "blue".to_owned())]);
        let combined = [
            (
                "records_by_detector (tenant=? AND detector=? AND verdict_id",
                VerdictFilter {
                    detector: "cycle".to_owned(),
                    start: Some(UNIX_EPOCH),
                    ..of_tenant()
                },
            ),
            (
                "PRIMARY KEY (tenant=? AND name=? AND value=? AND verdict_id",
                VerdictFilter {
                    labels: label.clone(),
                    end: Some(UNIX_EPOCH),
                    ..of_tenant()
                },
            ),
            (
                "PRIMARY KEY (tenant=? AND name=? AND value=? AND verdict_id",
                VerdictFilter {
                    labels: label,
                    detector: "cycle".to_owned(),
                    ..of_tenant()
                },
            ),
            (
                "records_by_tenant (tenant=? AND verdict_id",
                VerdictFilter {
                    min_action: Some(Action::Terminate),
                    ..of_tenant()
                },
            ),
        ];
        check_plans(combined.map(|(expected, filter)| (expected, filter, false)));
    }
}
