use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::line::{Fault, Line};
use crate::{
    cli::Failure,
    config::Config,
    domain::{Labels, SessionId, SessionView, Verdict, VerdictId},
    engine::{Clockwork, Engine, Limits, Recorded},
    telemetry::Metrics,
};

/// Plays lines to an engine, by the clock of the trace.
pub(in crate::cli) struct Player {
    engine: Engine,
    /// `None`: the default, in which every session begins.
    profile: Option<String>,
    places: HashMap<SessionId, usize, foldhash::fast::RandomState>,
    /// In the order of their first lines, so that nothing depends on a hash.
    sessions: Vec<Session>,
    /// The verdict that was given last.
    last: Option<VerdictId>,
}

struct Session {
    id: SessionId,
    /// The time of its latest event that had one.
    clock: SystemTime,
    /// An event has had one.
    timed: bool,
    looping: bool,
}

/// A verdict, when it is given.
#[derive(Debug)]
pub(in crate::cli) struct Given {
    /// Which session it is of, counted from the first.
    pub session: usize,
    /// Its time is of the trace, not the epoch for want of any.
    pub timed: bool,
    pub verdict: Arc<Verdict>,
}

impl Player {
    pub fn new(config: Config, profile: Option<&str>) -> Result<Self, Failure> {
        if let Some(name) = profile
            && config.profiles.named(name).is_none()
        {
            let names = config.profiles.names();
            let why = format!("there is no profile {name:?}; there are {names}");
            return Err(Failure::usage(why));
        }
        let metrics = Metrics::new(config.profiles.detectors()).map_err(Failure::failed)?;
        Ok(Self {
            engine: Engine::new(
                config.profiles,
                config.tools,
                unbounded(config.engine),
                Arc::new(metrics),
                Clockwork::Replay,
                // Verdicts are taken from the answers.
                Box::new(|_| {}),
            ),
            profile: profile.map(str::to_owned),
            places: HashMap::default(),
            sessions: Vec::new(),
            last: None,
        })
    }

    /// Plays a line. A verdict is given once: answers to duplicates and to what
    /// follows a termination repeat it.
    pub fn play(&mut self, line: &Line) -> Result<Option<Given>, Fault> {
        let (id, time) = match line {
            Line::Event(event) => (&event.session, event.time),
            Line::Delta(delta) => (&delta.session, None),
        };
        let place = self.place(id, time.unwrap_or(UNIX_EPOCH))?;
        let Some(session) = self.sessions.get_mut(place) else {
            return Ok(None);
        };
        if let Some(time) = time {
            session.clock = time;
            session.timed = true;
        }
        let answer = match line {
            Line::Event(event) => Some(self.engine.record(event, session.clock)?),
            Line::Delta(delta) => self.engine.delta(delta, session.clock)?,
        };
        let Some(Recorded {
            verdict: Some(verdict),
            ..
        }) = answer
        else {
            return Ok(None);
        };
        // Ids grow, so whatever is not above the last was given before.
        if self.last >= Some(verdict.id) {
            return Ok(None);
        }
        self.last = Some(verdict.id);
        session.looping = true;
        Ok(Some(Given {
            session: place,
            timed: session.timed,
            verdict,
        }))
    }

    /// The session's place; a new one is opened, at `now`.
    fn place(&mut self, id: &SessionId, now: SystemTime) -> Result<usize, Fault> {
        if let Some(place) = self.places.get(id) {
            return Ok(*place);
        }
        if let Some(profile) = &self.profile {
            self.engine.open(id, profile, Labels::new(), now)?;
        }
        let place = self.sessions.len();
        self.places.insert(id.clone(), place);
        self.sessions.push(Session {
            id: id.clone(),
            clock: now,
            timed: false,
            looping: false,
        });
        Ok(place)
    }

    /// The sessions as they stand, and whether each has had a verdict.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionView, bool)> {
        let seen = |session: &Session| Some((self.engine.get(&session.id)?, session.looping));
        self.sessions.iter().filter_map(seen)
    }

    pub fn session(&self, place: usize) -> Option<SessionView> {
        self.engine.get(&self.sessions.get(place)?.id)
    }
}

/// A server's limits protect it from its callers. A replay has none, ends by
/// itself, and must not answer differently because a trace is long: it takes any
/// number of sessions, and forgets none. What bounds a single session stays as it
/// is, for a server would judge the trace so.
fn unbounded(limits: Limits) -> Limits {
    let Limits {
        sessions_max: _,
        state_bytes_max: _,
        idle_secs_max: _,
        pressed_idle_secs_min: _,
        agents_max,
        event_ids_max,
        tombstones_max: _,
        tombstone_secs_max: _,
        tombstone_bytes_max: _,
        past_bytes_max: _,
        remembered,
        breaker: _,
    } = limits;
    Limits {
        sessions_max: usize::MAX,
        state_bytes_max: usize::MAX,
        // Nobody sweeps, so nothing comes of these five.
        idle_secs_max: 0,
        pressed_idle_secs_min: 0,
        tombstones_max: usize::MAX,
        tombstone_secs_max: 0,
        tombstone_bytes_max: usize::MAX,
        // Nobody asks for a session that is over.
        past_bytes_max: 0,
        agents_max,
        event_ids_max,
        remembered,
        breaker: None,
    }
}
