//! The tombstone, post-mortem and carry-over of a closed session: the tombstone is in
//! the map, the post-mortem (why it was terminated or warned about) is kept for a
//! while, and the carry-over is for the next session of the same id.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use dashmap::DashMap;
use parking_lot::Mutex;

use super::{
    EngineContext, RecordOutcome,
    eviction::{DeadlineKey, DeadlineQueue},
    operator_actions::{OperatorRequest, termination_verdict},
    query::Severity,
    session::Session,
    slot::slot_bytes,
    tenant::TenantState,
};
use crate::domain::{
    Abstention, AgentId, CallCheck, Cost, Effect, EncodedRecord, Labels, SessionDetail, SessionId,
    SessionStatus, SessionView, Standing, TimelineEntry, Trend, Verdict, VerdictId, VerdictRecord,
    Waste, labels_bytes,
};

/// The entry of a session that was terminated or has ended.
pub(super) struct Tombstone {
    content: TombstoneContent,
    deadline_key: DeadlineKey,
    bytes: usize,
}

enum TombstoneContent {
    /// The session was closed by this process.
    Full(Box<SessionView>),
    /// The session was terminated before the service started. Encoded, because a
    /// million of them must fit into memory.
    Encoded(EncodedRecord),
}

impl Tombstone {
    /// Drops trends, abstentions and all verdicts but the termination; only how
    /// the session ended is kept.
    pub fn new(mut view: SessionView, deadline_key: DeadlineKey) -> Self {
        view.trends = Vec::new();
        view.trend_samples = Vec::new();
        view.abstentions = Vec::new();
        view.snoozed_until = None;
        view.verdicts = view.termination.iter().cloned().collect();
        let content_bytes = size_of::<Self>()
            + size_of::<SessionView>()
            + labels_bytes(&view.labels)
            + verdicts_bytes(&view.verdicts);
        Self {
            bytes: slot_bytes(&view.id, content_bytes),
            content: TombstoneContent::Full(Box::new(view)),
            deadline_key,
        }
    }

    /// The tombstone of a session that was terminated before the service started.
    pub fn from_encoded(id: &SessionId, encoded: EncodedRecord, deadline_key: DeadlineKey) -> Self {
        Self {
            bytes: slot_bytes(id, size_of::<Self>() + encoded.bytes.len()),
            content: TombstoneContent::Encoded(encoded),
            deadline_key,
        }
    }

