//! Reads the audit log in pages.

use std::{sync::Arc, time::SystemTime};

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, ToSql, params, params_from_iter};
use thiserror::Error;

use super::{
    Store,
    dir::{StoreDir, StoreError},
    publisher::CommitPublisher,
    record, schema,
    transaction::IdBlob,
};
use crate::domain::{
    Action, ChainHash, ChainHead, Labels, SessionId, Tenant, Verdict, VerdictId, VerdictRecord,
    has_labels,
};

/// Why the log cannot be read at a position.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("the verdict is older than what is kept")]
    NotRetained,
    #[error("the audit log cannot be read")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unreadable(error.into())
    }
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Unreadable(error.into())
    }
}

/// Selects verdicts.
#[derive(Clone, Debug, Default)]
pub struct VerdictFilter {
    /// `None`: any. Only the service itself reads those of all tenants.
    pub tenant: Option<Tenant>,
    /// `None`: any.
    pub session: Option<SessionId>,
    /// The session must have all of these.
    pub labels: Labels,
    /// Empty: any.
    pub detector: String,
    /// This action or a stronger one; `None`: any, also verdicts without an action.
    pub min_action: Option<Action>,
    /// At this time or later.
    pub start: Option<SystemTime>,
    /// Before this time.
    pub end: Option<SystemTime>,
}

impl VerdictFilter {
    pub fn matches(&self, record: &VerdictRecord) -> bool {
        let Verdict {
            session,
            detector,
            action,
            time,
            ..
        } = &*record.verdict;
        let tenant = self.tenant.as_ref();
        tenant.is_none_or(|tenant| session.belongs_to(tenant))
            && self.session.as_ref().is_none_or(|wanted| wanted == session)
            && (self.detector.is_empty() || self.detector == **detector)
            && *action >= self.min_action
            && self.start.is_none_or(|start| *time >= start)
            && self.end.is_none_or(|end| *time < end)
            && has_labels(&record.labels, &self.labels)
    }
}

/// A page of verdicts.
#[derive(Debug)]
pub struct VerdictPage {
    pub verdicts: Vec<VerdictRecord>,
    /// The verdicts up to this one have been examined.
    pub cursor: VerdictId,
    /// There are no more verdicts at the moment.
    pub at_end: bool,
}

impl VerdictPage {
    fn empty(cursor: VerdictId) -> Self {
        Self {
            verdicts: Vec::new(),
            cursor,
            at_end: true,
        }
    }
}

/// The position of a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPosition {
    /// The last examined verdict, or the one the reader started after.
    pub cursor: VerdictId,
    /// The end of the log was reached.
    pub at_end: bool,
}

/// The order of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    OldestFirst,
    NewestFirst,
}

/// Connections that only read. As many are kept as reads run at a time.
pub(super) struct Readers {
    dir: StoreDir,
    idle: Mutex<Vec<Connection>>,
    /// Whether the writer has the database open. On a full or read-only disk it has not,
    /// and reads take no locks there; the writer waits for them before it opens it.
    pub is_open: Arc<RwLock<bool>>,
}

/// How many idle connections are kept.
const IDLE_MAX: usize = 2;
/// How many rows of a range of times are sorted. A wider range is read in the order of
/// ids, at most this many rows per page.
const TIME_ROWS_MAX: usize = if cfg!(test) { 16 } else { 10_000 };

impl Readers {
    pub fn new(dir: StoreDir, is_open: bool) -> Self {
        Self {
            dir,
            idle: Mutex::new(Vec::new()),
            is_open: Arc::new(RwLock::new(is_open)),
        }
    }

    /// Closes idle connections. The last connection to close empties the write-ahead log,
    /// and only the writer can.
    pub fn close(&self) {
        self.idle.lock().clear();
    }

