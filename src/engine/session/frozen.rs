//! A session as bytes: a head with what later events cannot rebuild, and a window with what
//! the detectors have seen lately.
//!
//! Raise `HEAD_VERSION` or `WINDOW_VERSION` with every change of the layout: a field or
//! variant that is added, removed, moved or given another type, in this file or in any
//! type that it contains. Raise `WINDOW_VERSION` also if signatures are computed in
//! another way (the order of `SignatureKind`, the hash function), because windows would
//! match nothing. Bytes of another version are ignored when they are loaded. The layouts
//! are recorded in `frozen/tests.rs`, which fails if one changes under the same version.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;
use uuid::Uuid;

use super::{STATE_LOST_ANSWERS, Session, verdict_history::WithheldTermination};
use crate::{
    domain::{
        AgentId, Cost, DetectorId, FrozenSession, SessionId, Sig, Totals, Verdict, VerdictId,
        Waste, missing_field_name, serde_time,
    },
    engine::{
        EngineContext, Profile, agent::Agent, event_ids::RecentEventIds, eviction::DeadlineKey,
        standing::StandingLoops,
    },
    facts::{FactExtractor, ProgressCounter},
    policy::LoopHistory,
    text::PhraseMatcher,
};

const HEAD_VERSION: u8 = 3;
const WINDOW_VERSION: u8 = 8;

/// Why bytes are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ThawError {
    #[error("of another version")]
    Version,
    #[error("damaged")]
    Damaged,
    #[error("with signatures of another key")]
    Key,
    #[error("with other rules or another model")]
    Detectors,
}

/// Identifies what the bytes depend on beside the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct Dependencies {
    /// The signature of a fixed text: without the same key no signature matches.
    pub key: Sig,
    /// Names and order of the detectors and rules, and the models: sets of detectors
    /// are stored as bits.
    pub detectors: Sig,
}

/// The head of a session. `I`, `L` and `S` are the event ids, the loops and the standing,
/// borrowed in order to freeze and owned when they are thawed; so are the parameters of
/// [`Window`].
#[derive(Serialize, Deserialize)]
struct Head<I, L, S> {
    dependencies: Dependencies,
    #[serde(with = "serde_time")]
    created: SystemTime,
    events: i32,
    turns: i32,
    cost: Cost,
    last_checked_totals: Totals,
    wasted: Waste,
    avoidable: Waste,
    #[serde(with = "serde_time::option")]
    snoozed_until: Option<SystemTime>,
    withheld_termination: Option<WithheldTermination>,
    quarantine: Option<u128>,
    agents: SmallVec<[AgentHead<L, S>; 1]>,
    event_ids: I,
}

#[derive(Serialize, Deserialize)]
struct AgentHead<L, S> {
    id: AgentId,
    totals: Waste,
    /// `None`: no detector has found anything.
    loops: Option<L>,
    /// `None`: no action is in force for the agent.
    standing: Option<S>,
}

#[derive(Serialize, Deserialize)]
struct Window<P, A, F, V> {
    dependencies: Dependencies,
    /// Equal to that of the head that was frozen with it.
    events: i32,
    progress: P,
    /// In the order of the agents in the head.
    agents: A,
    /// Identifies the settings with which the agents' texts in progress were read.
    text_settings: u64,
    abstentions: Vec<(DetectorId, F, u32)>,
    retained_after_prune: usize,
    verdicts: V,
}

type OwnedAgentHead = AgentHead<LoopHistory, StandingLoops>;
type OwnedHead = Head<RecentEventIds, LoopHistory, StandingLoops>;
type OwnedWindow = Window<ProgressCounter, SmallVec<[Agent; 1]>, String, Vec<Verdict>>;

/// The head of a session as bytes.
pub fn freeze_head(session: &Session, dependencies: Dependencies) -> Vec<u8> {
    let history = &*session.verdict_history;
    let agents = session.agents.iter().map(|agent| AgentHead {
        id: agent.id.clone(),
        totals: agent.totals,
        loops: agent.policy.loops(),
        standing: agent.standing.get(),
    });
    let head = Head {
        dependencies,
        created: session.created,
        events: session.events,
        turns: session.turns,
        cost: session.cost,
        last_checked_totals: session.last_checked_totals,
        wasted: history.wasted,
        avoidable: history.avoidable,
        snoozed_until: history.snoozed_until,
        withheld_termination: history.withheld_termination,
        quarantine: history.quarantine.map(|reference| reference.as_u128()),
        agents: agents.collect(),
        event_ids: &session.event_ids,
    };
    encode(HEAD_VERSION, &head)
}