    pub fn deadline_key(&self) -> DeadlineKey {
        self.deadline_key
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn status(&self) -> SessionStatus {
        match &self.content {
            TombstoneContent::Full(view) => view.status,
            TombstoneContent::Encoded(_) => SessionStatus::Terminated,
        }
    }

    pub fn severity(&self) -> Severity {
        match &self.content {
            TombstoneContent::Full(view) => {
                Severity::new(view.status, 0.0, view.wasted, view.termination.as_deref())
            }
            TombstoneContent::Encoded(encoded) => Severity::of_termination(encoded.id),
        }
    }

    /// Empty if the record would have to be decoded.
    pub fn profile_name(&self) -> &str {
        match &self.content {
            TombstoneContent::Full(view) => &view.profile,
            TombstoneContent::Encoded(_) => "",
        }
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        let view = match &self.content {
            TombstoneContent::Full(view) => (**view).clone(),
            TombstoneContent::Encoded(encoded) => decode_view(id, encoded),
        };
        let termination = view.termination.as_deref();
        SessionView {
            standing: termination.and_then(Standing::of_termination),
            ..view
        }
    }

    pub fn termination(&self, id: &SessionId) -> Option<Arc<Verdict>> {
        match &self.content {
            TombstoneContent::Full(view) => view.termination.clone(),
            TombstoneContent::Encoded(encoded) => decode_view(id, encoded).termination,
        }
    }

    /// The record of a termination by this process. An encoded one is on disk.
    pub fn termination_record(&self) -> Option<VerdictRecord> {
        let TombstoneContent::Full(view) = &self.content else {
            return None;
        };
        let verdict = view.termination.clone()?;
        Some(termination_record(verdict, &view.labels, &view.profile))
    }

    /// The record of a termination, decoded if this process has restored it.
    pub fn decoded_termination(&self) -> Option<VerdictRecord> {
        match &self.content {
            TombstoneContent::Full(_) => self.termination_record(),
            TombstoneContent::Encoded(encoded) => encoded.decode(),
        }
    }

    /// The answer to everything that is sent to a terminated session.
    pub fn terminated_outcome(&self, id: &SessionId) -> RecordOutcome {
        RecordOutcome::terminated(self.termination(id))
    }

    /// No call of a terminated session may be made; an ended one has nothing against it.
    pub fn check_call(&self, id: &SessionId) -> CallCheck {
        self.termination(id)
            .map_or_else(CallCheck::default, CallCheck::terminated)
    }

    /// Answers an event, and counts its cost as avoidable: the broker sent it
    /// although the session is terminated.
    pub fn reject_event(&mut self, id: &SessionId, cost: Cost) -> RecordOutcome {
        if let TombstoneContent::Full(view) = &mut self.content {
            view.avoidable += Waste::new(1, cost);
        }
        self.terminated_outcome(id)
    }
}

/// A termination as it was issued.
pub(super) fn termination_record(
    verdict: Arc<Verdict>,
    labels: &Arc<Labels>,
    profile: &Arc<str>,
) -> VerdictRecord {
    VerdictRecord {
        verdict,
        labels: labels.clone(),
        profile: profile.clone(),
        effect: Effect::Terminated,
        position: None,
    }
}

/// Builds a view from the record of a termination.
fn decode_view(id: &SessionId, encoded: &EncodedRecord) -> SessionView {
    let time = encoded.id.time();
    let Some(record) = encoded.decode() else {
        // A later version of the service may have written it. The session is
        // terminated all the same.
        let request = OperatorRequest {
            reason: "terminated before the service started",
            operator: "unknown",
        };
        let verdict = Verdict {
            id: encoded.id,
            durable: true,
            ..termination_verdict(id, &request, time)
        };
        let unknown = SessionView::unknown(id, &"default".into(), time);
        return terminated_view(unknown, Arc::new(verdict));
    };
    let view = SessionView {
        labels: record.labels,
        ..SessionView::unknown(id, &record.profile, time)
    };
    terminated_view(view, record.verdict)
}

fn terminated_view(view: SessionView, verdict: Arc<Verdict>) -> SessionView {
    SessionView {
        status: SessionStatus::Terminated,
        events: verdict
            .event_index
            .map_or(0, |index| index.saturating_add(1)),
        wasted: verdict.wasted,
        verdicts: vec![verdict.clone()],
        termination: Some(verdict),
        ..view
    }
}

fn verdicts_bytes(verdicts: &[Arc<Verdict>]) -> usize {
    verdicts.iter().map(|verdict| verdict.memory_bytes()).sum()
}

/// The part of a closed session that a tombstone does not have: what led to its
/// end. It is kept in memory only, because agents wrote it.
pub(super) struct PostMortem {
    timeline: Vec<TimelineEntry>,
    verdicts: Vec<Arc<Verdict>>,
    trends: Vec<(AgentId, Arc<str>, Trend)>,
    abstentions: Vec<Abstention>,
}

/// The post-mortems of one tenant, the newest within the tenant's share of
/// `limits.post_mortem_bytes_max`. They count as state.
#[derive(Default)]
pub(super) struct PostMortemCache {
    entries: Mutex<PostMortemEntries>,
}

#[derive(Default)]
struct PostMortemEntries {
    /// The entries and their bytes by the generation of the tombstone, oldest first.
    by_generation: BTreeMap<u64, (usize, Arc<PostMortem>)>,
    bytes: usize,
}

impl PostMortem {
    fn bytes(&self) -> usize {
        let entries: usize = self.timeline.iter().map(TimelineEntry::memory_bytes).sum();
        let agent_ids = self.trends.iter().map(|(agent, ..)| agent.as_str().len());
        size_of::<Self>()
            + entries
            + verdicts_bytes(&self.verdicts)
            + size_of_val(&*self.trends)
            + agent_ids.sum::<usize>()
            + size_of_val(&*self.abstentions)
    }

