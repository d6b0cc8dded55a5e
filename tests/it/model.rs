//! The session map and its store against a simple model of what callers are promised: a
//! `HashMap` and a list of verdicts. Every response and every view of the two must agree,
//! across restarts too.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use proptest::{collection::vec, prelude::*, sample::select, test_runner::FileFailurePersistence};
use tempfile::TempDir;
use unstuck::{
    domain::{Action, Event, Labels, SessionId, SessionStatus, VerdictId},
    engine::{Engine, OpenError, RecordError, RecordOutcome, RunMode},
    store::{Store, VerdictFilter, verify},
};

use crate::{
    harness::{Build, OPERATOR_REQUEST, ask, config},
    setup,
};

/// Limits so small that a short history reaches all of them. The only enabled detector
/// is the simplest to model: a cap on events.
const EVENTS_MAX: usize = 10;
const ASKED_AT: usize = 8;
const SESSIONS_MAX: usize = 3;
const IDS_MAX: usize = 4;
const IDLE_SECS: u64 = 100;
/// After this idle time a session may be evicted for a new one.
const PRESSURE_IDLE_SECS: u64 = 30;
const TOMBSTONE_SECS: u64 = 1_000;

fn settings(dir: &std::path::Path) -> unstuck::config::Config {
    config(&format!(
        "[detect.budget]\nevents_max = {EVENTS_MAX}\n\
         [limits]\nsessions_max = {SESSIONS_MAX}\nevent_ids_max = {IDS_MAX}\n\
         idle_secs_max = {IDLE_SECS}\n\
         pressure_idle_secs_min = {PRESSURE_IDLE_SECS}\ntombstone_secs_max = {TOMBSTONE_SECS}\n\
         [store]\ndir = {:?}\n",
        dir.display().to_string(),
    ))
}

/// An operation. Sessions are identified by their first letters.
#[derive(Clone, Debug)]
enum Op {
    Open(usize),
    /// A new event.
    Event(usize),
    /// One of its earlier events is sent again.
    Again(usize, usize),
    End(usize),
    Terminate(usize),
    Reset(usize),
    /// Time passes, and the sweep runs.
    Wait(u64),
    Restart,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn op() -> impl Strategy<Value = Op> {
    let session = 0..NAMES.len();
    prop_oneof![
        2 => session.clone().prop_map(Op::Open),
        // Mostly of two sessions, so that some reach the cap.
        12 => prop_oneof![3 => 0..2usize, 1 => session.clone()].prop_map(Op::Event),
        4 => (session.clone(), 0..64usize).prop_map(|(session, which)| Op::Again(session, which)),
        2 => session.clone().prop_map(Op::End),
        2 => session.clone().prop_map(Op::Terminate),
        2 => session.prop_map(Op::Reset),
        2 => select(&[1, PRESSURE_IDLE_SECS - 1, PRESSURE_IDLE_SECS, IDLE_SECS - 1, IDLE_SECS, TOMBSTONE_SECS - 1, TOMBSTONE_SECS]).prop_map(Op::Wait),
        1 => Just(Op::Restart),
    ]
}

// ---- The model

/// The answer to an event: its index, whether it is a duplicate, and its verdict.
type Answer = (Option<usize>, bool, Option<(Action, VerdictId)>);

#[derive(Clone, Debug)]
enum State {
    Live {
        last_event: u64,
        events: usize,
        /// The last event ids and their answers.
        answers: VecDeque<(String, Answer)>,
    },
    Ended {
        until: u64,
    },
    Terminated {
        by: VerdictId,
        until: u64,
    },
}

#[derive(Clone, Debug)]
struct Modelled {
    state: State,
    labels: Labels,
}

#[derive(Default)]
struct Model {
    sessions: HashMap<&'static str, Modelled>,
    /// Every verdict issued, in order.
    given: Vec<VerdictId>,
    secs: u64,
    /// One of these was evicted; the engine decides which.
    evictable: Vec<&'static str>,
}

/// The expected answer to an event; the engine chooses the verdict's id.
#[derive(Debug, PartialEq)]
enum Expected {
    Known(Answer),
    New(usize, Option<Action>),
    Refused,
}

impl Model {
    fn live(&self) -> usize {
        let live = |session: &&Modelled| matches!(session.state, State::Live { .. });
        self.sessions.values().filter(live).count()
    }