    fn with_connection<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => schema::open_read_only(&self.dir, false)?,
        };
        let result = read(&connection);
        if result.is_ok() {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_MAX {
                idle.push(connection);
            }
        }
        result
    }

    fn page(
        &self,
        filter: &VerdictFilter,
        from: VerdictId,
        order: Order,
        most: usize,
    ) -> Result<VerdictPage, ReadError> {
        let read = |connection: &Connection| {
            let times = TimeRange::new(filter);
            let is_wide = times.is_wide(connection, filter)?;
            let rows_max = if is_wide { TIME_ROWS_MAX } else { most };
            let query = PageQuery::new(filter, from, order, rows_max, is_wide);
            let mut statement = connection.prepare_cached(&query.sql)?;
            let mut rows = statement.query(params_from_iter(query.parameters.iter()))?;
            let mut page = VerdictPage::empty(from);
            let mut examined = 0;
            while let Some(row) = rows.next()? {
                if examined == rows_max || page.verdicts.len() == most {
                    page.at_end = false;
                    break;
                }
                examined += 1;
                let IdBlob(id) = row.get(0)?;
                page.cursor = id;
                if is_wide && !times.contains(row.get(4)?) {
                    continue;
                }
                let number: i64 = row.get(2)?;
                let position = ChainHead {
                    record: u64::try_from(number).unwrap_or(0),
                    hash: ChainHash(row.get(3)?),
                };
                let body = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
                // A record that this version cannot decode is skipped.
                if let Some(mut record) = record::decode(id, body) {
                    record.position = Some(position);
                    page.verdicts.push(record);
                }
            }
            Ok(page)
        };
        let is_open = self.is_open.read();
        if *is_open {
            drop(is_open);
            return self.with_connection(read);
        }
        match schema::open_read_only(&self.dir, true) {
            Ok(connection) => read(&connection),
            // The disk has been full since the start, and nothing was ever written.
            Err(StoreError::Empty { .. }) => Ok(VerdictPage::empty(from)),
            Err(_) if !self.dir.database().exists() => Ok(VerdictPage::empty(from)),
            Err(error) => Err(error.into()),
        }
    }
}

/// The times of a filter in milliseconds, both inclusive: a column has no more.
struct TimeRange {
    start_ms: Option<i64>,
    end_ms: Option<i64>,
}

impl TimeRange {
    fn new(filter: &VerdictFilter) -> Self {
        Self {
            start_ms: filter.start.map(|start| record::millis(start).0),
            end_ms: filter.end.map(|end| record::millis(end).0),
        }
    }

    fn contains(&self, time_ms: i64) -> bool {
        self.start_ms.is_none_or(|start| time_ms >= start)
            && self.end_ms.is_none_or(|end| time_ms <= end)
    }

    /// Whether too many rows are in the range to sort them for each page. Only a filter
    /// by nothing but time sorts.
    fn is_wide(&self, connection: &Connection, filter: &VerdictFilter) -> Result<bool, ReadError> {
        let Some(tenant) = &filter.tenant else {
            return Ok(false);
        };
        if index_of(filter, false) != BY_TIME || !filter.labels.is_empty() {
            return Ok(false);
        }
        let sql = "SELECT count(*) FROM (SELECT 1 FROM records INDEXED BY records_by_time
                       WHERE tenant = ?1 AND time_ms BETWEEN ?2 AND ?3 LIMIT ?4)";
        let (start, end) = (
            self.start_ms.unwrap_or(i64::MIN),
            self.end_ms.unwrap_or(i64::MAX),
        );
        let limit = TIME_ROWS_MAX as i64 + 1;
        let rows: i64 = connection
            .prepare_cached(sql)?
            .query_row(params![tenant.name(), start, end, limit], |row| row.get(0))?;
        Ok(rows == limit)
    }
}

/// The SQL of a page. Each kind of filter has its index, so a page reads only rows that
/// match the most selective one.
struct PageQuery {
    sql: String,
    parameters: Vec<Box<dyn ToSql>>,
}

