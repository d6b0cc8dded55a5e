//! The notifications of one endpoint that are read from the feed and not finished.
//!
//! Each is retried by itself, so that one that the endpoint cannot process holds up no
//! other. The notifications of a session keep their order, except that a TERMINATE
//! waits for none, and among those that are due the TERMINATEs go first.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use backon::ExponentialBackoff;
use tokio::time::Instant;

use crate::domain::{Action, VerdictId, VerdictRecord};

/// Above this number the feeds are not read further. Nothing is lost: the rest waits in
/// the log.
const PENDING_MAX: usize = 256;
/// This many of them are reserved for TERMINATEs, which are read ahead of the others.
const PENDING_TERMINATIONS_MIN: usize = 64;

/// A notification until it is delivered, refused or expired.
struct PendingNotification {
    record: VerdictRecord,
    expires_at: Instant,
    /// When the next attempt is due.
    due_at: Instant,
    is_in_flight: bool,
    /// Created by the first failure.
    backoff: Option<ExponentialBackoff>,
}

pub(super) struct PendingNotifications {
    by_id: BTreeMap<VerdictId, PendingNotification>,
    /// All notifications up to this one have been read from the feed, so those that are
    /// not in `by_id` are finished.
    read_until: VerdictId,
    /// The last TERMINATE that was read ahead.
    terminations_read_until: VerdictId,
    /// The last id that `finish` returned.
    cursor: VerdictId,
    /// The endpoint as a whole is not to be called before this time.
    paused_until: Option<Instant>,
}

impl PendingNotification {
    fn new(record: VerdictRecord, expires_at: Instant, now: Instant) -> Self {
        Self {
            expires_at,
            due_at: now,
            is_in_flight: false,
            backoff: None,
            record,
        }
    }

    fn terminates(&self) -> bool {
        self.record.verdict.action == Some(Action::Terminate)
    }
}

impl PendingNotifications {
    /// Nothing is pending up to the cursor.
    pub fn new(cursor: VerdictId) -> Self {
        Self {
            by_id: BTreeMap::new(),
            read_until: cursor,
            terminations_read_until: cursor,
            cursor,
            paused_until: None,
        }
    }

    /// Where the feed of all notifications continues.
    pub fn read_until(&self) -> VerdictId {
        self.read_until
    }

    /// Where the feed of TERMINATEs continues.
    pub fn terminations_read_until(&self) -> VerdictId {
        self.terminations_read_until.max(self.read_until)
    }

    /// Gives up what was not read up to this id.
    pub fn skip_to(&mut self, id: VerdictId) {
        self.read_until = id;
    }

    pub fn may_read(&self) -> bool {
        self.by_id.len() < PENDING_MAX - PENDING_TERMINATIONS_MIN
    }

    pub fn may_read_terminations(&self) -> bool {
        self.by_id.len() < PENDING_MAX
    }

    /// Inserts the next notification of the feed.
    pub fn insert(&mut self, record: VerdictRecord, expires_at: Instant, now: Instant) {
        let pending = PendingNotification::new(record, expires_at, now);
        let id = pending.record.verdict.id;
        self.read_until = id;
        let was_read_ahead = pending.terminates() && id <= self.terminations_read_until;
        if !was_read_ahead {
            self.by_id.insert(id, pending);
        }
    }

    /// Inserts the next notification of the feed of TERMINATEs.
    pub fn insert_ahead(&mut self, record: VerdictRecord, expires_at: Instant, now: Instant) {
        let id = record.verdict.id;
        if id > self.terminations_read_until() {
            self.terminations_read_until = id;
            let pending = PendingNotification::new(record, expires_at, now);
            self.by_id.insert(id, pending);
        }
    }

    /// The notifications that wait only for their time. The others are in flight or
    /// wait for an earlier one of their session.
    fn startable(&self) -> impl Iterator<Item = &PendingNotification> {
        let mut earlier_sessions = HashSet::new();
        self.by_id.values().filter(move |pending| {
            let is_first = earlier_sessions.insert(&pending.record.verdict.session);
            !pending.is_in_flight && (is_first || pending.terminates())
        })
    }