    pub fn verdict(&self, id: VerdictId) -> Option<Arc<Verdict>> {
        let verdicts = self.verdicts.iter();
        verdicts.rev().find(|verdict| verdict.id == id).cloned()
    }

    /// Adds the post-mortem to the detail of a closed session.
    pub fn attach_to(&self, detail: &mut SessionDetail) {
        let view = &mut detail.view;
        let termination = view
            .termination
            .iter()
            .filter(|last| self.verdicts.iter().all(|verdict| verdict.id != last.id));
        view.verdicts = self.verdicts.iter().chain(termination).cloned().collect();
        view.trends.clone_from(&self.trends);
        view.abstentions.clone_from(&self.abstentions);
        detail.timeline.clone_from(&self.timeline);
    }
}

impl PostMortemEntries {
    fn remove(&mut self, generation: u64) {
        if let Some((bytes, _)) = self.by_generation.remove(&generation) {
            self.bytes -= bytes;
        }
    }
}

impl PostMortemCache {
    pub fn get(&self, generation: u64) -> Option<Arc<PostMortem>> {
        let entries = self.entries.lock();
        let (_, post_mortem) = entries.by_generation.get(&generation)?;
        Some(post_mortem.clone())
    }

    /// Keeps a post-mortem when one tombstone replaces another.
    pub fn change_generation(&self, from: u64, to: u64) {
        let mut entries = self.entries.lock();
        if let Some(post_mortem) = entries.by_generation.remove(&from) {
            entries.by_generation.insert(to, post_mortem);
        }
    }
}

impl TenantState {
    /// Saves the post-mortem of a session that is still live; `view` says how it
    /// ends. Only sessions that were terminated or received a verdict get one: the
    /// others ended well, are many more, and would push these out.
    pub fn save_post_mortem(
        &self,
        session: &Session,
        view: &SessionView,
        generation: u64,
        ctx: &EngineContext,
    ) {
        let limit = ctx.limits.post_mortem_bytes_max;
        let is_of_interest = view.status == SessionStatus::Terminated || !view.verdicts.is_empty();
        if limit == 0 || !is_of_interest {
            return;
        }
        let timeline = session.timeline();
        if timeline.is_empty() {
            return;
        }
        let post_mortem = PostMortem {
            timeline,
            verdicts: view.verdicts.clone(),
            trends: view.trends.clone(),
            abstentions: view.abstentions.clone(),
        };
        let bytes_max = ctx.tenant_share(limit);
        let bytes = post_mortem.bytes();
        if bytes > bytes_max {
            return;
        }
        self.update_post_mortems(ctx.state_bytes, |entries| {
            let entry = (bytes, Arc::new(post_mortem));
            entries.by_generation.insert(generation, entry);
            entries.bytes += bytes;
            while entries.bytes > bytes_max
                && let Some((oldest, _)) = entries.by_generation.first_key_value()
            {
                entries.remove(*oldest);
            }
        });
    }

    /// Removes a post-mortem together with its tombstone.
    pub fn evict_post_mortem(&self, generation: u64, engine_bytes: &AtomicUsize) {
        self.update_post_mortems(engine_bytes, |entries| entries.remove(generation));
    }

    /// Removes all post-mortems. They go before anything else, because no decision
    /// depends on them.
    pub fn clear_post_mortems(&self, engine_bytes: &AtomicUsize) {
        self.update_post_mortems(engine_bytes, |entries| {
            *entries = PostMortemEntries::default();
        });
    }

