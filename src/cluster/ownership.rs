//! Which sessions this replica has, and what of them is saved. Synchronous: it decides, and
//! `saver` and `Cluster` talk to Redis.
//!
//! An event is counted under the lock of its session's entry, and a copy is replaced under
//! the same lock: each event therefore knows the copy in which it is counted. An event that
//! was counted in a copy that has been replaced is counted again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use dashmap::{DashMap, Entry};
use smallvec::SmallVec;

use super::{
    codec::{Codec, EventRecord, SavedSession},
    exchange::{PreviousOwner, SaveBody, SaveCommand, SaveReply, TakeReply},
    keys::session_key,
};
use crate::{
    domain::{Effect, SessionId, VerdictId, VerdictRecord},
    engine::{Engine, Replayer},
    telemetry::{ClusterCount, Metrics},
};

/// What a session is here.
#[derive(Clone, Debug)]
struct Ownership {
    /// Identifies the copy in the engine.
    copy: u64,
    /// With which the session was taken last. 0: never.
    epoch: u64,
    /// The number of the last take whose reply was applied.
    take_number: u64,
    /// False: it must be taken before it is saved.
    is_valid: bool,
    /// The connections when it was taken.
    generation: u64,
    /// The events that are saved for certain.
    saved_through: i32,
    /// The events behind the last whole state.
    tail: usize,
    /// The next save must be whole.
    is_dirty: bool,
    /// The copy began here, or again by a reset, so it is no leftover of an ended session.
    is_fresh: bool,
    saves: u32,
}

/// Something to save: an event or another change, and the copy in which it was counted.
#[derive(Clone, Debug)]
pub struct Change {
    pub copy: u64,
    /// What to save if the whole state is not needed.
    pub records: SmallVec<[EventRecord; 1]>,
    /// More than the records has changed.
    pub is_whole: bool,
    /// The number of events that must be saved.
    pub through: i32,
}

/// What to do for a session with changes.
#[derive(Debug)]
pub enum SavePlan {
    /// Nothing: all is saved, or the session has ended.
    Done,
    /// This verdict has terminated the session here: what was counted before is safe once
    /// the cluster knows of it.
    Terminated(VerdictId),
    /// Take it first.
    Take,
    Save {
        command: SaveCommand,
        through: i32,
        copy: u64,
    },
    /// It is too large to be saved.
    Oversized,
}

/// The owner's key expires later with one save in this many.
const OWNER_EXTENSION_INTERVAL: u32 = 16;
/// A larger event is saved with the whole state, so that a replay stays short.
pub const RECORD_BYTES_MAX: usize = 1_024;

/// The sessions of this replica.
pub struct Ownerships {
    engine: Arc<Engine>,
    codec: Arc<Codec>,
    metrics: Arc<Metrics>,
    replayer: Replayer,
    me: String,
    tail_max: usize,
    state_bytes_max: usize,
    sessions: DashMap<SessionId, Ownership, foldhash::quality::RandomState>,
    next_copy: AtomicU64,
    next_take: AtomicU64,
    /// Changes when connections were lost: what was taken before must be taken again.
    generation: AtomicU64,
    /// There may be sessions that are not saved.
    may_be_unsaved: AtomicBool,
    events: AtomicU64,
}