    /// The next notification to attempt, and when it expires. It is in flight until
    /// `retry_later` or `finish`.
    pub fn start_next(&mut self, now: Instant) -> Option<(VerdictRecord, Instant)> {
        if self.paused_until.is_some_and(|until| until > now) {
            return None;
        }
        let due = self.startable().filter(|pending| pending.due_at <= now);
        // The first TERMINATE, or the first of all.
        let next = due.min_by_key(|pending| !pending.terminates())?;
        let id = next.record.verdict.id;
        let pending = self.by_id.get_mut(&id)?;
        pending.is_in_flight = true;
        Some((pending.record.clone(), pending.expires_at))
    }

    /// When the next attempt or expiry is due. `None`: nothing waits for its time.
    pub fn next_due_at(&self) -> Option<Instant> {
        let due_at = self.startable().map(|pending| pending.due_at).min()?;
        Some(self.paused_until.map_or(due_at, |until| due_at.max(until)))
    }

    /// Schedules another attempt of a notification that failed. `pauses_endpoint`: the
    /// failure concerns every notification, so none is attempted until then.
    pub fn retry_later(
        &mut self,
        id: VerdictId,
        new_backoff: impl FnOnce() -> ExponentialBackoff,
        retry_after: Option<Duration>,
        pauses_endpoint: bool,
        now: Instant,
    ) {
        let Some(pending) = self.by_id.get_mut(&id) else {
            return;
        };
        let backoff = pending.backoff.get_or_insert_with(new_backoff);
        let wait = backoff
            .next()
            .unwrap_or_default()
            .max(retry_after.unwrap_or_default());
        pending.is_in_flight = false;
        // An expired notification is attempted no more, so it is finished in time.
        pending.due_at = (now + wait).min(pending.expires_at);
        if pauses_endpoint {
            let until = pending.due_at;
            self.paused_until = Some(self.paused_until.map_or(until, |at| at.max(until)));
        }
    }

    pub fn is_first_failure(&self, id: VerdictId) -> bool {
        self.by_id
            .get(&id)
            .is_some_and(|pending| pending.backoff.is_none())
    }

    /// Removes a finished notification. Returns the id up to which all are finished,
    /// if that has changed.
    pub fn finish(&mut self, id: VerdictId) -> Option<VerdictId> {
        self.by_id.remove(&id);
        let first_pending = self.by_id.first_key_value().map(|(first, _)| first.0);
        let finished_until = first_pending.map_or(self.read_until, |first| {
            // The id need not be a verdict's.
            VerdictId(first.saturating_sub(1)).min(self.read_until)
        });
        if finished_until <= self.cursor {
            return None;
        }
        self.cursor = finished_until;
        Some(finished_until)
    }
}

#[cfg(test)]
mod tests {
    use backon::{BackoffBuilder, ExponentialBuilder};

    use super::*;
    use crate::testing::verdict_record as record;

    fn pending(records: &[(u128, &str, Action)]) -> (PendingNotifications, Instant) {
        let mut pending = PendingNotifications::new(VerdictId(0));
        let now = Instant::now();
        for (id, session, action) in records {
            let expires_at = now + Duration::from_secs(60);
            pending.insert(record(*id, session, *action), expires_at, now);
        }
        (pending, now)
    }

    fn started(pending: &mut PendingNotifications, now: Instant) -> Vec<u128> {
        let next = || Some(pending.start_next(now)?.0.verdict.id.0);
        std::iter::from_fn(next).collect()
    }

    fn fail(pending: &mut PendingNotifications, id: u128, pauses_endpoint: bool, now: Instant) {
        let backoff = || ExponentialBuilder::new().without_max_times().build();
        pending.retry_later(VerdictId(id), backoff, None, pauses_endpoint, now);
    }

    #[test]
    fn a_session_keeps_its_order_and_terminations_go_first() {
        use Action::{Terminate, Warn};
        let (mut pending, now) = pending(&[
            (1, "a", Warn),
            (2, "a", Warn),
            (3, "b", Warn),
            (4, "a", Terminate),
            (5, "c", Terminate),
        ]);
        assert_eq!(started(&mut pending, now), [4, 5, 1, 3]);
        assert_eq!(pending.finish(VerdictId(1)), Some(VerdictId(1)));
        assert_eq!(started(&mut pending, now), [2]);
    }

