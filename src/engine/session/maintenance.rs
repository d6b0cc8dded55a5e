//! What is done to a session beside its events: it is weighed, and takes its
//! profile anew after a reload.

use super::{Agent, Session};
use crate::{
    domain::{DetectorId, SessionId},
    engine::{EngineContext, slot},
};

impl Session {
    /// Takes its profile anew after a reload. Counts and trends go on; a text
    /// that is being written was listened to in the old way, and begins anew.
    pub(super) fn refresh_profile(&mut self, ctx: &EngineContext) {
        if self.config_version == ctx.config_version {
            return;
        }
        self.config_version = ctx.config_version;
        self.profile = ctx.profiles.get_or_default(&self.profile.name);
        for agent in &mut self.agents {
            agent.drafts.clear();
        }
    }

    /// What it was last said to hold in bytes, and what it holds now.
    pub fn update_accounted_bytes(&mut self, id: &SessionId) -> (usize, usize) {
        let agents: usize = self.agents.iter().map(Agent::heap_bytes).sum();
        let bytes = size_of::<Self>()
            + agents
            + self.progress.heap_bytes()
            + self.event_ids.heap_bytes()
            + self.abstentions.capacity() * size_of::<(DetectorId, &str, u32)>()
            + self.verdict_history.heap_bytes()
            + self.labels_bytes;
        let bytes = match self.agents.spilled() {
            true => bytes + self.agents.capacity() * size_of::<Agent>(),
            false => bytes,
        };
        let bytes = slot::slot_bytes(id, bytes);
        (std::mem::replace(&mut self.accounted_bytes, bytes), bytes)
    }

    pub fn accounted_bytes(&self) -> usize {
        self.accounted_bytes
    }
}