/// The window of a session as bytes.
pub fn freeze_window(
    session: &Session,
    dependencies: Dependencies,
    matcher: &PhraseMatcher,
) -> Vec<u8> {
    let history = &*session.verdict_history;
    let window = Window {
        dependencies,
        events: session.events,
        progress: &session.progress,
        agents: &session.agents,
        text_settings: text_settings(&session.profile, matcher),
        abstentions: session.abstentions.clone(),
        retained_after_prune: history.retained_after_prune,
        verdicts: &history.verdicts,
    };
    encode(WINDOW_VERSION, &window)
}

/// Restores a frozen session. The second value says why its window is not used, if
/// there is one; the detectors then begin again.
pub fn thaw(
    frozen: &FrozenSession,
    deadline_key: DeadlineKey,
    dependencies: Dependencies,
    ctx: &EngineContext,
) -> Result<(Session, Option<ThawError>), ThawError> {
    let mut head: OwnedHead = decode(HEAD_VERSION, &frozen.head)?;
    head.drop_unusable(dependencies);
    let mut session = without_state(frozen, deadline_key, ctx);
    let (window, window_error) = match &frozen.window {
        None => (None, None),
        Some(bytes) => {
            let decoded = decode_window(bytes, &head, dependencies);
            match decoded.and_then(|window| window.with_texts(&session.profile, ctx.facts)) {
                Ok(window) => (Some(window), None),
                Err(error) => (None, Some(error)),
            }
        }
    };
    session.state_lost_answers = 0;
    session.created = head.created;
    (session.events, session.turns, session.cost) = (head.events, head.turns, head.cost);
    session.last_checked_totals = head.last_checked_totals;
    session.event_ids = head.event_ids;
    let has_window = window.is_some();
    if let Some(window) = window {
        restore_window(&mut session, window, &frozen.id);
    }
    restore_agents(&mut session, head.agents, has_window);
    // Most sessions have none of these, and then allocate nothing.
    if head.wasted != Waste::default() || head.avoidable != Waste::default() {
        session.verdict_history.wasted = head.wasted;
        session.verdict_history.avoidable = head.avoidable;
    }
    if head.snoozed_until.is_some() {
        session.verdict_history.snoozed_until = head.snoozed_until;
    }
    if head.withheld_termination.is_some() {
        session.verdict_history.withheld_termination = head.withheld_termination;
    }
    if let Some(reference) = head.quarantine {
        session.verdict_history.quarantine = Some(Uuid::from_u128(reference));
    }
    Ok((session, window_error))
}

/// A session of which only profile and labels are known.
pub fn without_state(
    frozen: &FrozenSession,
    deadline_key: DeadlineKey,
    ctx: &EngineContext,
) -> Session {
    let profile = ctx.profiles.get_or_default(&frozen.profile);
    let labels = frozen.labels.clone();
    Session {
        config_version: ctx.config_version,
        is_changed: false,
        state_lost_answers: STATE_LOST_ANSWERS,
        ..Session::new(profile, labels, deadline_key, frozen.last_seen)
    }
}

fn restore_window(session: &mut Session, window: OwnedWindow, id: &SessionId) {
    session.progress = window.progress;
    session.agents = window.agents;
    let known = |(detector, field, events): (DetectorId, String, u32)| {
        Some((detector, missing_field_name(&field)?, events))
    };
    session.abstentions = window.abstentions.into_iter().filter_map(known).collect();
    if !window.verdicts.is_empty() {
        let history = &mut *session.verdict_history;
        let verdicts = window.verdicts.into_iter().map(|verdict| Verdict {
            session: id.clone(),
            ..verdict
        });
        history.verdicts = verdicts.map(Arc::new).collect();
        history.verdicts_bytes = verdicts_bytes(&history.verdicts);
        history.retained_after_prune = window.retained_after_prune;
    }
    for agent in &mut session.agents {
        agent.termination = agent.termination.take().map(|verdict| {
            let verdict = Arc::unwrap_or_clone(verdict);
            Arc::new(Verdict {
                session: id.clone(),
                ..verdict
            })
        });
    }
}

