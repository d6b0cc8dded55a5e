//! The protocol under random interleavings, without a network: replicas with real engines, and
//! the server as a map. A seed decides everything, so a failure repeats.
//!
//! A schedule moves one session. Requests of a replica reach the server in order, but late;
//! replies are lost; replicas are killed, cut off and stand still; the server loses its last
//! writes or everything; operators terminate and reset.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use prost::{Message, bytes::Bytes};

use super::{
    acts::Acts,
    codec::{Codec, EventRecord},
    exchange::{ActCommand, ActReply, KIND_RESET, SaveCommand, SaveReply, TakeReply},
    ownership::{Change, Ownerships, SavePlan},
    seal::ClusterSealer,
    testing::MemoryServer,
};
use crate::{
    api::decode_shared_event,
    domain::{Effect, Event, SessionId, VerdictId, VerdictRecord},
    engine::{Engine, OperatorRequest, Replayer, RunMode},
    pb,
    secret::Secret,
    telemetry::Metrics,
    testing,
};

const SCHEDULES: u64 = 10_000;
const STEPS: usize = 40;
const REPLICAS: usize = 3;
/// A replica that was killed comes back as another one.
const INCARNATIONS: usize = 6;
const TAIL_MAX: usize = 3;

/// A deterministic source of choices.
struct Choices(u64);

impl Choices {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A process. Its engine is used by all schedules, each with its own session.
struct Process {
    name: String,
    engine: Arc<Engine>,
    codec: Arc<Codec>,
    sessions: Ownerships,
    acts: Acts,
    issued: Arc<Mutex<Vec<VerdictRecord>>>,
}

fn process(number: usize) -> Process {
    let issued = Arc::<Mutex<Vec<VerdictRecord>>>::default();
    let sink = {
        let issued = issued.clone();
        Box::new(move |record| issued.lock().push(record))
    };
    let config = testing::config(&[]);
    let secret = Secret::for_test(7);
    let run_mode = RunMode::Resumed(secret.signature_seeds());
    let engine = Arc::new(testing::engine(config, run_mode, sink));
    let codec = Arc::new(Codec::new(
        ClusterSealer::new(secret).unwrap(),
        decode_shared_event,
    ));
    let name = format!("replica{number}");
    let sessions = Ownerships::new(
        engine.clone(),
        codec.clone(),
        Arc::new(Metrics::new([]).unwrap()),
        Replayer::new(Metrics::new([]).unwrap()),
        &name,
        (TAIL_MAX, 1 << 20),
    );
    Process {
        acts: Acts::new(VerdictId::default()),
        name,
        engine,
        codec,
        sessions,
        issued,
    }
}

/// An event that a client has sent, until it is answered.
#[derive(Clone)]
struct Sent {
    number: usize,
    attempts: u32,
}

enum Request {
    Take(Option<Sent>),
    Save(SaveCommand, i32, u64, Vec<Counted>),
    Act(ActCommand),
}

enum Reply {
    Take((u64, TakeReply), Option<Sent>),
    /// With the resets that the server had carried out.
    Save((SaveReply, usize), SaveCommand, i32, u64, Vec<Counted>),
    Act(ActReply),
}

#[derive(Clone)]
struct Counted {
    sent: Sent,
    change: Change,
    index: i32,
}

/// A replica of a schedule.
struct Node {
    process: usize,
    requests: VecDeque<Request>,
    replies: VecDeque<Reply>,
    /// Counted, not saved.
    waiting: Vec<Counted>,
    is_saving: bool,
    act_position: usize,
    is_cut_off: bool,
    /// After which reset its last save was carried out.
    saved_after: usize,
}

struct World<'a> {
    processes: &'a [Process],
    session: SessionId,
    server: MemoryServer,
    snapshot: MemoryServer,
    nodes: Vec<Node>,
    spare: Vec<usize>,
    choices: Choices,
    clock: u64,
    events: usize,
    /// Events that were answered as saved, with their index and after which reset.
    saved: BTreeMap<usize, (i32, usize)>,
    resets: usize,
    /// Given, with the process that gave them.
    given: Vec<(VerdictRecord, usize)>,
    has_lost_writes: bool,
    killed: BTreeSet<usize>,
    /// What has happened, for a failure.
    trace: Vec<String>,
}

