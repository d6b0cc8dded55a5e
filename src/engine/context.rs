//! What a reload replaces: how sessions are watched, and the limits.

use std::sync::{Arc, atomic::AtomicUsize};

use thiserror::Error;

use super::{Engine, EngineState, Limits, Profiles, issuer::VerdictIssuer, tenants::TenantState};
use crate::{
    facts::{FactExtractor, ToolRules},
    rules::Rules,
    telemetry::Metrics,
    text::HashKey,
};

/// All of it, so that it is swapped at once.
pub(super) struct EngineConfig {
    /// Counts the reloads. A session that has seen another one takes its profile
    /// anew.
    version: u64,
    pub profiles: Arc<Profiles>,
    pub facts: FactExtractor,
    pub rules: Arc<Rules>,
    pub limits: Limits,
}

/// What every session needs of the engine, as it is at the moment.
pub(super) struct EngineContext<'a> {
    pub config_version: u64,
    pub profiles: &'a Profiles,
    pub facts: &'a FactExtractor,
    pub rules: &'a Rules,
    pub limits: &'a Limits,
    pub issuer: &'a VerdictIssuer,
    pub metrics: &'a Metrics,
    pub live_sessions: &'a AtomicUsize,
    pub state_bytes: &'a AtomicUsize,
    /// Among how many the limits are shared.
    pub tenant_count: usize,
    /// What the tenant of the session holds.
    pub tenant: &'a TenantState,
}

/// Why another setup is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EngineReloadError {
    /// Counts, trends and metrics are kept by a rule's place.
    #[error("to add, remove, rename or reorder [[rules]] needs a restart")]
    RulesChanged,
    /// What turns were compared by cannot be compared with what they are now.
    #[error("another detect.similar_turns.model needs a restart")]
    ModelChanged,
}

impl EngineConfig {
    pub fn new(key: HashKey, profiles: Profiles, tools: ToolRules, limits: Limits) -> Self {
        Self {
            version: 0,
            facts: FactExtractor::new(key, tools, profiles.reader().clone()),
            rules: profiles.rules().clone(),
            profiles: Arc::new(profiles),
            limits,
        }
    }
}

impl Engine {
    pub(super) fn context<'a>(
        &'a self,
        config: &'a EngineConfig,
        tenant: &'a TenantState,
    ) -> EngineContext<'a> {
        let EngineState {
            issuer,
            metrics,
            live_sessions,
            state_bytes,
        } = &self.state;
        EngineContext {
            config_version: config.version,
            profiles: &config.profiles,
            facts: &config.facts,
            rules: &config.rules,
            limits: &config.limits,
            issuer,
            metrics,
            live_sessions,
            state_bytes,
            tenant_count: self.tenants.count(),
            tenant,
        }
    }

    /// Watches all sessions in another way from now on. What was learned of them
    /// stays; a text that is being written begins anew. How long a tombstone is
    /// kept does not change: the store goes by it too.
    pub fn reload(
        &self,
        profiles: Profiles,
        tools: ToolRules,
        limits: Limits,
    ) -> Result<(), EngineReloadError> {
        let current = self.config.load();
        if !current
            .profiles
            .detector_names()
            .eq(profiles.detector_names())
        {
            return Err(EngineReloadError::RulesChanged);
        }
        if current.profiles.model_folders() != profiles.model_folders() {
            return Err(EngineReloadError::ModelChanged);
        }
        let limits = Limits {
            tombstone_secs_max: current.limits.tombstone_secs_max,
            ..limits
        };
        let (sessions_max, state_bytes_max) = (limits.sessions_max, limits.state_bytes_max);
        self.state.metrics.set_limits(sessions_max, state_bytes_max);
        let key = current.facts.key().clone();
        self.config.store(Arc::new(EngineConfig {
            version: current.version + 1,
            ..EngineConfig::new(key, profiles, tools, limits)
        }));
        Ok(())
    }
}