/// Restores what the head has of each agent; without a window the agents are new.
fn restore_agents(session: &mut Session, heads: SmallVec<[OwnedAgentHead; 1]>, has_window: bool) {
    for (position, head) in heads.into_iter().enumerate() {
        if session.agents.len() == position {
            session.agents.push(Agent::new(AgentId::default()));
        }
        if let Some(agent) = session.agents.get_mut(position) {
            let standing = head.standing.map(|mut standing| {
                if !has_window {
                    standing.set_progress(session.progress.count());
                }
                standing.link_verdicts(session.verdict_history.verdicts.iter());
                standing
            });
            agent.restore(head.id, head.totals, head.loops, standing);
        }
    }
}

/// The verdicts of loops with an action in force that a session knows only by their ids,
/// because its window was not saved.
pub fn missing_verdicts(session: &Session) -> Vec<VerdictId> {
    let standing = session
        .agents
        .iter()
        .filter_map(|agent| agent.standing.get());
    standing.flat_map(StandingLoops::missing_verdicts).collect()
}

/// Adds verdicts that were read from the log, oldest first.
pub fn add_verdicts(session: &mut Session, verdicts: Vec<Arc<Verdict>>) {
    for agent in &mut session.agents {
        if let Some(standing) = agent.standing.get_mut() {
            standing.link_verdicts(verdicts.iter());
        }
    }
    let history = &mut *session.verdict_history;
    history.verdicts = verdicts.into();
    history.verdicts_bytes = verdicts_bytes(&history.verdicts);
}

impl OwnedHead {
    /// Drops what has no meaning with another key or with other detectors.
    fn drop_unusable(&mut self, dependencies: Dependencies) {
        if self.dependencies.key != dependencies.key {
            self.event_ids = RecentEventIds::default();
        }
        if self.dependencies != dependencies {
            for agent in &mut self.agents {
                agent.loops = None;
                agent.standing = None;
            }
        }
    }
}

impl OwnedWindow {
    /// Restores the texts in progress. They are discarded if they were read with other
    /// settings, as after a reload.
    fn with_texts(mut self, profile: &Profile, facts: &FactExtractor) -> Result<Self, ThawError> {
        let settings = text_settings(profile, &facts.analyzers().phrase_matcher);
        let are_of_these_settings = self.text_settings == settings;
        for agent in &mut self.agents {
            if !are_of_these_settings {
                agent.drafts.clear();
            } else if !agent.drafts.restore(profile.repeat_settings(), facts) {
                return Err(ThawError::Damaged);
            }
        }
        Ok(self)
    }
}

/// Changes with everything that the state of a text in progress depends on.
fn text_settings(profile: &Profile, matcher: &PhraseMatcher) -> u64 {
    let mut hasher = DefaultHasher::new();
    profile.repeat_settings().hash(&mut hasher);
    matcher.fingerprint().hash(&mut hasher);
    hasher.finish()
}

fn verdicts_bytes(verdicts: &VecDeque<Arc<Verdict>>) -> usize {
    verdicts.iter().map(|verdict| verdict.memory_bytes()).sum()
}

fn decode_window(
    bytes: &[u8],
    head: &OwnedHead,
    dependencies: Dependencies,
) -> Result<OwnedWindow, ThawError> {
    let window: OwnedWindow = decode(WINDOW_VERSION, bytes)?;
    if window.dependencies.key != dependencies.key {
        return Err(ThawError::Key);
    }
    if window.dependencies.detectors != dependencies.detectors {
        return Err(ThawError::Detectors);
    }
    if window.events != head.events || window.agents.len() != head.agents.len() {
        return Err(ThawError::Damaged);
    }
    Ok(window)
}

/// The version, then the value. Empty if the value cannot be encoded, which no state
/// causes; empty bytes are ignored when they are loaded.
fn encode(version: u8, value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![version]).unwrap_or_default()
}

fn decode<'a, T: Deserialize<'a>>(version: u8, bytes: &'a [u8]) -> Result<T, ThawError> {
    let (first, encoded) = bytes.split_first().ok_or(ThawError::Damaged)?;
    if *first != version {
        return Err(ThawError::Version);
    }
    match postcard::take_from_bytes(encoded) {
        Ok((value, [])) => Ok(value),
        _ => Err(ThawError::Damaged),
    }
}