    fn update_post_mortems(
        &self,
        engine_bytes: &AtomicUsize,
        change: impl FnOnce(&mut PostMortemEntries),
    ) {
        let mut entries = self.post_mortems.entries.lock();
        let before = entries.bytes;
        change(&mut entries);
        self.update_state_bytes(engine_bytes, before, entries.bytes);
    }
}

/// What a session that is neither live nor terminated leaves to the next session
/// of its id: terminated sub-agents stay terminated, and a snooze continues.
#[derive(Clone, Default)]
pub(super) struct CarryOver {
    /// The verdicts that terminated sub-agents.
    pub agent_terminations: Vec<Arc<Verdict>>,
    pub snoozed_until: Option<SystemTime>,
}

/// The carry-overs whose session has not begun again.
#[derive(Default)]
pub(super) struct CarryOverCache {
    by_session: DashMap<SessionId, (DeadlineKey, CarryOver), foldhash::quality::RandomState>,
    deadlines: DeadlineQueue,
    bytes: AtomicUsize,
}

impl CarryOver {
    fn bytes(&self, id: &SessionId) -> usize {
        slot_bytes(
            id,
            size_of::<Self>() + verdicts_bytes(&self.agent_terminations),
        )
    }

    /// When the last part of it expires; `None`: it is empty.
    pub fn deadline(&self, tombstone_retention: Duration) -> Option<SystemTime> {
        let terminated = self
            .agent_terminations
            .iter()
            .map(|verdict| verdict.id.time());
        let retained_until = terminated.max().map(|time| time + tombstone_retention);
        retained_until.max(self.snoozed_until)
    }

    /// Removes what a reset with this id clears.
    pub fn after_reset(mut self, reset: VerdictId) -> Self {
        self.agent_terminations.retain(|verdict| verdict.id > reset);
        self.snoozed_until = None;
        self
    }
}

impl CarryOverCache {
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub fn contains(&self, id: &SessionId) -> bool {
        self.by_session.contains_key(id)
    }

    /// The verdicts that terminated sub-agents.
    pub fn agent_terminations(&self) -> Vec<Arc<Verdict>> {
        let all = self.by_session.iter();
        all.flat_map(|entry| entry.value().1.agent_terminations.clone())
            .collect()
    }

    pub fn get(&self, id: &SessionId) -> CarryOver {
        let known = self.by_session.get(id);
        known.map_or_else(CarryOver::default, |entry| entry.1.clone())
    }

    pub fn take(&self, id: &SessionId) -> CarryOver {
        // Nearly always true, so that a new session does not pay for a lookup.
        if self.by_session.is_empty() {
            return CarryOver::default();
        }
        let Some((_, (key, carry_over))) = self.by_session.remove(id) else {
            return CarryOver::default();
        };
        self.deadlines.remove(key);
        self.bytes.fetch_sub(carry_over.bytes(id), Relaxed);
        carry_over
    }

    pub fn insert(&self, id: &SessionId, key: DeadlineKey, carry_over: CarryOver) {
        self.deadlines.insert(key, id);
        self.bytes.fetch_add(carry_over.bytes(id), Relaxed);
        let replaced = self.by_session.insert(id.clone(), (key, carry_over));
        if let Some((key, replaced)) = replaced {
            self.deadlines.remove(key);
            self.bytes.fetch_sub(replaced.bytes(id), Relaxed);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Removes at most `max` carry-overs that have expired or exceed the limits.
    pub fn evict(&self, now: SystemTime, exceeds_limits: impl Fn(usize) -> bool, max: usize) {
        for _ in 0..max {
            let over_limit = exceeds_limits(self.deadlines.len());
            let Some((key, id)) = self
                .deadlines
                .pop_if(|key| over_limit || key.deadline <= now)
            else {
                break;
            };
            let removed = self
                .by_session
                .remove_if(&id, |_, (known, _)| *known == key);
            if let Some((_, (_, carry_over))) = removed {
                self.bytes.fetch_sub(carry_over.bytes(&id), Relaxed);
            }
        }
    }
}
