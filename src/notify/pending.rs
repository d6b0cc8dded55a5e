//! The notifications of one endpoint that are read from the feed and not finished.
//!
//! Each is retried by itself, so that one that the endpoint cannot process holds up no
//! other. The notifications of a session keep their order, except that a TERMINATE
//! waits for none, and among those that are due the TERMINATEs go first.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use backon::ExponentialBackoff;
use tokio::time::Instant;

use crate::domain::{Action, SessionId, VerdictId, VerdictRecord};

/// Beyond this many the feed is not read further. Nothing is lost: the rest waits in
/// the log.
pub(super) const PENDING_MAX: usize = 256;

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

#[derive(Default)]
pub(super) struct PendingNotifications {
    by_id: BTreeMap<VerdictId, PendingNotification>,
    /// Finished while an earlier one was not.
    finished: BTreeSet<VerdictId>,
    /// The endpoint as a whole is not to be called before this time.
    paused_until: Option<Instant>,
}

impl PendingNotifications {
    pub fn is_full(&self) -> bool {
        self.by_id.len() + self.finished.len() >= PENDING_MAX
    }

    pub fn insert(&mut self, record: VerdictRecord, expires_at: Instant, now: Instant) {
        let pending = PendingNotification {
            expires_at,
            due_at: now,
            is_in_flight: false,
            backoff: None,
            record,
        };
        self.by_id.insert(pending.record.verdict.id, pending);
    }

    /// The next notification to attempt, and when it expires. It is in flight until
    /// `retry_later` or `finish`.
    pub fn start_next(&mut self, now: Instant) -> Option<(VerdictRecord, Instant)> {
        if self.paused_until.is_some_and(|until| until > now) {
            return None;
        }
        let mut due: Option<&mut PendingNotification> = None;
        let mut earlier_sessions: HashSet<SessionId> = HashSet::new();
        for pending in self.by_id.values_mut() {
            let verdict = &pending.record.verdict;
            let terminates = verdict.action == Some(Action::Terminate);
            let is_first = earlier_sessions.insert(verdict.session.clone());
            let is_due = !pending.is_in_flight && pending.due_at <= now && (is_first || terminates);
            if is_due && terminates {
                due = Some(pending);
                break;
            }
            if is_due && due.is_none() {
                due = Some(pending);
            }
        }
        let pending = due?;
        pending.is_in_flight = true;
        Some((pending.record.clone(), pending.expires_at))
    }

    /// When the next attempt or expiry is due. `None`: nothing is waiting.
    pub fn next_due_at(&self) -> Option<Instant> {
        let waiting = self.by_id.values().filter(|pending| !pending.is_in_flight);
        let due_at = waiting.map(|pending| pending.due_at).min()?;
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
        self.finished.insert(id);
        let first_pending = self.by_id.first_key_value().map(|(first, _)| *first);
        let still_ahead = match first_pending {
            Some(first) => self.finished.split_off(&first),
            None => BTreeSet::new(),
        };
        let done = std::mem::replace(&mut self.finished, still_ahead);
        done.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use backon::{BackoffBuilder, ExponentialBuilder};

    use super::*;
    use crate::testing::verdict_record as record;

    fn pending(records: &[(u128, &str, Action)]) -> (PendingNotifications, Instant) {
        let (mut pending, now) = (PendingNotifications::default(), Instant::now());
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
}
