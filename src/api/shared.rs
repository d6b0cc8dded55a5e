//! Sessions that replicas share: taken before their events are counted, and saved before
//! these are answered.

use std::time::{Instant, SystemTime};

use prost::{Message, bytes::Bytes};
use tonic::Status;

use super::{
    Api, convert, now, present,
    terminations::TerminationPushes,
    waiting_responses::{Answer, CountAgain},
};
use crate::{
    cluster::{ATTEMPTS_MAX, Change, Cluster, EventRecord, SaveOutcome, SaveWait},
    domain::{Event, EventBody, SessionId, VerdictId},
    engine::{RecordError, RecordOutcome},
    pb,
};

/// An event that was counted, until its session is saved.
pub(super) struct UnsavedEvent {
    position: usize,
    event: Event,
    change: Change,
    bytes: Bytes,
}

/// What a response of a stream waits for.
pub(super) struct SharedAnswer {
    wait: SaveWait,
    events: Vec<UnsavedEvent>,
    attempts: u32,
}

/// The session of an entry of a batch; the rest is decoded later.
#[derive(Clone, PartialEq, Message)]
struct EntrySession {
    #[prost(string, tag = "1")]
    session_id: String,
}

/// Decodes an event that another replica has counted.
pub fn decode_shared_event(session: &SessionId, bytes: &[u8]) -> Option<Event> {
    let mut event = pb::Event::decode(bytes).ok()?;
    convert::parse_event(session.clone(), &mut event).ok()
}

/// What to save of a counted event. `None`: nothing has changed.
fn change_of(
    event: &Event,
    bytes: &Bytes,
    (outcome, copy): (&RecordOutcome, u64),
    at: SystemTime,
) -> Option<Change> {
    if outcome.after_termination {
        return None;
    }
    let index = outcome.index?;
    // The event of a turn that was streamed adds its cost.
    let merges = matches!(&event.body, EventBody::Turn(turn) if !turn.turn_id.is_empty());
    let record = EventRecord {
        index,
        at,
        bytes: bytes.clone(),
    };
    Some(Change {
        copy,
        is_whole: outcome.is_new_verdict || (outcome.duplicate && merges) || bytes.is_empty(),
        records: (!outcome.duplicate).then_some(record).into_iter().collect(),
        through: index.saturating_add(1),
    })
}

impl Api {
    /// Takes the sessions of a message's entries. Returns whether it had to.
    pub(super) async fn own_entries(
        &self,
        cluster: &Cluster,
        entries: &[Bytes],
        pushes: &TerminationPushes,
    ) -> bool {
        let mut sessions: Vec<SessionId> = Vec::with_capacity(entries.len());
        for entry in entries {
            let Ok(EntrySession { session_id }) = EntrySession::decode(entry.clone()) else {
                continue;
            };
            if let Ok((session, _)) = pushes.resolve_session(&session_id)
                && sessions.last() != Some(&session)
            {
                sessions.push(session);
            }
        }
        cluster.own(&sessions).await
    }

    /// Counts an event of a stream. It is kept until its session is saved.
    pub(super) fn count_shared(
        &self,
        cluster: &Cluster,
        event: &Event,
        bytes: Bytes,
        (position, at): (usize, SystemTime),
        last_finished_at: &mut Instant,
    ) -> (Result<RecordOutcome, RecordError>, Option<UnsavedEvent>) {
        let (result, copy) =
            cluster.count_in_copy(&event.session, || self.record(event, at, last_finished_at));
        let recorded = result.as_ref().ok();
        let change = recorded.and_then(|it| change_of(event, &bytes, (it, copy), at));
        let counted = change.map(|change| UnsavedEvent {
            position,
            event: event.clone(),
            change,
            bytes,
        });
        (result, counted)
    }

    /// Saves the sessions of counted events. `None`: there is nothing to wait
    /// for.
    pub(super) fn save_counted(&self, events: Vec<UnsavedEvent>) -> Option<Box<SharedAnswer>> {
        let changes = events
            .iter()
            .map(|counted| (counted.event.session.clone(), counted.change.clone()));
        let wait = self.cluster.as_ref()?.save(changes)?;
        Some(Box::new(SharedAnswer {
            wait,
            events,
            attempts: 0,
        }))
    }