    fn new_session(&self, labels: Labels) -> Modelled {
        let state = State::Live {
            last_event: self.secs,
            events: 0,
            answers: VecDeque::new(),
        };
        Modelled { state, labels }
    }

    /// Whether a session can be admitted, if necessary by evicting another.
    fn has_capacity(&mut self) -> bool {
        if self.live() < SESSIONS_MAX {
            return true;
        }
        self.evictable = self.idle();
        !self.evictable.is_empty()
    }

    /// The sessions that may be evicted: idle ones without verdicts; if there are
    /// none, idle ones with verdicts.
    fn idle(&self) -> Vec<&'static str> {
        let idle = |has_verdicts: bool| {
            let sessions = self.sessions.iter();
            let idle = sessions.filter(|(_, session)| match session.state {
                State::Live {
                    last_event, events, ..
                } => {
                    last_event + PRESSURE_IDLE_SECS <= self.secs
                        && has_verdicts == (events >= ASKED_AT)
                }
                State::Ended { .. } | State::Terminated { .. } => false,
            });
            idle.map(|(name, _)| *name).collect::<Vec<_>>()
        };
        let without_verdicts = idle(false);
        if without_verdicts.is_empty() {
            idle(true)
        } else {
            without_verdicts
        }
    }

    /// Whether a session with this name is live, after it was started if possible.
    fn begin(&mut self, name: &'static str) -> bool {
        match self.sessions.get(name).map(|session| &session.state) {
            Some(State::Live { .. }) => true,
            Some(State::Terminated { .. }) => false,
            Some(State::Ended { .. }) | None => {
                let has_capacity = self.has_capacity();
                if has_capacity {
                    self.sessions.insert(name, self.new_session(Labels::new()));
                }
                has_capacity
            }
        }
    }

    fn event(&mut self, name: &'static str, id: &str) -> Expected {
        if let Some(State::Terminated { by, .. }) = self.state(name) {
            return Expected::Known((None, false, Some((Action::Terminate, by))));
        }
        if !self.begin(name) {
            return Expected::Refused;
        }
        let secs = self.secs;
        let Some(Modelled {
            state:
                State::Live {
                    last_event,
                    events,
                    answers,
                },
            ..
        }) = self.sessions.get_mut(name)
        else {
            panic!("{name} was begun");
        };
        *last_event = secs;
        if let Some((_, (index, _, verdict))) = answers.iter().rev().find(|(known, _)| known == id)
        {
            return Expected::Known((*index, true, *verdict));
        }
        *events += 1;
        let action = match *events {
            EVENTS_MAX => Some(Action::Terminate),
            ASKED_AT => Some(Action::Ask),
            _ => None,
        };
        Expected::New(*events - 1, action)
    }

    /// A new event was answered.
    fn answered(&mut self, name: &'static str, id: &str, answer: Answer) {
        if let Some((_, verdict)) = answer.2 {
            self.issue(verdict);
        }
        match (
            answer.2,
            self.sessions
                .get_mut(name)
                .map(|session| &mut session.state),
        ) {
            (Some((Action::Terminate, by)), _) => self.close(name, by),
            (_, Some(State::Live { answers, .. })) => {
                answers.push_back((id.to_owned(), answer));
                if answers.len() > IDS_MAX {
                    answers.pop_front();
                }
            }
            (_, state) => panic!("{state:?}"),
        }
    }