impl<'a> World<'a> {
    fn new(processes: &'a [Process], seed: u64) -> Self {
        let node = |process| Node {
            process,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            waiting: Vec::new(),
            is_saving: false,
            act_position: 0,
            is_cut_off: false,
            saved_after: 0,
        };
        Self {
            processes,
            session: SessionId::parse(&format!("s{seed}")).unwrap(),
            server: MemoryServer::default(),
            snapshot: MemoryServer::default(),
            nodes: (0..REPLICAS).map(node).collect(),
            spare: (REPLICAS..INCARNATIONS).collect(),
            choices: Choices(seed),
            clock: 1_700_000_000_000 + seed * 10_000,
            events: 0,
            saved: BTreeMap::new(),
            resets: 0,
            given: Vec::new(),
            has_lost_writes: false,
            killed: BTreeSet::new(),
            trace: Vec::new(),
        }
    }

    fn note(&mut self, node: usize, what: impl std::fmt::Debug) {
        let line = format!("{node} {}: {what:?}", self.process(node).name);
        self.trace.push(line);
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        self.settle();
        self.check();
    }

    fn now(&mut self) -> SystemTime {
        self.clock += 1;
        UNIX_EPOCH + Duration::from_millis(self.clock)
    }

    fn process(&self, node: usize) -> &'a Process {
        &self.processes[self.nodes[node].process]
    }

    fn step(&mut self) {
        let node = self.choices.below(REPLICAS);
        match self.choices.below(32) {
            0..=9 => self.send_event(node),
            10..=15 => self.serve(node),
            16..=21 => self.receive(node),
            22..=25 => self.save(node),
            26..=27 => self.read_act(node),
            28 => self.break_connection(node),
            29 if self.choices.one_in(2) => self.kill(node),
            30 if self.choices.one_in(4) => self.lose_writes(),
            31 if self.choices.one_in(3) => self.act(node),
            _ => self.snapshot = self.server.clone(),
        }
        assert!(self.server.lists_of(&self.session) <= 1, "two owners");
    }

    /// A client sends the next event to this replica.
    fn send_event(&mut self, node: usize) {
        let sent = Sent {
            number: self.events,
            attempts: 0,
        };
        self.events += 1;
        self.handle(node, sent);
    }

    fn handle(&mut self, node: usize, sent: Sent) {
        if self.process(node).sessions.needs_take(&self.session) && !self.nodes[node].is_cut_off {
            self.nodes[node]
                .requests
                .push_back(Request::Take(Some(sent)));
        } else {
            self.count(node, sent);
        }
    }

    fn count(&mut self, node: usize, sent: Sent) {
        let (event, bytes) = event(&self.session, sent.number);
        let at = self.now();
        let process = self.process(node);
        let record = || process.engine.record(&event, at).unwrap();
        let (outcome, copy) = process.sessions.count_in_copy(&self.session, record);
        assert!(
            !process
                .issued
                .lock()
                .iter()
                .any(|it| it.effect == Effect::None)
        );
        let counted = (sent.number, outcome.index, outcome.duplicate, copy);
        self.note(node, ("counted", counted));
        let Some(index) = outcome.index else { return };
        let record = EventRecord { index, at, bytes };
        let change = Change {
            copy,
            is_whole: false,
            records: (!outcome.duplicate).then_some(record).into_iter().collect(),
            through: index + 1,
        };
        let counted = Counted {
            sent,
            change,
            index,
        };
        self.nodes[node].waiting.push(counted);
    }

    /// The saver of a replica sends what waits, unless it waits itself.
    fn save(&mut self, node: usize) {
        if self.nodes[node].is_saving || self.nodes[node].is_cut_off {
            return;
        }
        let waiting = std::mem::take(&mut self.nodes[node].waiting);
        let (process, session) = (self.process(node), self.session.clone());
        // What was counted in a copy that was replaced is counted again.
        let (moved, waiting): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|it| process.sessions.is_replaced(&session, it.change.copy));
        for counted in moved {
            self.count_again(node, counted.sent);
        }
        if waiting.is_empty() {
            return;
        }
        let changes: Vec<Change> = waiting.iter().map(|it| it.change.clone()).collect();
        match process.sessions.plan_save(&session, &changes) {
            SavePlan::Take => {
                self.nodes[node].waiting.extend(waiting);
                self.nodes[node].requests.push_back(Request::Take(None));
            }
            SavePlan::Save {
                command,
                through,
                copy,
            } => {
                self.nodes[node].is_saving = true;
                let request = Request::Save(command, through, copy, waiting);
                self.nodes[node].requests.push_back(request);
            }
            SavePlan::Done | SavePlan::Oversized | SavePlan::Terminated(_) => {
                self.answer_saved(node, waiting)
            }
        }
    }

    fn count_again(&mut self, node: usize, sent: Sent) {
        let attempts = sent.attempts + 1;
        self.handle(node, Sent { attempts, ..sent });
    }

    fn answer_saved(&mut self, node: usize, counted: Vec<Counted>) {
        if self
            .process(node)
            .engine
            .handover()
            .is_terminated(&self.session)
        {
            return;
        }
        for counted in counted {
            self.note(node, ("answered", counted.sent.number, counted.index));
            let entry = (counted.index, self.nodes[node].saved_after);
            self.saved.insert(counted.sent.number, entry);
        }
    }

    /// The server carries out the next request of a replica.
    fn serve(&mut self, node: usize) {
        let name = self.process(node).name.clone();
        let Some(request) = self.nodes[node].requests.pop_front() else {
            return;
        };
        let reply = match request {
            Request::Take(sent) => {
                let number = self.process(node).sessions.next_take();
                let reply = self.server.take(&self.session, &name, false);
                let what = ("take", reply.epoch, &reply.previous, reply.list.len());
                self.note(node, what);
                Reply::Take((number, reply), sent)
            }
            Request::Save(command, through, copy, counted) => {
                let saved = self.server.save(&command, &name);
                self.note(node, ("save", command.epoch, through, saved));
                let resets = self.resets;
                if saved == SaveReply::Saved {
                    let owner = self.server.owner(&self.session).unwrap();
                    assert_eq!((owner.epoch, owner.name), (command.epoch, name));
                }
                Reply::Save((saved, resets), command, through, copy, counted)
            }
            Request::Act(command) => {
                // What was saved before is cleared.
                self.resets += usize::from(command.value.first() == Some(&KIND_RESET));
                Reply::Act(self.server.act(&command, &name))
            }
        };
        self.nodes[node].replies.push_back(reply);
    }

    /// A replica gets its next reply.
    fn receive(&mut self, node: usize) {
        // Replies come in order, but different tasks look at them.
        let count = self.nodes[node].replies.len().max(1);
        let at = if self.choices.one_in(3) {
            self.choices.below(count)
        } else {
            0
        };
        let Some(reply) = self.nodes[node].replies.remove(at) else {
            return;
        };
        let (process, now) = (self.process(node), self.now());
        match reply {
            Reply::Take((number, reply), sent) => {
                for act in process
                    .sessions
                    .apply_take(&self.session, (number, &reply), now)
                {
                    process.acts.adopt_standing(&process.sessions, &act, now);
                }
                if let Some(sent) = sent {
                    self.count(node, sent);
                }
            }
            Reply::Save((reply, resets), command, through, copy, counted) => {
                self.nodes[node].is_saving = false;
                self.nodes[node].saved_after = resets;
                let save = (&command, through, copy);
                process.sessions.finish_save(&self.session, save, reply);
                if reply == SaveReply::Saved {
                    self.answer_saved(node, counted);
                } else {
                    self.nodes[node].waiting.splice(0..0, counted);
                }
            }
            Reply::Act(ActReply::Overruled(newer)) => {
                let act = process.codec.decode_act(&newer).unwrap();
                process.acts.adopt(&process.sessions, &act, now);
            }
            Reply::Act(ActReply::Stands) => {}
        }
    }

    /// Requests and replies on the way are lost, or the server still carries out what it has.
    fn break_connection(&mut self, node: usize) {
        while !self.nodes[node].requests.is_empty() && self.choices.one_in(2) {
            self.serve(node);
        }
        let requests = std::mem::take(&mut self.nodes[node].requests);
        let replies = std::mem::take(&mut self.nodes[node].replies);
        let process = self.process(node);
        self.nodes[node].is_saving = false;
        let taken = replies.into_iter().map(|reply| match reply {
            Reply::Take(_, sent) => Request::Take(sent),
            Reply::Save(_, command, through, copy, counted) => {
                Request::Save(command, through, copy, counted)
            }
            Reply::Act(_) => Request::Take(None),
        });
        for request in taken.chain(requests).collect::<Vec<_>>() {
            match request {
                // It goes on with what it has.
                Request::Take(Some(sent)) => self.count(node, sent),
                Request::Save(command, through, copy, counted) => {
                    let save = (&command, through, copy);
                    let failed = SaveReply::Failed;
                    process.sessions.finish_save(&self.session, save, failed);
                    self.nodes[node].waiting.splice(0..0, counted);
                }
                Request::Take(None) | Request::Act(_) => {}
            }
        }
        self.note(node, "connection broken");
        // Cut off for a while, or back at once.
        self.nodes[node].is_cut_off = self.choices.one_in(2);
        if !self.nodes[node].is_cut_off {
            self.reconnect(node);
        }
    }

    fn reconnect(&mut self, node: usize) {
        self.nodes[node].is_cut_off = false;
        self.process(node).sessions.invalidate_all();
        self.send_acts(node);
    }

    /// Sends all acts that this replica knows and that stand.
    fn send_acts(&mut self, node: usize) {
        let (process, now) = (self.process(node), self.now());
        let mut records = process
            .engine
            .handover()
            .termination_records_of(&self.session);
        records.extend(process.acts.lifted_of(&self.session));
        for record in records {
            let expiry = (now, Duration::from_secs(86_400));
            if let Some(command) = process.codec.encode_act(&record, true, expiry) {
                self.nodes[node].requests.push_back(Request::Act(command));
            }
        }
    }

    fn kill(&mut self, node: usize) {
        let Some(next) = self.spare.pop() else { return };
        self.note(node, "killed");
        let process = self.process(node);
        process.engine.freezer().release(&self.session);
        process.sessions.forget(&self.session);
        self.killed.insert(self.nodes[node].process);
        // What it has sent may still be carried out.
        while !self.nodes[node].requests.is_empty() && self.choices.one_in(2) {
            self.serve(node);
        }
        self.nodes[node] = Node {
            process: next,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            waiting: Vec::new(),
            is_saving: false,
            act_position: self.server.act_stream.len(),
            is_cut_off: false,
            saved_after: 0,
        };
    }

    /// The server is replaced by one that lags behind, or by an empty one.
    fn lose_writes(&mut self) {
        self.has_lost_writes = true;
        self.server = if self.choices.one_in(2) {
            MemoryServer::default()
        } else {
            self.snapshot.clone()
        };
        for node in 0..REPLICAS {
            self.nodes[node].act_position = self.server.act_stream.len();
            self.break_connection(node);
        }
    }

    /// An operator terminates or resets the session.
    fn act(&mut self, node: usize) {
        let (process, now) = (self.process(node), self.now());
        let is_terminated = process.engine.handover().is_terminated(&self.session);
        if process.sessions.needs_take(&self.session) && !is_terminated {
            return;
        }
        let request = OperatorRequest {
            reason: "it loops",
            operator: "ann",
        };
        let known = process.issued.lock().len();
        if self.choices.one_in(2) {
            process
                .engine
                .terminate_session(&self.session, &request, now);
        } else if let Some(verdict) = process.engine.issue_reset(&self.session, &request, now) {
            process.sessions.reset(&self.session, || {
                process.engine.apply_reset(&self.session, &verdict, now);
            });
            self.resets += 1;
        }
        let issued: Vec<VerdictRecord> = process.issued.lock().drain(known..).collect();
        for record in issued {
            process.acts.note(&record);
            self.note(node, ("act", record.effect));
            let expiry = (now, Duration::from_secs(86_400));
            let command = process.codec.encode_act(&record, true, expiry).unwrap();
            self.nodes[node].requests.push_back(Request::Act(command));
            self.given.push((record, self.nodes[node].process));
        }
    }

    fn read_act(&mut self, node: usize) {
        let (process, now) = (self.process(node), self.now());
        let position = self.nodes[node].act_position;
        let Some((by, value)) = self.server.act_stream.get(position).cloned() else {
            return;
        };
        if self.nodes[node].is_cut_off {
            return;
        }
        self.nodes[node].act_position += 1;
        if by != process.name {
            let act = process.codec.decode_act(&value).unwrap();
            process.acts.adopt(&process.sessions, &act, now);
        }
    }

    /// Everything arrives, and what is not saved is saved.
    fn settle(&mut self) {
        for node in 0..REPLICAS {
            self.reconnect(node);
        }
        for _ in 0..STEPS {
            for node in 0..REPLICAS {
                while !self.nodes[node].requests.is_empty() {
                    self.serve(node);
                }
                while !self.nodes[node].replies.is_empty() {
                    self.receive(node);
                }
                while self.nodes[node].act_position < self.server.act_stream.len() {
                    self.read_act(node);
                }
                self.save(node);
            }
        }
    }

    fn check(&mut self) {
        self.check_acts();
        let is_terminated = self.server.is_terminated(&self.session);
        if is_terminated || self.has_lost_writes {
            return;
        }
        // Another replica gets the session, and each event once more.
        let node = self.choices.below(REPLICAS);
        let (process, now) = (self.process(node), self.now());
        let number = process.sessions.next_take();
        let reply = self.server.take(&self.session, &process.name, false);
        process
            .sessions
            .apply_take(&self.session, (number, &reply), now);
        let mut indexes = BTreeSet::new();
        let resets = self.resets;
        let current = self.saved.clone().into_iter();
        for (number, (index, _)) in current.filter(|(_, (_, after))| *after == resets) {
            let at = self.now();
            let (event, _) = event(&self.session, number);
            let outcome = process.engine.record(&event, at).unwrap();
            assert!(outcome.duplicate, "event {number} was answered and is lost");
            assert!(indexes.insert(index), "index {index} was given twice");
        }
    }

    /// The newest act stands on all replicas, where a replica that knows it is alive.
    fn check_acts(&mut self) {
        let newest = self
            .given
            .iter()
            .max_by_key(|(record, _)| record.verdict.id);
        let Some((newest, giver)) = newest else {
            return;
        };
        if self.killed.contains(giver) {
            return;
        }
        for node in &self.nodes {
            let process = &self.processes[node.process];
            let is_terminated = process.engine.handover().is_terminated(&self.session);
            let must_be = newest.effect == Effect::Terminated;
            assert_eq!(
                is_terminated, must_be,
                "{} of {:?}",
                process.name, newest.effect
            );
        }
    }
}

