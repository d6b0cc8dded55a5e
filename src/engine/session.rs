//! One live session: its state, its lifecycle and its view. `record` records events and
//! deltas, `refusals` calls that were refused, `verdicts` runs the detectors and issues
//! verdicts.

mod deltas;
pub(super) mod frozen;
mod record;
mod refusals;
mod timeline;
mod verdict_history;
mod verdicts;

use std::{sync::Arc, time::SystemTime};

use smallvec::SmallVec;
use uuid::Uuid;

pub(super) use deltas::AppendOutcome;
use deltas::draft_key;
pub(super) use frozen::Dependencies;
pub use frozen::ThawError;
use verdict_history::VerdictHistory;
pub(super) use verdicts::ObservationContext;

use super::{
    EngineContext, Profile, RecordError, agent::Agent, closed::CarryOver,
    event_ids::RecentEventIds, eviction::DeadlineKey, eviction::MemoryUse, query::Severity,
    slot::slot_bytes,
};
use crate::{
    detect::CallText,
    domain::{
        Abstention, Channel, Cost, Delta, DetectorId, Labels, LazyBox, SessionId, SessionStatus,
        SessionView, Sig, TimelineEntry, Totals, Verdict, VerdictId, labels_bytes, sanitize,
    },
    facts::{FactExtractor, ProgressCounter},
    text::{HashKey, call_key::call_key},
};

/// The whole state of a live session.
pub(super) struct Session {
    profile: Arc<Profile>,
    /// The version of the configuration that the profile comes from.
    config_version: u64,
    labels: Arc<Labels>,
    labels_bytes: usize,
    deadline_key: DeadlineKey,
    created: SystemTime,
    /// The arrival time of the latest input, by the engine's clock.
    last_seen: SystemTime,
    events: i32,
    turns: i32,
    cost: Cost,
    /// The totals when the detectors last ran.
    last_checked_totals: Totals,
    progress: ProgressCounter,
    /// Most sessions have one.
    agents: SmallVec<[Agent; 1]>,
    event_ids: RecentEventIds,
    abstentions: Vec<(DetectorId, &'static str, u32)>,
    verdict_history: LazyBox<VerdictHistory>,
    /// Bytes by the last accounting.
    accounted_bytes: usize,
    /// Its head has changed since it was last saved.
    is_changed: bool,
    /// How many more answers report that the session was known before a restart and its
    /// state could not be restored.
    state_lost_answers: u8,
}

/// How many answers say that the state was lost, unless the session is opened or begins a
/// new run before.
const STATE_LOST_ANSWERS: u8 = 32;

/// The number of verdicts in a view.
const VIEW_VERDICTS_MAX: usize = 8;

impl Session {
    pub fn new(
        profile: Arc<Profile>,
        labels: Arc<Labels>,
        deadline_key: DeadlineKey,
        now: SystemTime,
    ) -> Self {
        Self {
            profile,
            config_version: 0,
            labels_bytes: labels_bytes(&labels),
            labels,
            deadline_key,
            created: now,
            last_seen: now,
            events: 0,
            turns: 0,
            cost: Cost::default(),
            last_checked_totals: Totals::default(),
            progress: ProgressCounter::default(),
            agents: SmallVec::new(),
            event_ids: RecentEventIds::default(),
            abstentions: Vec::new(),
            verdict_history: LazyBox::default(),
            accounted_bytes: 0,
            is_changed: true,
            state_lost_answers: 0,
        }
    }

    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    pub fn deadline_key(&self) -> DeadlineKey {
        self.deadline_key
    }

    pub fn set_deadline_key(&mut self, key: DeadlineKey) {
        self.deadline_key = key;
    }

    pub fn last_seen(&self) -> SystemTime {
        self.last_seen
    }

    /// The events that were counted.
    pub fn events(&self) -> i32 {
        self.events
    }

    /// Lets the policy decide again about loops whose verdict was not acted on.
    pub fn clear_unenforced_terminations(&mut self) {
        for agent in &mut self.agents {
            agent.policy.clear_unenforced_terminations();
        }
    }

    /// Sets the profile and the labels. With another profile, texts in progress
    /// are discarded, because they were tracked with the old settings.
    pub fn set_profile_and_labels(
        &mut self,
        profile: Arc<Profile>,
        labels: Arc<Labels>,
        ctx: &EngineContext,
    ) -> Result<(), RecordError> {
        let new_bytes = labels_bytes(&labels);
        if new_bytes > self.labels_bytes {
            ctx.check_memory(MemoryUse::Event)?;
        }
        if self.profile.name != profile.name {
            self.clear_drafts();
        }
        self.state_lost_answers = 0;
        self.profile = profile;
        self.labels_bytes = new_bytes;
        self.labels = labels;
        Ok(())
    }

    fn clear_drafts(&mut self) {
        for agent in &mut self.agents {
            agent.drafts.clear();
        }
    }