impl Ownerships {
    pub fn new(
        engine: Arc<Engine>,
        codec: Arc<Codec>,
        metrics: Arc<Metrics>,
        replayer: Replayer,
        me: &str,
        (tail_max, state_bytes_max): (usize, usize),
    ) -> Self {
        Self {
            engine,
            codec,
            metrics,
            replayer,
            me: me.to_owned(),
            tail_max,
            state_bytes_max,
            sessions: DashMap::default(),
            next_copy: AtomicU64::new(1),
            next_take: AtomicU64::new(1),
            generation: AtomicU64::new(0),
            may_be_unsaved: AtomicBool::new(false),
            events: AtomicU64::new(0),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn replayer(&self) -> &Replayer {
        &self.replayer
    }

    /// Whether the session must be taken before its next event. A terminated one is asked for
    /// each time: it may have been reset.
    pub fn needs_take(&self, id: &SessionId) -> bool {
        let generation = self.generation.load(Relaxed);
        let owned = self.sessions.get(id);
        let is_owned = owned.is_some_and(|it| it.is_valid && it.generation == generation);
        !(is_owned && self.engine.freezer().is_live(id))
    }

    /// What was taken before must be taken again.
    pub fn invalidate_all(&self) {
        self.generation.fetch_add(1, Relaxed);
        self.may_be_unsaved.store(true, Relaxed);
    }

    /// What was counted since the start.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Counts something in the session's copy, and returns that copy.
    pub fn count_in_copy<T>(&self, id: &SessionId, count: impl FnOnce() -> T) -> (T, u64) {
        self.events.fetch_add(1, Relaxed);
        if let Some(owned) = self.sessions.get(id) {
            return (count(), owned.copy);
        }
        let entry = self.sessions.entry(id.clone());
        let owned = entry
            .or_insert_with(|| self.orphan(!self.engine.contains(id)))
            .downgrade();
        (count(), owned.copy)
    }

    /// An entry of a session that was not taken.
    fn orphan(&self, is_fresh: bool) -> Ownership {
        self.may_be_unsaved.store(true, Relaxed);
        Ownership {
            copy: self.next_copy.fetch_add(1, Relaxed),
            epoch: 0,
            take_number: 0,
            is_valid: false,
            generation: 0,
            saved_through: 0,
            tail: 0,
            is_dirty: true,
            is_fresh,
            saves: 0,
        }
    }

    /// The number of a take that is about to be sent: replies may be applied in another order.
    pub fn next_take(&self) -> u64 {
        self.next_take.fetch_add(1, Relaxed)
    }

    /// Decides between the saved state of a session that was taken and our copy. Returns the
    /// acts that stand, to be adopted.
    pub fn apply_take(
        &self,
        id: &SessionId,
        (take_number, reply): (u64, &TakeReply),
        now: SystemTime,
    ) -> Vec<VerdictRecord> {
        let acts = reply.acts.iter().filter_map(|value| {
            let act = self.codec.decode_act(value);
            if act.is_none() {
                self.metrics.count_cluster(ClusterCount::Unreadable, 1);
            }
            act
        });
        let mut acts: Vec<VerdictRecord> = acts.collect();
        acts.sort_unstable_by_key(|act| act.verdict.id);
        for reset in acts.iter().filter(|act| act.effect == Effect::Reset) {
            self.engine
                .handover()
                .lift_carried_over(id, reset.verdict.id);
            if self.engine.handover().is_terminated(id) {
                self.engine.handover().adopt(reset, now);
            }
        }
        if reply.epoch == 0 {
            self.sessions.remove(id);
            return acts;
        }
        self.metrics.count_cluster(ClusterCount::Take, 1);
        let mut saved = self.codec.decode_list(id, &reply.list);
        self.metrics
            .count_cluster(ClusterCount::Unreadable, saved.unreadable as u64);
        // Hold the entry: no event is counted meanwhile.
        let is_fresh = !self.engine.contains(id);
        let mut owned = match self.sessions.entry(id.clone()) {
            Entry::Occupied(known) => known.into_ref(),
            Entry::Vacant(vacant) => vacant.insert(self.orphan(is_fresh)),
        };
        // The reply to a later take was applied first. Epochs do not tell: they go back when
        // the server has lost writes.
        if take_number < owned.take_number {
            return acts;
        }
        owned.take_number = take_number;
        let is_live = self.engine.freezer().is_live(id);
        let keeps_copy = is_live && keeps_copy(&owned, reply, &saved, &self.me);
        if reply.previous.as_ref().is_some_and(|it| {
            it.name != self.me && it.name != PreviousOwner::NOBODY && saved.has_state
        }) {
            self.metrics.count_cluster(ClusterCount::Move, 1);
        }
        owned.epoch = reply.epoch;
        owned.is_valid = true;
        owned.generation = self.generation.load(Relaxed);
        if keeps_copy {
            owned.is_dirty = true;
            return acts;
        }
        // Put the saved state in the place of our copy.
        owned.copy = self.next_copy.fetch_add(1, Relaxed);
        owned.is_fresh = !saved.has_state;
        owned.tail = saved.tail;
        let verdicts_before = self.replayer.verdicts();
        let replaced = if saved.has_state {
            let shared = std::mem::take(&mut saved.shared);
            let freezer = self.engine.freezer();
            freezer.replace(id, &shared, &self.replayer, now)
        } else {
            self.engine.freezer().release(id);
            Some((0, true))
        };
        let verdicts = self.replayer.verdicts() - verdicts_before;
        self.metrics
            .count_cluster(ClusterCount::ReplayVerdict, verdicts);
        let (events, is_whole) = replaced.unwrap_or((0, false));
        owned.saved_through = saved.events.max(events);
        owned.is_dirty = !is_whole || events < saved.events || saved.unreadable > 0;
        acts
    }

    fn is_current(&self, owned: &Ownership) -> bool {
        owned.generation == self.generation.load(Relaxed)
    }

    /// Whether something of the copy is no longer known to be in it: it was replaced.
    pub fn is_replaced(&self, id: &SessionId, copy: u64) -> bool {
        self.sessions.get(id).is_some_and(|it| it.copy != copy)
    }

    /// What to save of a session. It is frozen now, so what is saved later is never older.
    pub fn plan_save(&self, id: &SessionId, changes: &[Change]) -> SavePlan {
        let Some(mut owned) = self.sessions.get_mut(id) else {
            return SavePlan::Done;
        };
        if self.engine.handover().is_terminated(id) {
            let terminations = self.engine.terminations_of(id);
            let last = terminations.iter().map(|verdict| verdict.id).max();
            return last.map_or(SavePlan::Done, SavePlan::Terminated);
        }
        if !owned.is_valid || !self.is_current(&owned) {
            return SavePlan::Take;
        }
        // What of the changes is in this copy, and not saved.
        let copy = owned.copy;
        let current = || changes.iter().filter(move |change| change.copy == copy);
        let is_whole = owned.is_dirty || current().any(|change| change.is_whole);
        let through = current().map(|change| change.through).max().unwrap_or(0);
        if !is_whole && through <= owned.saved_through {
            return SavePlan::Done;
        }
        let mut records: Vec<&EventRecord> = current()
            .flat_map(|change| &change.records)
            .filter(|record| record.index >= owned.saved_through)
            .collect();
        records.sort_unstable_by_key(|record| record.index);
        // Save the events alone if they follow what is saved.
        let follow = (owned.saved_through..).zip(&records);
        let are_next = follow
            .clone()
            .all(|(index, record)| record.index == index && record.bytes.len() <= RECORD_BYTES_MAX);
        let covered = owned.saved_through + i32::try_from(records.len()).unwrap_or(i32::MAX);
        let fits_tail = owned.tail + records.len() <= self.tail_max;
        owned.saves = owned.saves.wrapping_add(1);
        let extends_owner = owned.saves % OWNER_EXTENSION_INTERVAL == 0;
        let save = |body, through| SavePlan::Save {
            command: SaveCommand {
                session: id.clone(),
                epoch: owned.epoch,
                body,
                extends_owner,
            },
            through,
            copy,
        };
        if !is_whole && are_next && fits_tail && covered >= through {
            let context = session_key(id);
            let sealed = records
                .into_iter()
                .map(|record| self.codec.encode_event(&context, record));
            if let Some(sealed) = sealed.collect() {
                return save(SaveBody::Records(sealed), covered);
            }
        }
        // Else save all.
        let freezer = self.engine.freezer();
        let (Some(events), Some(frozen)) = (freezer.events_of(id), freezer.freeze(id)) else {
            return SavePlan::Done;
        };
        match self.codec.encode_state(frozen, events) {
            Some(state) if state.len() <= self.state_bytes_max => {
                save(SaveBody::State(state), events)
            }
            _ => {
                owned.is_dirty = true;
                SavePlan::Oversized
            }
        }
    }

    /// Notes what became of a save.
    pub fn finish_save(
        &self,
        id: &SessionId,
        (command, through, copy): (&SaveCommand, i32, u64),
        reply: SaveReply,
    ) {
        let Some(mut owned) = self.sessions.get_mut(id) else {
            return;
        };
        if owned.copy != copy || owned.epoch != command.epoch {
            return;
        }
        if reply != SaveReply::Saved {
            self.may_be_unsaved.store(true, Relaxed);
        }
        match reply {
            SaveReply::Saved => {
                owned.saved_through = owned.saved_through.max(through);
                owned.is_fresh = false;
                match &command.body {
                    SaveBody::State(_) => (owned.tail, owned.is_dirty) = (0, false),
                    SaveBody::Records(records) => owned.tail += records.len(),
                }
            }
            SaveReply::Fenced => {
                self.metrics.count_cluster(ClusterCount::Fenced, 1);
                owned.is_valid = false;
                owned.is_dirty = true;
            }
            SaveReply::Full => owned.is_dirty = true,
            // The command may still be carried out: another epoch fences it.
            SaveReply::Failed => {
                owned.is_valid = false;
                owned.is_dirty = true;
            }
        }
    }

    /// The next save must be whole, because something was not saved in time.
    pub fn mark_dirty(&self, id: &SessionId) {
        if let Some(mut owned) = self.sessions.get_mut(id) {
            owned.is_dirty = true;
        }
        self.may_be_unsaved.store(true, Relaxed);
    }

    /// Resets a session: what was counted before is not in the new copy. The copy is no
    /// leftover of a session that has ended.
    pub fn reset(&self, id: &SessionId, reset: impl FnOnce()) {
        let mut owned = match self.sessions.entry(id.clone()) {
            Entry::Occupied(known) => known.into_ref(),
            Entry::Vacant(vacant) => vacant.insert(self.orphan(true)),
        };
        reset();
        owned.copy = self.next_copy.fetch_add(1, Relaxed);
        owned.is_fresh = true;
        owned.is_valid = false;
        owned.is_dirty = true;
        owned.saved_through = 0;
        self.note_unsaved();
    }

    /// The cluster knows of the reset now, and has cleared what was saved meanwhile.
    pub fn confirm_reset(&self, id: &SessionId) {
        if let Some(mut owned) = self.sessions.get_mut(id) {
            (owned.is_fresh, owned.is_valid, owned.is_dirty) = (true, false, true);
        }
    }

    /// The session is nothing to us any more.
    pub fn forget(&self, id: &SessionId) {
        self.sessions.remove(id);
    }

    /// Another replica has taken the session: our copy is dropped, unless we have taken it
    /// again since.
    pub fn drop_copy(&self, id: &SessionId, owner: &PreviousOwner) {
        if let Some(mut owned) = self.sessions.get_mut(id)
            && owned.epoch < owner.epoch
        {
            self.engine.freezer().release(id);
            owned.copy = self.next_copy.fetch_add(1, Relaxed);
            (owned.is_valid, owned.is_dirty) = (false, false);
            owned.generation = self.generation.load(Relaxed);
            owned.saved_through = 0;
        }
    }

    /// Whether no other replica has taken the session, and it has not ended since.
    pub fn is_owner(&self, id: &SessionId, owner: &PreviousOwner) -> bool {
        let owned = self.sessions.get(id);
        let (epoch, is_fresh) = owned.map_or((0, false), |it| (it.epoch, it.is_fresh));
        let is_free = owner.name == PreviousOwner::NOBODY && is_fresh;
        owner.name == self.me || is_free || owner.epoch <= epoch
    }

    /// The next sweep looks for sessions that are not saved.
    pub fn note_unsaved(&self) {
        self.may_be_unsaved.store(true, Relaxed);
    }

    /// Whether there may be sessions that are not saved, since the last call.
    pub fn take_may_be_unsaved(&self) -> bool {
        self.may_be_unsaved.swap(false, Relaxed)
    }

    /// The sessions that are not saved as they are.
    pub fn unsaved(&self) -> Vec<SessionId> {
        let generation = self.generation.load(Relaxed);
        let unsaved = self
            .sessions
            .iter()
            .filter(|it| it.is_dirty || it.generation != generation);
        unsaved.map(|it| it.key().clone()).collect()
    }

    /// Forgets the entries of sessions that the engine no longer has.
    pub fn remove_closed(&self) {
        let engine = &self.engine;
        self.sessions.retain(|id, _| engine.freezer().is_live(id));
    }
}

/// Whether our copy of a session stays although another replica may have had it.
fn keeps_copy(owned: &Ownership, reply: &TakeReply, saved: &SavedSession, me: &str) -> bool {
    match &reply.previous {
        // No other replica has taken it since.
        Some(previous) if previous.name == me && previous.epoch == owned.epoch => true,
        // What is saved counts. Less of it, of an earlier epoch, is there only after the server
        // has lost writes.
        Some(previous) if saved.has_state => {
            previous.epoch <= owned.epoch && saved.events < owned.saved_through
        }
        // The server has lost it.
        None => true,
        // It has ended or was reset since, unless our copy is of later.
        Some(previous) => owned.is_fresh || previous.epoch <= owned.epoch,
    }
}
