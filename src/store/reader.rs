//! Reads the audit log in pages.

use std::{sync::Arc, time::SystemTime};

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, params_from_iter};
use thiserror::Error;

use super::{
    Store,
    dir::{StoreDir, StoreError},
    page_query::{EXAMINED_MAX, Order, PageQuery, TimeRange},
    publisher::CommitPublisher,
    ratings::has_ratings,
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
    /// Only verdicts that an operator has rated. Only the audit log knows it.
    pub rated_only: bool,
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
            if filter.rated_only && !has_ratings(connection)? {
                return Ok(VerdictPage::empty(from));
            }
            // Choose the query: by time if few rows are in the range, else by id.
            let is_wide = TimeRange::new(filter).is_wide(connection, filter)?;
            let rows_max = EXAMINED_MAX.max(most);
            let query = PageQuery::new(filter, from, order, rows_max, is_wide);
            let mut statement = connection.prepare_cached(&query.sql)?;
            let mut rows = statement.query(params_from_iter(query.parameters.iter()))?;
            // Read rows until the page is full or enough were examined.
            let mut page = VerdictPage::empty(from);
            let mut examined = 0;
            while let Some(row) = rows.next()? {
                let body = row.get_ref(1)?.as_blob_or_null();
                let body = body.map_err(rusqlite::Error::from)?;
                let is_full = body.is_some() && page.verdicts.len() == most;
                if examined == rows_max || is_full {
                    page.at_end = false;
                    break;
                }
                examined += 1;
                let IdBlob(id) = row.get(0)?;
                page.cursor = id;
                let Some(body) = body else {
                    continue;
                };
                let number: i64 = row.get(2)?;
                let position = ChainHead {
                    record: u64::try_from(number).unwrap_or(0),
                    hash: ChainHash(row.get(3)?),
                };
                // A record that this version cannot decode is skipped.
                if let Some(mut record) = record::decode(id, body) {
                    record.position = Some(position);
                    page.verdicts.push(record);
                }
            }
            Ok(page)
        };
        self.read(VerdictPage::empty(from), read)
    }

    /// Reads the database; `empty` is the result if nothing was ever written.
    pub fn read<T>(
        &self,
        empty: T,
        read: impl FnOnce(&Connection) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        // Without a writer, each read opens the files by itself.
        let is_open = self.is_open.read();
        if *is_open {
            drop(is_open);
            return self.with_connection(read);
        }
        match schema::open_read_only(&self.dir, true) {
            Ok(connection) => read(&connection),
            // The disk has been full since the start, and nothing was ever written.
            Err(StoreError::Empty { .. }) => Ok(empty),
            Err(_) if !self.dir.database().exists() => Ok(empty),
            Err(error) => Err(error.into()),
        }
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

    /// Reads like `read_after`, but all verdicts are as they are in the log. `None` starts
    /// with the first retained verdict.
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
                page(most, self.audit_filter(filter), |show| {
                    self.publisher.read(after, show)
                })
            }
        }
    }

    /// Reads like `read_audit_log`, but newest first, starting before the given verdict.
    /// `None` starts with the last verdict.
    pub fn read_audit_log_reverse(
        &self,
        before: Option<VerdictId>,
        most: usize,
        filter: &VerdictFilter,
    ) -> Result<VerdictPage, ReadError> {
        match &self.disk {
            Some(disk) => self.read_disk(disk, filter, before, Order::NewestFirst, most),
            None => page(most, self.audit_filter(filter), |show| {
                let before = before.unwrap_or(VerdictId(u128::MAX));
                Ok(self.publisher.read_back(before, show))
            }),
        }
    }

    /// The filter of a log that is in memory.
    fn audit_filter<'a>(
        &'a self,
        filter: &'a VerdictFilter,
    ) -> impl Fn(&VerdictRecord) -> bool + 'a {
        let is_rated = |record: &VerdictRecord| self.memory_ratings.contains(record.verdict.id);
        move |record| filter.matches(record) && (!filter.rated_only || is_rated(record))
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
        let matches = |record: &VerdictRecord| filter.matches(record);
        page(most, matches, |show| self.read(after, show))
    }
}

fn page(
    most: usize,
    matches: impl Fn(&VerdictRecord) -> bool,
    read: impl FnOnce(&mut dyn FnMut(VerdictRecord) -> bool) -> Result<ReadPosition, ReadError>,
) -> Result<VerdictPage, ReadError> {
    let mut verdicts = Vec::new();
    let reached = read(&mut |issued| {
        if matches(&issued) {
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
