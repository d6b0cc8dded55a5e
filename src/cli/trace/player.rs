use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::line::{TraceLine, TraceLineError};
use crate::{
    cli::CliError,
    config::Config,
    domain::{Labels, SessionId, SessionView, Verdict, VerdictId},
    engine::{Engine, Limits, RecordOutcome, RunMode},
    telemetry::Metrics,
};

/// Plays lines to an engine, by the clock of the trace.
pub(in crate::cli) struct TracePlayer {
    engine: Engine,
    /// `None`: the default, in which every session begins.
    profile: Option<String>,
    session_indexes: HashMap<SessionId, usize, foldhash::fast::RandomState>,
    /// In the order of their first lines, so that nothing depends on a hash.
    sessions: Vec<TraceSession>,
    /// The verdict that was given last.
    last_verdict_id: Option<VerdictId>,
}

struct TraceSession {
    id: SessionId,
    /// The time of its latest event that had one.
    clock: SystemTime,
    /// An event has had one.
    has_time: bool,
    has_verdict: bool,
}

/// A verdict, when it is given.
#[derive(Debug)]
pub(in crate::cli) struct TraceVerdict {
    /// Which session it is of, counted from the first.
    pub session: usize,
    /// Its time is of the trace, not the epoch for want of any.
    pub has_time: bool,
    pub verdict: Arc<Verdict>,
}

impl TracePlayer {
    pub fn new(config: Config, profile: Option<&str>) -> Result<Self, CliError> {
        if let Some(name) = profile
            && config.profiles.get(name).is_none()
        {
            let names = config.profiles.join_names();
            let why = format!("there is no profile {name:?}; there are {names}");
            return Err(CliError::usage(why));
        }
        let metrics = Metrics::new(config.profiles.detector_names()).map_err(CliError::failed)?;
        Ok(Self {
            engine: Engine::new(
                config.profiles,
                config.tools,
                lift_server_limits(config.engine),
                Arc::new(metrics),
                RunMode::Replay,
                // Verdicts are taken from the answers.
                Box::new(|_| {}),
            ),
            profile: profile.map(str::to_owned),
            session_indexes: HashMap::default(),
            sessions: Vec::new(),
            last_verdict_id: None,
        })
    }

    /// Plays a line. A verdict is given once: answers to duplicates and to what
    /// follows a termination repeat it.
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
        // Ids grow, so whatever is not above the last was given before.
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

    /// The session's place; a new one is opened, at `now`.
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

    /// The sessions as they stand, and whether each has had a verdict.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionView, bool)> {
        let view_with_flag =
            |session: &TraceSession| Some((self.engine.get(&session.id)?, session.has_verdict));
        self.sessions.iter().filter_map(view_with_flag)
    }

    pub fn session(&self, index: usize) -> Option<SessionView> {
        self.engine.get(&self.sessions.get(index)?.id)
    }
}

/// A server's limits protect it from its callers. A replay has none, ends by
/// itself, and must not answer differently because a trace is long: it takes any
/// number of sessions, and forgets none. What bounds a single session stays as it
/// is, for a server would judge the trace so.
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
        // Nobody sweeps, so nothing comes of these five.
        idle_secs_max: 0,
        pressure_idle_secs_min: 0,
        tombstones_max: usize::MAX,
        tombstone_secs_max: 0,
        tombstone_bytes_max: usize::MAX,
        // Nobody asks for a session that is over.
        post_mortem_bytes_max: 0,
        agents_max,
        event_ids_max,
        breaker: None,
    }
}
