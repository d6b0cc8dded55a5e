//! What led to the end of sessions that are over, for those who ask later why.
//! In memory only, since it is what agents wrote; the newest of each tenant,
//! within `limits.past_bytes_max`, and counted as state.
//!
//! Only of sessions that were terminated or told something: the others ended
//! well, are many more, and would push these out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Engine, Holding, slot::Slot};
use crate::domain::{
    Abstention, AgentId, SessionDetail, SessionId, SessionView, Status, TimelineEntry, Trend,
    Verdict,
};

/// As much as a tombstone does not have.
struct Keepsake {
    timeline: Vec<TimelineEntry>,
    verdicts: Vec<Arc<Verdict>>,
    trends: Vec<(AgentId, Arc<str>, Trend)>,
    abstentions: Vec<Abstention>,
}

impl Keepsake {
    fn bytes(&self) -> usize {
        let entries: usize = self.timeline.iter().map(TimelineEntry::bytes).sum();
        let verdicts: usize = self.verdicts.iter().map(|verdict| verdict.bytes()).sum();
        let agents: usize = self
            .trends
            .iter()
            .map(|(agent, ..)| agent.as_str().len())
            .sum();
        let trends = size_of_val(&*self.trends) + agents;
        size_of::<Self>() + entries + verdicts + trends + size_of_val(&*self.abstentions)
    }
}

/// Of one tenant's sessions, by the generations of their tombstones: the oldest
/// have the least.
#[derive(Default)]
pub(super) struct Keepsakes {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_generation: BTreeMap<u64, (usize, Arc<Keepsake>)>,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, generation: u64) {
        if let Some((bytes, _)) = self.by_generation.remove(&generation) {
            self.bytes -= bytes;
        }
    }
}

impl Keepsakes {
    fn get(&self, generation: u64) -> Option<Arc<Keepsake>> {
        let kept = self.lock();
        let (_, keepsake) = kept.by_generation.get(&generation)?;
        Some(keepsake.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Keeps what led to the end of a session, while its slot is still live;
    /// the view is of its end.
    pub(super) fn keep(&self, slot: &Slot, view: &SessionView, generation: u64) {
        let (setup, held) = (self.setup.load(), self.tenants.of(&view.id));
        let limit = setup.limits.past_bytes_max;
        let is_of_interest = view.status == Status::Terminated || !view.verdicts.is_empty();
        if limit == 0 || !is_of_interest {
            return;
        }
        let timeline = slot.timeline();
        if timeline.is_empty() {
            return;
        }
        let keepsake = Keepsake {
            timeline,
            verdicts: view.verdicts.clone(),
            trends: view.trends.clone(),
            abstentions: view.abstentions.clone(),
        };
        let most = self.shared(&setup, &held).share(limit);
        let bytes = keepsake.bytes();
        if bytes > most {
            return;
        }
        self.change_keepsakes(&held, |kept| {
            kept.by_generation
                .insert(generation, (bytes, Arc::new(keepsake)));
            kept.bytes += bytes;
            while kept.bytes > most
                && let Some((oldest, _)) = kept.by_generation.first_key_value()
            {
                kept.remove(*oldest);
            }
        });
    }

    /// Another tombstone takes the place of one, and what led to the end stays.
    pub(super) fn move_keepsake(&self, id: &SessionId, from: u64, to: u64) {
        let held = self.tenants.of(id);
        let mut kept = held.keepsakes.lock();
        if let Some(keepsake) = kept.by_generation.remove(&from) {
            kept.by_generation.insert(to, keepsake);
        }
    }

    /// The tombstone is gone, and so is this.
    pub(super) fn lose_keepsake(&self, held: &Holding, generation: u64) {
        self.change_keepsakes(held, |kept| kept.remove(generation));
    }

    /// Nobody is worse off without them: they go before anything else.
    pub(super) fn lose_keepsakes(&self, held: &Holding) {
        self.change_keepsakes(held, |kept| *kept = Kept::default());
    }

    fn change_keepsakes(&self, held: &Holding, change: impl FnOnce(&mut Kept)) {
        let mut kept = held.keepsakes.lock();
        let was = kept.bytes;
        change(&mut kept);
        self.count_bytes(held, was, kept.bytes);
    }

    /// Puts what is still kept of a session that is over back into the picture.
    pub(super) fn recall(&self, id: &SessionId, generation: u64, detail: &mut SessionDetail) {
        let Some(keepsake) = self.tenants.of(id).keepsakes.get(generation) else {
            return;
        };
        let view = &mut detail.view;
        let is_told = |id| keepsake.verdicts.iter().any(|verdict| verdict.id == id);
        let last = view.termination.iter().filter(|last| !is_told(last.id));
        view.verdicts = keepsake.verdicts.iter().chain(last).cloned().collect();
        view.trends.clone_from(&keepsake.trends);
        view.abstentions.clone_from(&keepsake.abstentions);
        detail.timeline.clone_from(&keepsake.timeline);
    }
}
