//! Terminations, resets and snoozes: sent to the cluster from the store's publications, in
//! the order of their ids, and adopted from the others. The newest act of a session stands,
//! so they can be sent again at any time.

use std::{
    num::NonZeroUsize,
    time::{Duration, SystemTime},
};

use lru::LruCache;
use parking_lot::Mutex;
use tokio::{
    sync::{broadcast::error::RecvError, watch},
    time,
};
use tokio_util::sync::CancellationToken;

use super::{
    Cluster,
    exchange::{ActReply, SharedStream},
    ownership::Ownerships,
};
use crate::{
    domain::{Effect, SessionId, VerdictId, VerdictRecord},
    telemetry::ClusterCount,
};

/// The verdicts that are sent at a time.
const SEND_MAX: usize = 256;
/// The acts that are sent again at a time.
const RESEND_MAX: usize = 1_000;
/// The entries that are read at a time.
const READ_MAX: usize = 1_000;
/// The latest resets and snoozes that are remembered, to be sent again, and so that no older
/// termination is adopted after them.
const LIFTED_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(16_383);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// What was sent, and what was lifted.
pub(super) struct Acts {
    sent: watch::Sender<VerdictId>,
    lifted: Mutex<LruCache<SessionId, VerdictRecord>>,
}

impl Acts {
    /// Verdicts up to this one were sent by an earlier process, or are sent again.
    pub fn new(last: VerdictId) -> Self {
        Self {
            sent: watch::Sender::new(last),
            lifted: Mutex::new(LruCache::new(LIFTED_MAX)),
        }
    }

    pub fn is_sent(&self, id: VerdictId) -> bool {
        *self.sent.borrow() >= id
    }

    pub async fn wait_until_sent(&self, id: VerdictId) {
        let mut sent = self.sent.subscribe();
        // The sender lives as long as `self`.
        let _ = sent.wait_for(|sent| *sent >= id).await;
    }

    /// Remembers an act of this replica that its engine does not remember.
    pub fn note(&self, record: &VerdictRecord) {
        if !matches!(record.effect, Effect::Reset | Effect::Snoozed(_)) {
            return;
        }
        let mut lifted = self.lifted.lock();
        let session = &record.verdict.session;
        let known = lifted.peek(session).map(|known| known.verdict.id);
        if known.is_none_or(|known| known < record.verdict.id) {
            lifted.put(session.clone(), record.clone());
        }
    }

    /// The latest reset or snooze of a session that is known.
    #[cfg(test)]
    pub fn lifted_of(&self, session: &SessionId) -> Option<VerdictRecord> {
        self.lifted.lock().peek(session).cloned()
    }

    /// Applies an act that stands against a session that was taken. A reset is in its state
    /// already.
    pub fn adopt_standing(
        &self,
        sessions: &Ownerships,
        record: &VerdictRecord,
        now: SystemTime,
    ) -> bool {
        if record.effect != Effect::Reset {
            return self.adopt(sessions, record, now);
        }
        sessions
            .engine()
            .handover()
            .continue_after(record.verdict.id);
        self.note(record);
        false
    }

    /// Applies an act of another replica. Returns whether it was news.
    pub fn adopt(&self, sessions: &Ownerships, record: &VerdictRecord, now: SystemTime) -> bool {
        sessions
            .engine()
            .handover()
            .continue_after(record.verdict.id);
        let session = &record.verdict.session;
        let known = {
            let lifted = self.lifted.lock();
            lifted.peek(session).map(|it| (it.effect, it.verdict.id))
        };
        let is_old = known.is_some_and(|(effect, known)| match record.effect {
            Effect::Reset => effect == Effect::Reset && known >= record.verdict.id,
            _ => effect == Effect::Reset && known > record.verdict.id,
        });
        if is_old {
            return false;
        }
        self.note(record);
        if record.effect == Effect::Reset {
            sessions.reset(session, || {
                sessions.engine().handover().adopt(record, now);
            });
            return true;
        }
        sessions.engine().handover().adopt(record, now)
    }
}

impl Cluster {
    /// Applies an act of another replica, and tells the streams here.
    fn adopt(&self, record: &VerdictRecord, now: SystemTime) {
        let is_news = self.acts.adopt(&self.sessions, record, now);
        self.announce_if(is_news, record);
    }

    /// The same for an act that stands against a session that was taken or looked at.
    pub(super) fn adopt_standing(&self, record: &VerdictRecord, now: SystemTime) {
        let is_news = self.acts.adopt_standing(&self.sessions, record, now);
        self.announce_if(is_news, record);
    }

    fn announce_if(&self, is_news: bool, record: &VerdictRecord) {
        if is_news {
            self.metrics.count_cluster(ClusterCount::AdoptedAct, 1);
            if record.effect == Effect::Terminated {
                self.store.announce(record);
            }
        }
    }