    /// Whether `refresh` would change anything.
    fn is_stale(&self, now: SystemTime, ctx: &EngineContext) -> bool {
        self.config_version != ctx.config_version
            || self.is_snooze_expired(now)
            || self.is_withholding_over(ctx)
    }

    fn is_snooze_expired(&self, now: SystemTime) -> bool {
        let snoozed_until = self.verdict_history.snoozed_until;
        snoozed_until.is_some_and(|until| until <= now)
    }

    /// A termination was withheld, and the breaker has closed since, or the session
    /// has gone on for as many events again.
    fn is_withholding_over(&self, ctx: &EngineContext) -> bool {
        let withheld = self.verdict_history.withheld_termination;
        withheld.is_some_and(|withheld| {
            self.events == withheld.enforced_from || !ctx.tenant.breaker.is_open()
        })
    }

    /// Ends a snooze that has expired and the effect of a breaker that has closed,
    /// and fetches the profile after a reload. Counts and trends stay; texts in
    /// progress are discarded after a reload, because they were tracked with the
    /// old settings.
    fn refresh(&mut self, now: SystemTime, ctx: &EngineContext) {
        let (snooze_expired, withholding_over) =
            (self.is_snooze_expired(now), self.is_withholding_over(ctx));
        if snooze_expired {
            self.verdict_history.snoozed_until = None;
        }
        if withholding_over && !ctx.tenant.breaker.is_open() {
            self.verdict_history.withheld_termination = None;
        }
        if snooze_expired || withholding_over {
            self.clear_unenforced_terminations();
        }
        if self.config_version != ctx.config_version {
            self.config_version = ctx.config_version;
            self.profile = ctx.profiles.get_or_default(&self.profile.name);
            self.clear_drafts();
        }
    }

    pub fn snooze(&mut self, until: SystemTime) {
        self.verdict_history.snoozed_until = Some(until);
        self.is_changed = true;
    }

    /// Whether the head has changed since it was last saved.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub fn set_changed(&mut self, is_changed: bool) {
        self.is_changed = is_changed;
    }

    pub fn set_state_lost(&mut self) {
        self.state_lost_answers = STATE_LOST_ANSWERS;
    }

    /// Whether the state was lost at a restart. The first answers say so, because a broker
    /// may miss one.
    pub fn take_state_lost(&mut self) -> bool {
        let is_lost = self.state_lost_answers > 0;
        self.state_lost_answers = self.state_lost_answers.saturating_sub(1);
        is_lost
    }

    /// Applies the carry-over of an earlier session of the same id.
    pub fn apply_carry_over(&mut self, carry_over: CarryOver) {
        if carry_over.snoozed_until.is_some() {
            self.verdict_history.snoozed_until = carry_over.snoozed_until;
        }
        for verdict in carry_over.agent_terminations {
            let known = self
                .agents
                .iter_mut()
                .find(|known| known.id == verdict.agent);
            match known {
                Some(agent) => agent.termination = Some(verdict),
                None => {
                    let mut agent = Agent::new(verdict.agent.clone());
                    agent.termination = Some(verdict);
                    self.agents.push(agent);
                }
            }
        }
    }

    pub fn carry_over(&self) -> CarryOver {
        CarryOver {
            agent_terminations: self.terminations(),
            snoozed_until: self.verdict_history.snoozed_until,
        }
    }

    /// The session after a panic: its profile, labels, queue position and carry-over
    /// stay, everything else may be half changed and is dropped.
    pub fn to_quarantined(&self, reference: Uuid) -> Self {
        let mut session = Self::new(
            self.profile.clone(),
            self.labels.clone(),
            self.deadline_key,
            self.created,
        );
        session.last_seen = self.last_seen;
        session.apply_carry_over(self.carry_over());
        session.verdict_history.quarantine = Some(reference);
        session.verdict_history.is_queued_with_verdicts =
            self.verdict_history.is_queued_with_verdicts;
        session.accounted_bytes = self.accounted_bytes;
        session
    }

    /// Whether its eviction would lose something: it has a verdict or a terminated
    /// agent, or is snoozed or quarantined.
    pub fn has_verdicts(&self) -> bool {
        let history = &*self.verdict_history;
        !history.verdicts.is_empty()
            || history.quarantine.is_some()
            || history.snoozed_until.is_some()
            || self.agents.iter().any(Agent::is_terminated)
    }

    pub fn is_queued_with_verdicts(&self) -> bool {
        self.verdict_history.is_queued_with_verdicts
    }

    pub fn set_queued_with_verdicts(&mut self) {
        self.verdict_history.is_queued_with_verdicts = true;
    }