    fn issue(&mut self, verdict: VerdictId) {
        assert!(
            self.given.last() < Some(&verdict),
            "ids go up, across restarts too"
        );
        self.given.push(verdict);
    }

    fn close(&mut self, name: &'static str, by: VerdictId) {
        let labels = self.sessions.remove(name).map(|session| session.labels);
        let until = self.secs + TOMBSTONE_SECS;
        let session = Modelled {
            state: State::Terminated { by, until },
            labels: labels.unwrap_or_default(),
        };
        self.sessions.insert(name, session);
    }

    fn state(&self, name: &str) -> Option<State> {
        self.sessions.get(name).map(|session| session.state.clone())
    }

    fn wait(&mut self, secs: u64) {
        self.secs += secs;
        let now = self.secs;
        self.sessions.retain(|_, session| match session.state {
            State::Live { last_event, .. } => last_event + IDLE_SECS > now,
            State::Ended { until } | State::Terminated { until, .. } => until > now,
        });
    }

    /// Only terminations survive a restart.
    fn restart(&mut self) {
        let is_over = |session: &Modelled| matches!(session.state, State::Terminated { .. });
        self.sessions.retain(|_, session| is_over(session));
    }
}

// ---- The engine and its store

struct Real {
    engine: Engine,
    store: Store,
    dir: TempDir,
    runtime: tokio::runtime::Runtime,
}

fn at(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + secs)
}

fn started(dir: &std::path::Path, secs: u64) -> (Engine, Store) {
    let config = settings(dir);
    let opened = Store::open(setup::store_options(&config, at(secs)));
    let (store, recovered) = opened.unwrap();
    let (engine, _) = setup::engine(config, RunMode::Live, store.verdict_sink());
    engine.restore(recovered, at(secs), at(secs));
    (engine, store)
}

impl Real {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, store) = started(dir.path(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        Self {
            engine,
            store,
            dir,
            runtime,
        }
    }

    fn restart(self, secs: u64) -> Self {
        let Self {
            engine,
            store,
            dir,
            runtime,
        } = self;
        store.close();
        drop((engine, store));
        let (engine, store) = started(dir.path(), secs);
        Self {
            engine,
            store,
            dir,
            runtime,
        }
    }

    fn record(&self, name: &str, id: &str, secs: u64) -> Result<Answer, RecordError> {
        // Each call is different, so that no detector finds a loop.
        let event = ask(&format!("{name} {id}")).of(name).id(id);
        let event = Event::try_from(event).unwrap();
        let answered = self.engine.record(&event, at(secs))?;
        Ok(answer(&answered))
    }

    /// Whether the verdict is on disk.
    fn settled(&self, verdict: VerdictId) -> bool {
        self.runtime
            .block_on(self.store.wait_until_settled_or_timeout(verdict))
    }

    /// The ids of all stored verdicts.
    fn audit(&self) -> Vec<VerdictId> {
        self.settled(self.store.last_verdict_id());
        let page = self
            .store
            .read_audit_log(None, usize::MAX, &VerdictFilter::default())
            .unwrap();
        page.verdicts
            .iter()
            .map(|issued| issued.verdict.id)
            .collect()
    }
}

fn answer(recorded: &RecordOutcome) -> Answer {
    let index = recorded.index.map(|index| usize::try_from(index).unwrap());
    let verdict = recorded.verdict.as_ref();
    let verdict = verdict.and_then(|verdict| Some((verdict.action?, verdict.id)));
    (index, recorded.duplicate, verdict)
}

