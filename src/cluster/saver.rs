//! Saves sessions: one task, so that what is saved later is never older. It takes all that
//! waits, freezes each session once and sends one pipeline.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    Cluster,
    exchange::{SaveBody, SaveReply},
    ownership::{Change, SavePlan},
};
use crate::{
    domain::{SessionId, VerdictId},
    telemetry::ClusterCount,
};

/// The sessions of one pipeline.
const BATCH_MAX: usize = 1_024;
/// How often an event is counted because its session moved meanwhile. Two replicas that get
/// events of one session at the same time take it from each other each time.
pub const ATTEMPTS_MAX: u32 = 8;
/// The pause after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// What an answer waits for: the sessions of its events.
struct TicketState {
    left: usize,
    moved: Vec<SessionId>,
    done: Option<oneshot::Sender<Vec<SessionId>>>,
}

/// Counts down the sessions that an answer waits for.
#[derive(Clone)]
pub struct SaveTicket(Arc<Mutex<TicketState>>);

impl SaveTicket {
    fn new(sessions: usize) -> (Self, oneshot::Receiver<Vec<SessionId>>) {
        let (done, receiver) = oneshot::channel();
        let state = TicketState {
            left: sessions,
            moved: Vec::new(),
            done: Some(done),
        };
        (Self(Arc::new(Mutex::new(state))), receiver)
    }

    /// One session is settled. `moved`: its events must be counted again.
    fn settle(&self, session: &SessionId, moved: bool) {
        let mut state = self.0.lock();
        if moved {
            state.moved.push(session.clone());
        }
        state.left = state.left.saturating_sub(1);
        if state.left == 0
            && let Some(done) = state.done.take()
        {
            // The answer may have left.
            let _ = done.send(std::mem::take(&mut state.moved));
        }
    }

