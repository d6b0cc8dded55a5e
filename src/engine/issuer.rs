//! Issues verdicts: ids in order, each verdict passed to the sink once.

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use parking_lot::Mutex;

use crate::{
    domain::{Effect, Labels, Verdict, VerdictId, VerdictRecord, VerdictSink, clock},
    text::KeySeeds,
};

/// The source of ids and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// Random, for a server.
    Live,
    /// Random ids, and the key of an earlier process, whose sessions are restored.
    Resumed(KeySeeds),
    /// Fixed, so that a trace gives the same output each time.
    Replay,
}

/// Assigns ids to verdicts and passes them to the sink. Both happen under one lock,
/// so that the sink receives verdicts in the order of their ids. In the server this is
/// `Store::verdict_sink`.
pub(super) struct VerdictIssuer {
    ids: Mutex<VerdictIdGenerator>,
    sink: VerdictSink,
    generation_counter: AtomicU64,
}

struct VerdictIdGenerator {
    last: u128,
    /// `None`: ids are not random.
    random_state: Option<std::hash::RandomState>,
}

impl VerdictIssuer {
    pub fn new(run_mode: RunMode, sink: VerdictSink) -> Self {
        Self {
            ids: Mutex::new(VerdictIdGenerator {
                last: 0,
                random_state: (run_mode != RunMode::Replay).then(Default::default),
            }),
            sink,
            generation_counter: AtomicU64::new(1),
        }
    }

    /// All ids issued from now on are greater than `last`.
    pub fn continue_after(&self, last: VerdictId) {
        let mut ids = self.ids.lock();
        ids.last = ids.last.max(last.0);
    }

    /// The next id depends on no id before it. Ids may repeat.
    pub fn restart(&self) {
        self.ids.lock().last = 0;
    }

    /// A number that tells slots of the same session id apart; never 0.
    pub fn next_generation(&self) -> u64 {
        self.generation_counter.fetch_add(1, Relaxed)
    }

    /// Assigns the id and passes the verdict to the sink.
    pub fn issue(
        &self,
        mut verdict: Verdict,
        labels: &Arc<Labels>,
        profile: &Arc<str>,
        effect: Effect,
        now: SystemTime,
    ) -> Arc<Verdict> {
        let mut ids = self.ids.lock();
        verdict.id = ids.next(now);
        let verdict = Arc::new(verdict);
        (self.sink)(VerdictRecord {
            verdict: verdict.clone(),
            labels: labels.clone(),
            profile: profile.clone(),
            effect,
            position: None,
        });
        verdict
    }
}

impl VerdictIdGenerator {
    /// A version 7 UUID: milliseconds, then random bits. If the clock stops
    /// or goes back, the last id plus one.
    fn next(&mut self, now: SystemTime) -> VerdictId {
        let random = self
            .random_state
            .as_ref()
            .map_or(0, |state| state.hash_one(self.last));
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&random.to_be_bytes());
        let id = uuid::Builder::from_unix_timestamp_millis(clock::millis(now), &bytes).into_uuid();
        self.last = id.as_u128().max(self.last.saturating_add(1));
        VerdictId(self.last)
    }
}