/// An event that is no loop with those before it.
fn event(session: &SessionId, number: usize) -> (Event, Bytes) {
    let call = pb::ToolCall {
        tool: format!("tool{number}"),
        arguments: Some(pb::tool_call::Arguments::ArgsJson(format!(
            "{{\"n\":{number}}}"
        ))),
        result: Some(format!("result {number}")),
        ..pb::ToolCall::default()
    };
    let message = pb::Event {
        session_id: session.to_string(),
        event_id: format!("e{number}"),
        body: Some(pb::event::Body::ToolCall(call)),
        ..pb::Event::default()
    };
    let bytes = Bytes::from(message.encode_to_vec());
    (decode_shared_event(session, &bytes).unwrap(), bytes)
}

#[test]
fn no_interleaving_has_two_owners_or_loses_an_answered_event_or_the_last_act() {
    let processes: Vec<Process> = (0..INCARNATIONS).map(process).collect();
    let mut saved = 0;
    for seed in 0..SCHEDULES {
        let mut world = World::new(&processes, seed);
        let run = std::panic::AssertUnwindSafe(|| world.run());
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("schedule {seed} failed:\n{}", world.trace.join("\n"));
            std::panic::resume_unwind(panic);
        }
        saved += world.saved.len();
        for process in &processes {
            process.engine.freezer().release(&world.session);
            process.issued.lock().clear();
        }
    }
    assert!(
        saved > SCHEDULES as usize,
        "the schedules save nothing: {saved}"
    );
}