    /// No answer waits any more.
    fn is_abandoned(&self) -> bool {
        let state = self.0.lock();
        state.done.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// Waits until the sessions of an answer are saved.
pub struct SaveWait {
    receiver: oneshot::Receiver<Vec<SessionId>>,
    deadline: Instant,
}

/// What became of the sessions of an answer.
#[derive(Debug, Default)]
pub struct SaveOutcome {
    /// Their events must be counted again, because the copies were replaced.
    pub moved: Vec<SessionId>,
    /// It took too long.
    pub is_late: bool,
}

impl SaveWait {
    /// Ends at the deadline. Cancel-safe.
    pub async fn wait(&mut self) -> SaveOutcome {
        match time::timeout_at(self.deadline, &mut self.receiver).await {
            Ok(moved) => SaveOutcome {
                moved: moved.unwrap_or_default(),
                is_late: false,
            },
            Err(_) => SaveOutcome {
                moved: Vec::new(),
                is_late: true,
            },
        }
    }
}

struct QueuedChange {
    session: SessionId,
    change: Change,
    ticket: Option<SaveTicket>,
    attempts: u32,
}

/// What waits for the saver. Its length is bounded by the answers that wait, and by the
/// sweep's slice.
#[derive(Default)]
pub struct SaveQueue {
    changes: Mutex<VecDeque<QueuedChange>>,
    filled: Notify,
    /// What waits until the cluster knows of these terminations.
    terminated: Mutex<Vec<(VerdictId, QueuedChange)>>,
    /// The saver is at work on what it took.
    busy: Mutex<bool>,
}

impl SaveQueue {
    pub fn is_idle(&self) -> bool {
        self.changes.lock().is_empty() && !*self.busy.lock()
    }
}

impl Cluster {
    /// Saves changes of sessions. While Redis is away, it only notes them.
    pub fn save(&self, changes: impl IntoIterator<Item = (SessionId, Change)>) -> Option<SaveWait> {
        let changes = changes.into_iter();
        if !self.status.is_usable() {
            changes.for_each(|(session, _)| self.sessions.mark_dirty(&session));
            return None;
        }
        // The changes of a session are one entry.
        let mut merged: Vec<(SessionId, Change)> = Vec::new();
        for (session, change) in changes {
            let same = |(id, known): &&mut (SessionId, Change)| {
                *id == session && known.copy == change.copy
            };
            match merged.iter_mut().rev().find(same) {
                Some((_, known)) => {
                    known.records.extend(change.records);
                    known.is_whole |= change.is_whole;
                    known.through = known.through.max(change.through);
                }
                None => merged.push((session, change)),
            }
        }
        if merged.is_empty() {
            return None;
        }
        let (ticket, receiver) = SaveTicket::new(merged.len());
        let queued = merged.into_iter().map(|(session, change)| QueuedChange {
            session,
            change,
            ticket: Some(ticket.clone()),
            attempts: 0,
        });
        self.queue.changes.lock().extend(queued);
        self.queue.filled.notify_one();
        Some(SaveWait {
            receiver,
            deadline: Instant::now() + self.wait_max,
        })
    }

    /// Saves whole sessions for which no answer waits.
    pub(super) fn save_whole(&self, sessions: Vec<SessionId>) {
        let queued = sessions.into_iter().map(|session| QueuedChange {
            session,
            change: Change {
                copy: 0,
                records: Default::default(),
                is_whole: true,
                through: 0,
            },
            ticket: None,
            attempts: 0,
        });
        self.queue.changes.lock().extend(queued);
        self.queue.filled.notify_one();
    }

    /// Saves until the service has drained.
    pub(super) async fn run_saver(&self, stopped: &CancellationToken) {
        loop {
            let filled = self.queue.filled.notified();
            if self.queue.changes.lock().is_empty() {
                if stopped.run_until_cancelled(filled).await.is_none() {
                    return;
                }
                continue;
            }
            *self.queue.busy.lock() = true;
            let is_ok = self.save_batch().await;
            *self.queue.busy.lock() = false;
            if !is_ok {
                time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Saves what waits now. Returns false after a failure.
    async fn save_batch(&self) -> bool {
        // Take the changes of some sessions, by session.
        let mut batch: HashMap<SessionId, Vec<QueuedChange>> = HashMap::new();
        {
            let mut changes = self.queue.changes.lock();
            while batch.len() < BATCH_MAX
                && let Some(queued) = changes.pop_front()
            {
                batch
                    .entry(queued.session.clone())
                    .or_default()
                    .push(queued);
            }
        }
        if self.status.is_away() {
            for (session, queued) in batch {
                self.sessions.mark_dirty(&session);
                settle(&session, queued, false);
            }
            return true;
        }
        // Settle what needs no save, and find what must be taken first.
        let (mut takes, mut saves) = (Vec::new(), Vec::new());
        for (session, queued) in batch {
            let changes: Vec<Change> = queued.iter().map(|it| it.change.clone()).collect();
            match self.sessions.plan_save(&session, &changes) {
                SavePlan::Done => self.settle_saved(&session, queued),
                SavePlan::Terminated(verdict) => {
                    let waiting = queued.into_iter().map(|it| (verdict, it));
                    self.queue.terminated.lock().extend(waiting);
                }
                SavePlan::Oversized => {
                    self.metrics.count_cluster(ClusterCount::Oversized, 1);
                    self.settle_saved(&session, queued);
                }
                SavePlan::Take => takes.push((session, queued)),
                SavePlan::Save {
                    command,
                    through,
                    copy,
                } => saves.push((command, (through, copy), queued)),
            }
        }
        self.settle_terminated();
        let is_taken = self.take_for_save(takes).await;
        let is_saved = self.send_saves(saves).await;
        is_taken && is_saved
    }

    /// Takes sessions and queues their changes again.
    async fn take_for_save(&self, takes: Vec<(SessionId, Vec<QueuedChange>)>) -> bool {
        if takes.is_empty() {
            return true;
        }
        let ids: Vec<SessionId> = takes.iter().map(|(id, _)| id.clone()).collect();
        let taken = self.take_now(&ids).await;
        let mut again = Vec::new();
        for (session, queued) in takes {
            for mut queued in queued {
                queued.attempts += 1;
                let is_moved = self.sessions.is_replaced(&session, queued.change.copy)
                    || self.sessions.engine().handover().is_terminated(&session);
                let is_awaited = queued.ticket.as_ref().is_some_and(|it| !it.is_abandoned());
                if queued.ticket.is_some() && is_moved {
                    settle(&session, vec![queued], true);
                } else if !is_awaited && (!taken || queued.attempts > ATTEMPTS_MAX) {
                    self.sessions.mark_dirty(&session);
                    settle(&session, vec![queued], false);
                } else {
                    again.push(queued);
                }
            }
        }
        self.queue_again(again);
        taken
    }

    async fn send_saves(
        &self,
        saves: Vec<(super::exchange::SaveCommand, (i32, u64), Vec<QueuedChange>)>,
    ) -> bool {
        if saves.is_empty() {
            return true;
        }
        let commands: Vec<_> = saves.iter().map(|(command, ..)| command.clone()).collect();
        let replies = self.unless_away(self.exchange.save(&commands)).await;
        let is_ok = replies.is_ok();
        let replies = replies.unwrap_or_else(|error| {
            self.note_error(&error);
            vec![SaveReply::Failed; commands.len()]
        });
        // Note what became of each, and try again what is still awaited.
        let mut again = Vec::new();
        for ((command, (through, copy), queued), reply) in saves.into_iter().zip(replies) {
            let session = &command.session;
            self.sessions
                .finish_save(session, (&command, through, copy), reply);
            match reply {
                SaveReply::Saved => {
                    self.status.set_full(false, &self.metrics);
                    let kind = match &command.body {
                        SaveBody::State(_) => ClusterCount::SavedState,
                        SaveBody::Records(_) => ClusterCount::SavedRecords,
                    };
                    self.metrics.count_cluster(kind, 1);
                    self.settle_saved(session, queued);
                }
                SaveReply::Full => {
                    self.status.set_full(true, &self.metrics);
                    settle(session, queued, false);
                }
                SaveReply::Fenced => again.extend(queued),
                SaveReply::Failed => {
                    let waits = |it: &QueuedChange| {
                        it.ticket
                            .as_ref()
                            .is_some_and(|ticket| !ticket.is_abandoned())
                    };
                    again.extend(queued.into_iter().filter(waits));
                }
            }
        }
        self.queue_again(again);
        is_ok
    }

    /// The answers wait no longer; what was counted in a copy that was replaced is counted
    /// again.
    fn settle_saved(&self, session: &SessionId, queued: Vec<QueuedChange>) {
        for queued in queued {
            let is_moved =
                queued.ticket.is_some() && self.sessions.is_replaced(session, queued.change.copy);
            settle(session, vec![queued], is_moved);
        }
    }

    /// Ends the waits for terminations that the cluster knows of, or will not know in time.
    pub(super) fn settle_terminated(&self) {
        let mut terminated = self.queue.terminated.lock();
        if terminated.is_empty() {
            return;
        }
        let known = |(verdict, queued): &mut (VerdictId, QueuedChange)| {
            let is_awaited = queued.ticket.as_ref().is_some_and(|it| !it.is_abandoned());
            !is_awaited || self.is_acted(*verdict)
        };
        for (_, queued) in terminated.extract_if(.., known) {
            let session = queued.session.clone();
            settle(&session, vec![queued], false);
        }
    }

    fn queue_again(&self, again: Vec<QueuedChange>) {
        let mut changes = self.queue.changes.lock();
        for queued in again.into_iter().rev() {
            changes.push_front(queued);
        }
    }

    /// Takes sessions and adopts what stands against them. Returns false after a failure.
    pub(super) async fn take_now(&self, ids: &[SessionId]) -> bool {
        let number = self.sessions.next_take();
        let replies = match self.unless_away(self.exchange.take(ids)).await {
            Ok(replies) => replies,
            Err(error) => {
                self.note_error(&error);
                return false;
            }
        };
        let now = (self.now)();
        for (id, reply) in ids.iter().zip(&replies) {
            for act in self.sessions.apply_take(id, (number, reply), now) {
                self.adopt_standing(&act, now);
            }
        }
        true
    }
}

fn settle(session: &SessionId, queued: Vec<QueuedChange>, moved: bool) {
    for ticket in queued.into_iter().filter_map(|it| it.ticket) {
        ticket.settle(session, moved);
    }
}