    /// Saves a session that something else than an event of a list has changed.
    pub(super) fn save_whole(
        &self,
        session: &SessionId,
        (outcome, copy): (&RecordOutcome, u64),
    ) -> Option<Box<SharedAnswer>> {
        let change = Change {
            copy,
            records: Default::default(),
            is_whole: true,
            through: outcome.index.map_or(0, |index| index.saturating_add(1)),
        };
        let wait = self.cluster.as_ref()?.save([(session.clone(), change)])?;
        Some(Box::new(SharedAnswer {
            wait,
            events: Vec::new(),
            attempts: 0,
        }))
    }

    /// Records the event of a unary call and saves its session. It is recorded again while
    /// the session moves.
    pub(super) async fn record_and_save(
        &self,
        cluster: &Cluster,
        event: &Event,
        bytes: Bytes,
    ) -> Result<RecordOutcome, Status> {
        cluster.own([&event.session]).await;
        let mut attempt = 1;
        loop {
            let at = now();
            let mut started_at = Instant::now();
            let (result, counted) =
                self.count_shared(cluster, event, bytes.clone(), (0, at), &mut started_at);
            let changes = counted.map(|counted| (event.session.clone(), counted.change));
            let Some(mut wait) = cluster.save(changes) else {
                return Ok(result?);
            };
            let outcome = wait.wait().await;
            cluster.count_late(&outcome);
            if outcome.moved.is_empty() {
                return Ok(result?);
            }
            if attempt == ATTEMPTS_MAX {
                cluster.count_conflict();
                return Ok(result?);
            }
            attempt += 1;
        }
    }
}

impl SharedAnswer {
    /// Waits until the sessions are saved. Cancel-safe.
    pub async fn wait(&mut self) -> SaveOutcome {
        self.wait.wait().await
    }

    /// Counts the events of sessions that moved again, and only those.
    pub fn count_again<T: CountAgain>(
        self,
        api: &Api,
        answer: &mut Answer<T>,
        outcome: &SaveOutcome,
    ) {
        let Some(cluster) = &api.cluster else { return };
        cluster.count_late(outcome);
        if outcome.moved.is_empty() {
            return;
        }
        if self.attempts + 1 >= ATTEMPTS_MAX {
            cluster.count_conflict();
            return;
        }
        let mut again = Vec::new();
        for counted in self.events {
            let UnsavedEvent {
                position,
                event,
                bytes,
                ..
            } = counted;
            if !outcome.moved.contains(&event.session) {
                continue;
            }
            let at = (position, now());
            let (result, counted) =
                api.count_shared(cluster, &event, bytes, at, &mut Instant::now());
            let (result, unsettled) = api.answer_counted(&event, result);
            answer.response.replace_result(position, result);
            answer.unsettled = answer.unsettled.max(unsettled);
            again.extend(counted);
        }
        answer.shared = api.save_counted(again);
        if let Some(shared) = &mut answer.shared {
            shared.attempts = self.attempts + 1;
        }
    }
}

impl Api {
    fn answer_counted(
        &self,
        event: &Event,
        result: Result<RecordOutcome, RecordError>,
    ) -> (pb::EventResult, Option<VerdictId>) {
        let (session, id) = (event.session.to_string(), event.event_id.clone());
        match result {
            Ok(recorded) => {
                let (verdict, unsettled) = self.present_unsettled_verdict(&recorded);
                let result = present::build_event_result(session, id, &recorded, verdict);
                (result, unsettled)
            }
            Err(error) => {
                let result = present::build_error_result(session, id, error.into());
                (result, None)
            }
        }
    }
}

impl CountAgain for pb::StreamEventsResponse {
    fn replace_result(&mut self, position: usize, result: pb::EventResult) {
        if let Some(known) = self.results.get_mut(position) {
            *known = result;
        }
    }
}

impl CountAgain for pb::StreamDeltasResponse {
    /// A text that is being written is lost with its replica.
    fn replace_result(&mut self, _position: usize, _result: pb::EventResult) {}
}