    /// Measures the session. Returns its bytes before and now.
    pub fn update_accounted_bytes(&mut self, id: &SessionId) -> (usize, usize) {
        let agents: usize = self.agents.iter().map(Agent::heap_bytes).sum();
        let spilled_agents = if self.agents.spilled() {
            self.agents.capacity() * size_of::<Agent>()
        } else {
            0
        };
        let content_bytes = size_of::<Self>()
            + agents
            + spilled_agents
            + self.progress.heap_bytes()
            + self.event_ids.heap_bytes()
            + self.abstentions.capacity() * size_of::<(DetectorId, &str, u32)>()
            + self.verdict_history.heap_bytes(VerdictHistory::heap_bytes)
            + self.labels_bytes;
        let bytes = slot_bytes(id, content_bytes);
        (std::mem::replace(&mut self.accounted_bytes, bytes), bytes)
    }

    pub fn accounted_bytes(&self) -> usize {
        self.accounted_bytes
    }

    pub fn status(&self) -> SessionStatus {
        let history = &*self.verdict_history;
        if history.termination.is_some() {
            SessionStatus::Terminated
        } else if history.quarantine.is_some() {
            SessionStatus::Quarantined
        } else if self.active_agents().any(|agent| agent.policy.is_looping()) {
            SessionStatus::Looping
        } else {
            SessionStatus::Active
        }
    }

    /// The agents that are not terminated.
    fn active_agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().filter(|agent| !agent.is_terminated())
    }

    /// The verdicts that terminated agents, all of them; a view has only the last
    /// few. A verdict that terminates the session is in its tombstone.
    pub fn terminations(&self) -> Vec<Arc<Verdict>> {
        let agents = self.agents.iter();
        agents
            .filter_map(|agent| agent.termination.clone())
            .collect()
    }

    pub fn last_verdict(&self) -> Option<&Arc<Verdict>> {
        self.verdict_history.verdicts.back()
    }

    pub fn severity(&self) -> Severity {
        let trends = self
            .active_agents()
            .flat_map(|agent| self.detectors().filter_map(|id| agent.policy.trend(id)));
        Severity::new(
            self.status(),
            trends.map(|trend| trend.ema).fold(0.0, f64::max),
            self.verdict_history.wasted,
            self.last_verdict().map(|verdict| &**verdict),
        )
    }

    fn detectors(&self) -> impl Iterator<Item = DetectorId> {
        (0..)
            .map(DetectorId)
            .take(self.profile.policy.escalations.len())
    }

    /// The latest events, oldest first.
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        timeline::build_timeline(&self.agents, &self.profile)
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        let history = &*self.verdict_history;
        let trends = self.active_agents().flat_map(|agent| {
            self.detectors().filter_map(|detector| {
                let trend = agent.policy.trend(detector)?;
                let name = self.profile.detector_name(detector);
                Some((agent.id.clone(), name, trend))
            })
        });
        let abstentions = self.abstentions.iter();
        let hidden = history.verdicts.len().saturating_sub(VIEW_VERDICTS_MAX);
        SessionView {
            id: id.clone(),
            status: self.status(),
            profile: self.profile.name.clone(),
            labels: self.labels.clone(),
            created: self.created,
            last_event: self.last_seen,
            events: self.events,
            turns: self.turns,
            cost: self.cost,
            agents: self.agents.len(),
            trends: trends.collect(),
            trend_samples: timeline::trend_samples(self.active_agents(), self.events),
            verdicts: history.verdicts.iter().skip(hidden).cloned().collect(),
            wasted: history.wasted,
            avoidable: history.avoidable,
            abstentions: abstentions
                .map(|(detector, field, events)| Abstention {
                    detector: self.profile.detector_name(*detector),
                    field,
                    events: *events,
                })
                .collect(),
            termination: history.termination.clone(),
            snoozed_until: history.snoozed_until,
            standing: self.strongest_standing(),
            // Counted apart from the session.
            disobeyed: crate::domain::Waste::default(),
        }
    }

    /// The beginning of the text that this delta ends.
    pub fn draft_text(&self, delta: &Delta, key: &HashKey) -> String {
        let agent = self.agents.iter().find(|agent| agent.id == delta.agent);
        let beginning = agent.map_or("", |agent| agent.drafts.prefix(draft_key(delta, key)));
        let chunk = match delta.channel {
            Channel::Visible => sanitize::prefix(&delta.text, FactExtractor::EMBEDDED_BYTES_MAX),
            Channel::Reasoning => "",
        };
        format!("{beginning}{chunk}")
    }

    /// Learns the key of a call whose loop was restored without it: keys are agents' text
    /// and not saved with a head.
    fn learn_call_key(&mut self, position: usize, call: Option<Sig>, text: &CallText<'_>) {
        if let Some(call) = call
            && let Some(agent) = self.agents.get_mut(position)
            && let Some(standing) = agent.standing.get_mut()
        {
            standing.learn_call_key(call, || call_key(text.tool, text.args));
        }
    }

    pub fn verdict(&self, id: VerdictId) -> Option<Arc<Verdict>> {
        let verdicts = self.verdict_history.verdicts.iter();
        verdicts.rev().find(|verdict| verdict.id == id).cloned()
    }

    #[cfg(test)]
    pub fn retained_verdicts(&self) -> usize {
        self.verdict_history.verdicts.len()
    }
}