    /// Sends the verdicts of this replica to the feed, and what they decided to all.
    pub(super) async fn send_verdicts(&self, stopped: &CancellationToken) {
        let mut published = self.store.subscribe_verdicts();
        let mut batch = Vec::new();
        loop {
            let received = stopped.run_until_cancelled(published.recv()).await;
            match received {
                None | Some(Err(RecvError::Closed)) => return,
                Some(Ok(record)) => batch.push(record),
                // Some were overwritten: they are in the store and in force.
                Some(Err(RecvError::Lagged(_))) => self.status.note_broken(),
            }
            while batch.len() < SEND_MAX
                && let Ok(record) = published.try_recv()
            {
                batch.push(record);
            }
            self.deliver_own(&batch);
            // Until it succeeds: what waits meanwhile is bounded by the store's channel.
            while !self.send_batch(&batch).await {
                let paused = stopped.run_until_cancelled(time::sleep(RETRY_DELAY)).await;
                if paused.is_none() {
                    return;
                }
            }
            if let Some(last) = batch.last() {
                let last = last.verdict.id;
                self.acts.sent.send_if_modified(|sent| {
                    let is_newer = last > *sent;
                    *sent = last.max(*sent);
                    is_newer
                });
                self.settle_terminated();
            }
            batch.clear();
        }
    }

    /// Returns false if it must be sent again.
    async fn send_batch(&self, batch: &[VerdictRecord]) -> bool {
        if self.status.is_away() {
            return false;
        }
        for record in batch {
            self.acts.note(record);
        }
        if !self.send_acts(batch).await {
            return false;
        }
        let sealed = batch.iter().filter_map(|record| {
            let durable = self.store.is_durable(record.verdict.id);
            self.codec.encode_verdict(record, durable)
        });
        let sealed: Vec<Vec<u8>> = sealed.collect();
        if sealed.is_empty() {
            return true;
        }
        let published = self.unless_away(self.exchange.publish(&sealed)).await;
        published
            .inspect_err(|error| self.note_error(error))
            .is_ok()
    }

    /// Sends acts, and adopts those that are newer. Returns false after a failure.
    async fn send_acts(&self, records: &[VerdictRecord]) -> bool {
        let now = (self.now)();
        let commands = records.iter().filter_map(|record| {
            let durable = self.store.is_durable(record.verdict.id);
            self.codec
                .encode_act(record, durable, (now, self.tombstone_age_max))
        });
        let commands: Vec<_> = commands.collect();
        if commands.is_empty() {
            return true;
        }
        let replies = match self.unless_away(self.exchange.act(&commands)).await {
            Ok(replies) => replies,
            Err(error) => {
                self.note_error(&error);
                return false;
            }
        };
        self.metrics
            .count_cluster(ClusterCount::SentAct, replies.len() as u64);
        for reply in &replies {
            if let ActReply::Overruled(newer) = reply
                && let Some(act) = self.codec.decode_act(newer)
            {
                self.adopt(&act, now);
            }
        }
        true
    }

    /// Sends all acts that stand and are known here, as after Redis was away: it may have
    /// lost them. Returns false after a failure.
    pub(super) async fn resend_acts(&self) -> bool {
        let engine = self.sessions.engine();
        let mut records: Vec<VerdictRecord> = {
            let lifted = self.acts.lifted.lock();
            lifted.iter().map(|(_, record)| record.clone()).collect()
        };
        for session in engine.handover().sessions_with_terminations() {
            records.extend(engine.handover().termination_records_of(&session));
            if records.len() >= RESEND_MAX {
                if !self.send_acts(&records).await {
                    return false;
                }
                records.clear();
            }
        }
        self.send_acts(&records).await
    }

    /// Adopts the acts of other replicas as they come.
    pub(super) async fn read_acts(&self, stopped: &CancellationToken) {
        let mut position: Option<String> = None;
        while !stopped.is_cancelled() {
            let read = stopped.run_until_cancelled(self.read_acts_after(&mut position));
            match read.await {
                None => return,
                Some(true) => {}
                Some(false) => {
                    let pause = time::sleep(RETRY_DELAY);
                    stopped.run_until_cancelled(pause).await;
                }
            }
        }
    }

    /// Returns false after a failure.
    async fn read_acts_after(&self, position: &mut Option<String>) -> bool {
        let stream = SharedStream::Acts;
        let after = match position {
            Some(after) => after.clone(),
            None => match self.exchange.last_position(stream).await {
                Ok(last) => position.insert(last).clone(),
                Err(_) => return false,
            },
        };
        let Ok(entries) = self.exchange.read(stream, &after, READ_MAX, true).await else {
            self.status.note_broken();
            return false;
        };
        let now = (self.now)();
        for entry in entries {
            *position = Some(entry.position);
            if entry.by == self.me {
                continue;
            }
            match self.codec.decode_act(&entry.value) {
                Some(act) => self.adopt(&act, now),
                None => self.metrics.count_cluster(ClusterCount::Unreadable, 1),
            }
        }
        true
    }
}
