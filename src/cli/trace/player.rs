//! Plays a recorded trace to an engine.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::line::{TraceLine, TraceLineError};
use crate::{
    cli::CliError,
    config::Config,
    domain::{Labels, SessionId, SessionView, TimelineEntry, Verdict, VerdictId},
    engine::{Engine, Limits, OperatorRequest, Profile, RecordOutcome, RunMode},
    telemetry::Metrics,
};

/// Plays lines to an engine, on the clock of the trace.
pub(in crate::cli) struct TracePlayer {
    engine: Engine,
    /// `None`: the default profile.
    profile: Option<String>,
    settings: Arc<Profile>,
    session_indexes: HashMap<SessionId, usize, foldhash::fast::RandomState>,
    /// In the order of their first lines, so that output does not depend on hashes.
    sessions: Vec<TraceSession>,
    last_verdict_id: Option<VerdictId>,
}

struct TraceSession {
    id: SessionId,
    /// The time of the last event that has one.
    clock: SystemTime,
    /// Whether any event has a time.
    has_time: bool,
    has_verdict: bool,
}

/// A verdict issued during a run.
#[derive(Debug)]
pub(in crate::cli) struct TraceVerdict {
    /// The index of its session, in the order of the trace.
    pub session: usize,
    /// Whether its time is from the trace. Otherwise it is the epoch.
    pub has_time: bool,
    pub verdict: Arc<Verdict>,
}

impl TracePlayer {
    pub fn new(config: Config, profile: Option<&str>) -> Result<Self, CliError> {
        if let Some(name) = profile
            && config.profiles.get(name).is_none()
        {
            let names = config.profiles.join_names();
            let why = format!("unknown profile {name:?}; known profiles: {names}");
            return Err(CliError::usage(why));
        }
        let metrics = Metrics::new(config.profiles.detector_names()).map_err(CliError::failed)?;
        Ok(Self {
            settings: config.profiles.get_or_default(profile.unwrap_or_default()),
            engine: Engine::new(
                config.profiles,
                config.tools,
                lift_server_limits(config.engine),
                Arc::new(metrics),
                RunMode::Replay,
                // Verdicts are taken from the results of `record`.
                Box::new(|_| {}),
            ),
            profile: profile.map(str::to_owned),
            session_indexes: HashMap::default(),
            sessions: Vec::new(),
            last_verdict_id: None,
        })
    }

    /// Plays a line. Each verdict is returned once, although the engine repeats it
    /// for duplicates and for events after a termination.
    pub fn play(&mut self, line: &TraceLine) -> Result<Option<TraceVerdict>, TraceLineError> {
        let (id, time) = match line {
            TraceLine::Event(event) => (&event.session, event.time),
            TraceLine::Delta(delta) => (&delta.session, None),
        };
        let index = self.session_index(id, time.unwrap_or(UNIX_EPOCH))?;
        let Some(session) = self.sessions.get_mut(index) else {
            return Ok(None);
        };
        if let Some(time) = time {
            session.clock = time;
            session.has_time = true;
        }
        let recorded = match line {
            TraceLine::Event(event) => Some(self.engine.record(event, session.clock)?),
            TraceLine::Delta(delta) => self.engine.record_delta(delta, session.clock)?,
        };
        let Some(RecordOutcome {
            verdict: Some(verdict),
            ..
        }) = recorded
        else {
            return Ok(None);
        };
        // Ids increase, so an id not above the last is a repetition.
        if self.last_verdict_id >= Some(verdict.id) {
            return Ok(None);
        }
        self.last_verdict_id = Some(verdict.id);
        session.has_verdict = true;
        Ok(Some(TraceVerdict {
            session: index,
            has_time: session.has_time,
            verdict,
        }))
    }

    /// The session's index. A new session is opened at `now`.
    fn session_index(&mut self, id: &SessionId, now: SystemTime) -> Result<usize, TraceLineError> {
        if let Some(index) = self.session_indexes.get(id) {
            return Ok(*index);
        }
        if let Some(profile) = &self.profile {
            self.engine.open_session(id, profile, Labels::new(), now)?;
        }
        let index = self.sessions.len();
        self.session_indexes.insert(id.clone(), index);
        self.sessions.push(TraceSession {
            id: id.clone(),
            clock: now,
            has_time: false,
            has_verdict: false,
        });
        Ok(index)
    }

    /// The current state of the sessions, and whether each has a verdict.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionView, bool)> {
        self.sessions
            .iter()
            .filter_map(|session| Some((self.engine.get(&session.id)?, session.has_verdict)))
    }

    /// The latest events of a session, oldest first.
    pub fn timeline(&self, id: &SessionId) -> Vec<TimelineEntry> {
        let detail = self.engine.detail(id);
        detail.map_or_else(Vec::new, |detail| detail.timeline)
    }

    /// Goes on with a session that a verdict terminated, as if an operator had reset it.
    /// Returns its state before.
    pub fn reset_session(&mut self, id: &SessionId) -> Option<SessionView> {
        let index = *self.session_indexes.get(id)?;
        let now = self.sessions.get(index)?.clock;
        let view = self.engine.get(id)?;
        let request = OperatorRequest {
            reason: "recorded",
            operator: "scan",
        };
        let verdict = self.engine.issue_reset(id, &request, now)?;
        self.engine.apply_reset(id, &verdict, now);
        Some(view)
    }

    /// Ends a session and returns its last state. Of its events nothing is kept.
    pub fn end_session(&mut self, id: &SessionId) -> Option<SessionView> {
        let index = self.session_indexes.remove(id)?;
        let session = self.sessions.get(index)?;
        let view = self.engine.end_session(id, session.clock);
        // The next session does not depend on those before it.
        self.sessions.clear();
        self.session_indexes.clear();
        self.last_verdict_id = None;
        self.engine.restart_verdict_ids();
        view
    }

    /// The pattern that a verdict's detector looks for, in general words.
    pub fn explain(&self, verdict: &Verdict) -> Option<&'static str> {
        let explained = self
            .settings
            .explain(&verdict.detector, &[&verdict.evidence]);
        explained.map(|explanation| explanation.rule)
    }

    pub fn session(&self, index: usize) -> Option<SessionView> {
        self.engine.get(&self.sessions.get(index)?.id)
    }
}

/// Lifts the limits that protect a service from its callers. A replay has no
/// callers, ends by itself, and must not give other verdicts because a trace is
/// long: it accepts any number of sessions and evicts none. The limits of a single
/// session stay, because the service applies them too.
fn lift_server_limits(limits: Limits) -> Limits {
    let Limits {
        sessions_max: _,
        state_bytes_max: _,
        idle_secs_max: _,
        pressure_idle_secs_min: _,
        agents_max,
        event_ids_max,
        tombstones_max: _,
        tombstone_secs_max: _,
        tombstone_bytes_max: _,
        post_mortem_bytes_max: _,
        breaker: _,
    } = limits;
    Limits {
        sessions_max: usize::MAX,
        state_bytes_max: usize::MAX,
        // A replay does not run eviction, so these five have no effect.
        idle_secs_max: 0,
        pressure_idle_secs_min: 0,
        tombstones_max: usize::MAX,
        tombstone_secs_max: 0,
        tombstone_bytes_max: usize::MAX,
        // The timeline of a session that was just terminated.
        post_mortem_bytes_max: 1024 * 1024,
        agents_max,
        event_ids_max,
        breaker: None,
    }
}