impl PageQuery {
    /// If `is_wide`, rows of all times are selected, in the order of their ids.
    fn new(
        filter: &VerdictFilter,
        from: VerdictId,
        order: Order,
        most: usize,
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
            "SELECT records.verdict_id, records.body, records.record, records.hash,
                 records.time_ms
             FROM {source} {ordered_by} {comparison} {id} AND records.kind <> {}
                 AND NOT records.withdrawn",
            record::WITHDRAWAL
        );
        query.add_conditions(filter);
        if !is_wide {
            query.add_times(&TimeRange::new(filter));
        }
        // One more than asked for tells whether there is another page.
        let limit = i64::try_from(most).map_or(i64::MAX, |most| most.saturating_add(1));
        let limit = query.bind(limit);
        query.sql += &format!(" ORDER BY {ordered_by} {direction} LIMIT {limit}");
        query
    }

    /// The tables up to the first condition on the id, and the column of the id. The rows
    /// of a label are in the order of their ids too.
    fn source(&mut self, filter: &VerdictFilter, is_wide: bool) -> (String, &'static str) {
        let label = filter.labels.iter().next();
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

    fn add_times(&mut self, times: &TimeRange) {
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

const BY_TIME: &str = "records_by_time";

/// The index with the fewest rows for this filter.
fn index_of(filter: &VerdictFilter, is_wide: bool) -> &'static str {
    let has_time = filter.start.is_some() || filter.end.is_some();
    match filter {
        VerdictFilter { tenant: None, .. } => "records_by_id",
        VerdictFilter {
            session: Some(_), ..
        } => "records_by_session",
        VerdictFilter { detector, .. } if !detector.is_empty() => "records_by_detector",
        _ if has_time && !is_wide => BY_TIME,
        _ => "records_by_tenant",
    }
}

impl Store {
    /// Returns up to `most` verdicts after the given one. Recent verdicts are complete;
    /// older ones are read from the disk and are as in the log.
    pub fn read_after(
        &self,
        after: VerdictId,
        most: usize,
        filter: &VerdictFilter,
    ) -> Result<VerdictPage, ReadError> {
        match (self.publisher.page(after, most, filter), &self.disk) {
            (Err(ReadError::NotRetained), Some(disk)) => {
                self.read_disk(disk, filter, Some(after), Order::OldestFirst, most)
            }
            (page, _) => page,
        }
    }

    /// As `read_after`, but all verdicts are as in the log. `None` starts with the first
    /// retained verdict.
    pub fn read_audit_log(
        &self,
        after: Option<VerdictId>,
        most: usize,
        filter: &VerdictFilter,
    ) -> Result<VerdictPage, ReadError> {
        match &self.disk {
            Some(disk) => self.read_disk(disk, filter, after, Order::OldestFirst, most),
            None => {
                let after = after.unwrap_or_else(|| self.retained_after());
                self.publisher.page(after, most, filter)
            }
        }
    }

    /// As `read_audit_log`, but newest first, starting before the given verdict. `None`
    /// starts with the last verdict.
    pub fn read_audit_log_reverse(
        &self,
        before: Option<VerdictId>,
        most: usize,
        filter: &VerdictFilter,
    ) -> Result<VerdictPage, ReadError> {
        match &self.disk {
            Some(disk) => self.read_disk(disk, filter, before, Order::NewestFirst, most),
            None => page(most, filter, |show| {
                let before = before.unwrap_or(VerdictId(u128::MAX));
                Ok(self.publisher.read_back(before, show))
            }),
        }
    }

    fn read_disk(
        &self,
        disk: &super::Disk,
        filter: &VerdictFilter,
        from: Option<VerdictId>,
        order: Order,
        most: usize,
    ) -> Result<VerdictPage, ReadError> {
        let from = match order {
            Order::OldestFirst => {
                let retained_after = self.retained_after();
                let after = from.unwrap_or(retained_after);
                if after < retained_after {
                    return Err(ReadError::NotRetained);
                }
                after
            }
            Order::NewestFirst => from.unwrap_or(VerdictId(u128::MAX)),
        };
        let mut page = disk.readers.page(filter, from, order, most)?;
        // The bounds of times in the query are in milliseconds.
        page.verdicts.retain(|record| filter.matches(record));
        Ok(page)
    }

    /// The verdict before the last `most` recent ones, which are still complete.
    pub fn cursor_before_last(&self, most: usize) -> VerdictId {
        self.publisher.before_last(most)
    }
}

impl CommitPublisher {
    fn page(
        &self,
        after: VerdictId,
        most: usize,
        filter: &VerdictFilter,
    ) -> Result<VerdictPage, ReadError> {
        page(most, filter, |show| self.read(after, show))
    }
}

fn page(
    most: usize,
    filter: &VerdictFilter,
    read: impl FnOnce(&mut dyn FnMut(VerdictRecord) -> bool) -> Result<ReadPosition, ReadError>,
) -> Result<VerdictPage, ReadError> {
    let mut verdicts = Vec::new();
    let reached = read(&mut |issued| {
        if filter.matches(&issued) {
            verdicts.push(issued);
        }
        verdicts.len() < most
    })?;
    Ok(VerdictPage {
        verdicts,
        cursor: reached.cursor,
        at_end: reached.at_end,
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::store::database::Database;

    /// No filter needs a scan of the table, and a page in the order of ids none of the
    /// index: each plan searches one with all that the filter fixes.
    #[test]
    fn each_filter_has_its_index() {
        let dir = tempfile::tempdir().unwrap();
        let dir = StoreDir(dir.path().to_owned());
        let _database = Database::open(&dir, UNIX_EPOCH).unwrap();
        let connection = schema::open_read_only(&dir, false).unwrap();
        let of_tenant = || VerdictFilter {
            tenant: Some(Tenant::default()),
            ..VerdictFilter::default()
        };
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
                "PRIMARY KEY (tenant=? AND name=? AND value=?",
                VerdictFilter {
                    labels: label,
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
        for (expected, filter, is_wide) in narrow.into_iter().chain([wide]) {
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
                // Only the rows of a narrow range of times are sorted.
                let is_sorted = plan.contains("TEMP B-TREE");
                assert_eq!(is_sorted, expected.contains("by_time"), "{plan}");
            }
        }
    }
}
