//! What led to the end of sessions that are over, for those who ask later why.
//! In memory only, since it is what agents wrote; the newest of each tenant,
//! within `limits.post_mortem_bytes_max`, and counted as state.
//!
//! Only of sessions that were terminated or told something: the others ended
//! well, are many more, and would push these out.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use super::{Engine, TenantState, slot::Slot};
use crate::domain::{
    Abstention, AgentId, SessionDetail, SessionId, SessionStatus, SessionView, TimelineEntry,
    Trend, Verdict,
};

/// As much as a tombstone does not have.
struct PostMortem {
    timeline: Vec<TimelineEntry>,
    verdicts: Vec<Arc<Verdict>>,
    trends: Vec<(AgentId, Arc<str>, Trend)>,
    abstentions: Vec<Abstention>,
}

impl PostMortem {
    fn bytes(&self) -> usize {
        let entries: usize = self.timeline.iter().map(TimelineEntry::memory_bytes).sum();
        let verdicts: usize = self
            .verdicts
            .iter()
            .map(|verdict| verdict.memory_bytes())
            .sum();
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
pub(super) struct PostMortemCache {
    entries: Mutex<PostMortemEntries>,
}

#[derive(Default)]
struct PostMortemEntries {
    by_generation: BTreeMap<u64, (usize, Arc<PostMortem>)>,
    bytes: usize,
}

impl PostMortemEntries {
    fn remove(&mut self, generation: u64) {
        if let Some((bytes, _)) = self.by_generation.remove(&generation) {
            self.bytes -= bytes;
        }
    }
}

impl PostMortemCache {
    fn get(&self, generation: u64) -> Option<Arc<PostMortem>> {
        let entries = self.lock();
        let (_, post_mortem) = entries.by_generation.get(&generation)?;
        Some(post_mortem.clone())
    }

    fn lock(&self) -> MutexGuard<'_, PostMortemEntries> {
        self.entries.lock()
    }
}

impl Engine {
    /// Keeps what led to the end of a session, while its slot is still live;
    /// the view is of its end.
    pub(super) fn save_post_mortem(&self, slot: &Slot, view: &SessionView, generation: u64) {
        let (config, tenant) = (self.config.load(), self.tenants.get_or_insert(&view.id));
        let limit = config.limits.post_mortem_bytes_max;
        let is_of_interest = view.status == SessionStatus::Terminated || !view.verdicts.is_empty();
        if limit == 0 || !is_of_interest {
            return;
        }
        let timeline = slot.timeline();
        if timeline.is_empty() {
            return;
        }
        let post_mortem = PostMortem {
            timeline,
            verdicts: view.verdicts.clone(),
            trends: view.trends.clone(),
            abstentions: view.abstentions.clone(),
        };
        let bytes_max = self.context(&config, &tenant).tenant_share(limit);
        let bytes = post_mortem.bytes();
        if bytes > bytes_max {
            return;
        }
        self.update_post_mortems(&tenant, |entries| {
            entries
                .by_generation
                .insert(generation, (bytes, Arc::new(post_mortem)));
            entries.bytes += bytes;
            while entries.bytes > bytes_max
                && let Some((oldest, _)) = entries.by_generation.first_key_value()
            {
                entries.remove(*oldest);
            }
        });
    }

    /// Another tombstone takes the place of one, and what led to the end stays.
    pub(super) fn move_post_mortem(&self, id: &SessionId, from: u64, to: u64) {
        let tenant = self.tenants.get_or_insert(id);
        let mut entries = tenant.post_mortems.lock();
        if let Some(post_mortem) = entries.by_generation.remove(&from) {
            entries.by_generation.insert(to, post_mortem);
        }
    }

    /// The tombstone is gone, and so is this.
    pub(super) fn evict_post_mortem(&self, tenant: &TenantState, generation: u64) {
        self.update_post_mortems(tenant, |entries| entries.remove(generation));
    }

    /// Nobody is worse off without them: they go before anything else.
    pub(super) fn clear_post_mortems(&self, tenant: &TenantState) {
        self.update_post_mortems(tenant, |entries| *entries = PostMortemEntries::default());
    }

    fn update_post_mortems(
        &self,
        tenant: &TenantState,
        change: impl FnOnce(&mut PostMortemEntries),
    ) {
        let mut entries = tenant.post_mortems.lock();
        let before = entries.bytes;
        change(&mut entries);
        self.update_state_bytes(tenant, before, entries.bytes);
    }

    /// Puts what is still kept of a session that is over back into the picture.
    pub(super) fn attach_post_mortem(
        &self,
        id: &SessionId,
        generation: u64,
        detail: &mut SessionDetail,
    ) {
        let Some(post_mortem) = self.tenants.get_or_insert(id).post_mortems.get(generation) else {
            return;
        };
        let view = &mut detail.view;
        let is_included = |id| post_mortem.verdicts.iter().any(|verdict| verdict.id == id);
        let termination = view.termination.iter().filter(|last| !is_included(last.id));
        view.verdicts = post_mortem
            .verdicts
            .iter()
            .chain(termination)
            .cloned()
            .collect();
        view.trends.clone_from(&post_mortem.trends);
        view.abstentions.clone_from(&post_mortem.abstentions);
        detail.timeline.clone_from(&post_mortem.timeline);
    }
}