fn id(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

// ---- Both, side by side

struct Both {
    model: Model,
    real: Real,
    /// The number of events sent to each session.
    sent: HashMap<&'static str, usize>,
}

impl Both {
    fn apply(mut self, step: usize, op: &Op) -> Self {
        let now = at(self.model.secs);
        match op {
            Op::Open(which) => self.open(NAMES[*which], step, now),
            Op::Event(which) => {
                let name = NAMES[*which];
                let sent = self.sent.entry(name).or_default();
                *sent += 1;
                let event = format!("e{sent}");
                self.event(name, &event);
            }
            Op::Again(which, earlier) => {
                let name = NAMES[*which];
                let sent = self.sent.get(name).copied().unwrap_or_default();
                if sent > 0 {
                    self.event(name, &format!("e{}", earlier % sent + 1));
                }
            }
            Op::End(which) => self.end(NAMES[*which], now),
            Op::Terminate(which) => self.terminate(NAMES[*which], now),
            Op::Reset(which) => self.reset(NAMES[*which], now),
            Op::Wait(secs) => {
                self.model.wait(*secs);
                self.real.engine.evict_expired(at(self.model.secs), 1_000);
            }
            Op::Restart => {
                self.model.restart();
                self.real = self.real.restart(self.model.secs);
                self.compare_logs();
            }
        }
        self.check_eviction();
        self.compare();
        self
    }

    fn open(&mut self, name: &'static str, step: usize, now: SystemTime) {
        let labels = Labels::from([("step".to_owned(), step.to_string())]);
        let opened = self
            .real
            .engine
            .open_session(&id(name), "", labels.clone(), now);
        if let Some(State::Terminated { .. }) = self.model.state(name) {
            assert!(matches!(opened, Err(OpenError::Terminated)), "{opened:?}");
        } else if self.model.begin(name) {
            assert!(opened.is_ok(), "{opened:?}");
            self.model.sessions.get_mut(name).unwrap().labels = labels;
        } else {
            assert!(
                matches!(opened, Err(OpenError::Record(RecordError::SessionsMax(_)))),
                "{opened:?}"
            );
        }
    }

    fn event(&mut self, name: &'static str, event: &str) {
        let expected = self.model.event(name, event);
        let answered = self.real.record(name, event, self.model.secs);
        match (expected, answered) {
            (Expected::Refused, Err(RecordError::SessionsMax(_))) => {}
            (Expected::Known(expected), Ok(answered)) => assert_eq!(answered, expected),
            (Expected::New(index, action), Ok(answered)) => {
                let given = answered.2.map(|(action, _)| action);
                assert_eq!(
                    (answered.0, answered.1, given),
                    (Some(index), false, action)
                );
                self.model.answered(name, event, answered);
            }
            (expected, answered) => panic!("{expected:?}, but {answered:?}"),
        }
    }

    fn end(&mut self, name: &'static str, now: SystemTime) {
        let ended = self
            .real
            .engine
            .end_session(&id(name), now)
            .map(|view| view.status);
        let until = self.model.secs + TOMBSTONE_SECS;
        let expected = match self
            .model
            .sessions
            .get_mut(name)
            .map(|session| &mut session.state)
        {
            None => None,
            Some(State::Terminated { .. }) => Some(SessionStatus::Terminated),
            Some(state) => {
                if let State::Live { .. } = state {
                    *state = State::Ended { until };
                }
                Some(SessionStatus::Ended)
            }
        };
        assert_eq!(ended, expected);
    }

    fn terminate(&mut self, name: &'static str, now: SystemTime) {
        let verdict = self
            .real
            .engine
            .terminate_session(&id(name), &OPERATOR_REQUEST, now)
            .verdict;
        if let Some(State::Terminated { by, .. }) = self.model.state(name) {
            assert_eq!(verdict.id, by, "the first one stands");
            return;
        }
        assert!(
            self.real.settled(verdict.id),
            "on disk before it is answered"
        );
        self.model.issue(verdict.id);
        self.model.close(name, verdict.id);
    }

    fn reset(&mut self, name: &'static str, now: SystemTime) {
        let announced = self
            .real
            .engine
            .issue_reset(&id(name), &OPERATOR_REQUEST, now);
        let known = self.model.sessions.remove(name);
        assert_eq!(announced.is_some(), known.is_some());
        if let (Some(announced), Some(known)) = (announced, known) {
            assert!(self.real.settled(announced.id), "on disk before it is done");
            self.real.engine.apply_reset(&id(name), &announced, now);
            self.model.issue(announced.id);
            // A closed session needs capacity; without it the session restarts with its
            // next event.
            let was_live = matches!(known.state, State::Live { .. });
            if was_live || self.model.has_capacity() {
                let new_session = self.model.new_session(known.labels);
                self.model.sessions.insert(name, new_session);
            }
        }
    }

    /// Checks that one of the sessions that may be evicted was evicted, if there are any.
    fn check_eviction(&mut self) {
        let mut idle = std::mem::take(&mut self.model.evictable);
        let was_any = !idle.is_empty();
        idle.retain(|name| self.real.engine.get(&id(name)).is_none());
        assert_eq!(idle.len(), usize::from(was_any), "{idle:?}");
        for name in idle {
            self.model.sessions.remove(name);
        }
    }

    /// Checks that engine and model agree in every view.
    fn compare(&self) {
        assert_eq!(self.real.engine.live_sessions(), self.model.live());
        for name in NAMES {
            let view = self.real.engine.get(&id(name));
            let modelled = self.model.sessions.get(name);
            assert_eq!(view.is_some(), modelled.is_some(), "{name}: {modelled:?}");
            let (Some(view), Some(modelled)) = (view, modelled) else {
                continue;
            };
            assert_eq!(*view.labels, modelled.labels, "{name}");
            let terminated = view.termination.map(|verdict| verdict.id);
            match modelled.state {
                State::Live { events, .. } => {
                    assert!(matches!(
                        view.status,
                        SessionStatus::Active | SessionStatus::Looping
                    ));
                    assert_eq!((view.events as usize, terminated), (events, None), "{name}");
                }
                State::Ended { .. } => {
                    assert_eq!((view.status, terminated), (SessionStatus::Ended, None))
                }
                State::Terminated { by, .. } => {
                    assert_eq!(
                        (view.status, terminated),
                        (SessionStatus::Terminated, Some(by))
                    );
                }
            }
        }
    }

    /// Checks that the log has every verdict exactly once.
    fn compare_logs(&self) {
        assert_eq!(self.real.audit(), self.model.given);
        let records = verify(self.real.dir.path()).unwrap().records;
        assert_eq!(records as usize, self.model.given.len());
    }
}

fn play(ops: &[Op]) {
    let mut both = Both {
        model: Model::default(),
        real: Real::new(),
        sent: HashMap::new(),
    };
    for (step, op) in ops.iter().enumerate() {
        both = both.apply(step, op);
    }
    both.compare_logs();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn sessions_and_store_behave_like_a_plain_model(ops in vec(op(), 1..60)) {
        play(&ops);
    }
}

/// One fixed history with every operation, so that coverage does not depend on chance.
#[test]
fn a_full_session_lifecycle_agrees_with_the_model() {
    let mut ops = vec![Op::Open(0)];
    ops.extend(std::iter::repeat_n(Op::Event(0), EVENTS_MAX));
    ops.extend([Op::Event(0), Op::Restart, Op::Event(0), Op::Open(0)]);
    ops.extend([
        Op::Reset(0),
        Op::Event(0),
        Op::Again(0, 0),
        Op::End(0),
        Op::Restart,
        Op::Event(0),
    ]);
    ops.extend([
        Op::Event(1),
        Op::Event(2),
        Op::Event(3),
        Op::Terminate(1),
        Op::Event(3),
    ]);
    ops.extend([
        Op::Wait(IDLE_SECS),
        Op::Event(0),
        Op::Event(2),
        Op::Event(3),
        Op::Wait(PRESSURE_IDLE_SECS),
        Op::Event(3),
        Op::Event(4),
        Op::Wait(TOMBSTONE_SECS),
        Op::Restart,
        Op::Event(1),
    ]);
    play(&ops);
}