    #[test]
    fn a_failure_holds_up_only_its_session_unless_it_concerns_the_endpoint() {
        let (mut pending, now) = pending(&[(1, "a", Action::Warn), (2, "b", Action::Warn)]);
        assert_eq!(started(&mut pending, now), [1, 2]);
        fail(&mut pending, 1, false, now);
        pending.insert(
            record(3, "c", Action::Warn),
            now + Duration::from_secs(60),
            now,
        );
        assert_eq!(started(&mut pending, now), [3]);
        let later = now + Duration::from_secs(2);
        assert_eq!(started(&mut pending, later), [1]);
        fail(&mut pending, 1, true, later);
        fail(&mut pending, 2, false, now);
        assert_eq!(started(&mut pending, later), [0_u128; 0]);
    }

    #[test]
    fn the_cursor_stays_before_the_first_unfinished_notification() {
        let (mut pending, now) = pending(&[
            (1, "a", Action::Warn),
            (2, "b", Action::Warn),
            (3, "c", Action::Warn),
        ]);
        assert_eq!(started(&mut pending, now), [1, 2, 3]);
        assert_eq!(pending.finish(VerdictId(2)), None);
        assert_eq!(pending.finish(VerdictId(1)), Some(VerdictId(2)));
        assert_eq!(pending.finish(VerdictId(3)), Some(VerdictId(3)));
    }

    #[test]
    fn a_retry_is_due_no_later_than_its_expiry() {
        let (mut pending, now) = pending(&[(1, "a", Action::Warn)]);
        let (_, expires_at) = pending.start_next(now).unwrap();
        assert!(pending.is_first_failure(VerdictId(1)));
        let backoff = || ExponentialBuilder::new().without_max_times().build();
        let hour = Some(Duration::from_secs(3_600));
        pending.retry_later(VerdictId(1), backoff, hour, false, now);
        assert_eq!(pending.next_due_at(), Some(expires_at));
        assert!(!pending.is_first_failure(VerdictId(1)));
    }

    #[test]
    fn nothing_is_due_while_an_earlier_notification_of_the_session_waits_or_is_in_flight() {
        let (mut pending, now) = pending(&[(1, "a", Action::Warn), (2, "a", Action::Warn)]);
        assert_eq!(started(&mut pending, now), [1]);
        assert_eq!(pending.next_due_at(), None);
        fail(&mut pending, 1, false, now);
        assert!(pending.next_due_at().is_some_and(|due_at| due_at > now));
    }

    #[test]
    fn any_number_may_finish_after_one_that_does_not() {
        let (mut pending, now) = pending(&[(1, "poison", Action::Warn)]);
        assert_eq!(started(&mut pending, now), [1]);
        let expires_at = now + Duration::from_secs(60);
        for id in 2..1_000 {
            assert!(pending.may_read());
            pending.insert(record(id, "fine", Action::Warn), expires_at, now);
            assert_eq!(started(&mut pending, now), [id]);
            assert_eq!(pending.finish(VerdictId(id)), None);
        }
        assert_eq!(pending.finish(VerdictId(1)), Some(VerdictId(999)));
    }

    #[test]
    fn a_termination_that_was_read_ahead_is_sent_once_and_the_cursor_waits_for_the_others() {
        let (mut pending, now) = pending(&[(1, "a", Action::Warn)]);
        let expires_at = now + Duration::from_secs(60);
        let termination = || record(3, "c", Action::Terminate);
        pending.insert_ahead(termination(), expires_at, now);
        pending.insert_ahead(termination(), expires_at, now);
        assert_eq!(started(&mut pending, now), [3, 1]);
        assert_eq!(pending.finish(VerdictId(3)), None);
        assert_eq!(pending.finish(VerdictId(1)), Some(VerdictId(1)));
        pending.insert(record(2, "b", Action::Warn), expires_at, now);
        pending.insert(termination(), expires_at, now);
        assert_eq!(started(&mut pending, now), [2]);
        assert_eq!(pending.finish(VerdictId(2)), Some(VerdictId(3)));
        // Read in order, it is not read ahead again.
        pending.insert(record(4, "d", Action::Terminate), expires_at, now);
        pending.insert_ahead(record(4, "d", Action::Terminate), expires_at, now);
        assert_eq!(started(&mut pending, now), [4]);
    }
}
