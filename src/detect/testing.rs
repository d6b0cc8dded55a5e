//! Scripts of observations for the detectors' tests: `call("a").times(3)`.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    iter::Sum,
    ops::Add,
    time::{Duration, SystemTime},
};

use super::{Detector, History, Words};
use crate::{
    domain::{
        CallFacts, CallKind, Cost, Finding, Look, MarkerKind, Moment, Observation, Operation,
        Outcome, Remembered, Rooms, Seen, Sig, Used,
    },
    facts::Progress,
    text::{Listener, Sketcher},
};

/// More than any script needs.
pub const ROOM: Remembered = Remembered {
    paths_max: 256,
    commands_max: 64,
    loops_max: 32,
};

#[derive(Clone)]
pub struct Script(Vec<Step>);

#[derive(Clone)]
enum Step {
    Call(Box<Call>),
    Turn(String),
    Compaction(i32),
    User,
    Cited,
}

#[derive(Clone)]
struct Call {
    facts: CallFacts,
    round: Option<Sig>,
    secs: u64,
    /// Somebody else has made progress since the last event.
    after_progress: bool,
}

pub fn sig(text: &str) -> Sig {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Sig::new(hasher.finish())
}

/// A call that does what nobody knows and returns the same each time, which
/// tells nothing.
pub fn call(name: &str) -> Script {
    let facts = CallFacts {
        kind: CallKind::Ordinary,
        tool: sig("tool"),
        lines: None,
        loose: None,
        words: Default::default(),
        said: None,
        error: None,
        in_vain: true,
        looks: false,
        call: Some(sig(name)),
        operation: Operation::Other,
        also_writes: false,
        target: Some(sig("target")),
        outcome: Some(Outcome::Ok),
        masked: sig("same"),
        raw: sig("same"),
        content: None,
        state: None,
    };
    Script(vec![Step::Call(Box::new(Call {
        facts,
        round: None,
        secs: 0,
        after_progress: false,
    }))])
}

/// A call as the detectors see it.
pub fn seen_call(operation: Operation, kind: CallKind) -> Seen {
    let script = call("a")
        .operation(operation)
        .with(|call| call.facts.kind = kind);
    match script.0.into_iter().next() {
        Some(Step::Call(call)) => Seen::Call(call.facts),
        _ => Seen::Other,
    }
}

/// Calls of these names, in turn.
pub fn calls(names: &str) -> Script {
    names.split_whitespace().map(call).sum()
}

/// Reads of these files, in turn.
pub fn reads(files: &str) -> Script {
    files.split_whitespace().map(read).sum()
}

pub fn read(file: &str) -> Script {
    call(&format!("read {file}")).read().on(file)
}

/// Writes that text to the file.
pub fn write(file: &str, text: &str) -> Script {
    let call = call(&format!("write {file} {text}")).on(file);
    call.operation(Operation::Write)
}

/// Puts that text in a place of the file.
pub fn edit(file: &str, text: &str) -> Script {
    let call = call(&format!("edit {file} {text}")).on(file);
    call.operation(Operation::Edit)
}

pub fn run(command: &str) -> Script {
    let call = call(command).on(command);
    call.operation(Operation::Execute)
}

pub fn turn(text: &str) -> Script {
    Script(vec![Step::Turn(text.to_owned())])
}

pub fn user() -> Script {
    Script(vec![Step::User])
}

pub fn compaction() -> Script {
    compaction_to(0)
}

pub fn compaction_to(tokens: i32) -> Script {
    Script(vec![Step::Compaction(tokens)])
}

/// A verdict has cited all that was done so far. It is no event.
pub fn cited() -> Script {
    Script(vec![Step::Cited])
}

impl Script {
    pub fn times(self, n: usize) -> Self {
        Self(std::iter::repeat_n(self.0, n).flatten().collect())
    }

    pub fn read(self) -> Self {
        self.operation(Operation::Read)
    }

    pub fn operation(self, operation: Operation) -> Self {
        self.with(|call| call.facts.operation = operation)
    }

    pub fn on(self, target: &str) -> Self {
        self.with(|call| call.facts.target = Some(sig(target)))
    }

    pub fn lines(self, first: u32, last: u32) -> Self {
        self.with(|call| {
            call.facts.lines = Some((first, last));
            call.facts.call = Some(sig(&format!("{:?} {first} {last}", call.facts.call)));
        })
    }

    pub fn result(self, text: &str) -> Self {
        self.with(|call| {
            call.facts.masked = sig(text);
            call.facts.raw = sig(text);
        })
    }

    /// A result that tells something.
    pub fn says(self, text: &str) -> Self {
        self.result(text)
            .with(|call| call.facts.said = Some(sig(text)))
    }

    /// Another raw outcome, the same once masked.
    pub fn raw(self, text: &str) -> Self {
        self.with(|call| call.facts.raw = sig(text))
    }

    pub fn fails(self, error: &str) -> Self {
        self.says(error).with(|call| {
            call.facts.outcome = Some(Outcome::Error);
            call.facts.error = Some(sig(error));
        })
    }

    /// It failed, and did not say why.
    pub fn error_unknown(self) -> Self {
        self.with(|call| call.facts.error = None)
    }

    pub fn content(self, text: &str) -> Self {
        let told = format!("content {text}");
        self.result(&told)
            .with(|call| call.facts.content = Some(sig(text)))
    }

    /// The world after the call; what else came of it stays.
    pub fn state(self, text: &str) -> Self {
        self.with(|call| {
            call.facts.state = Some(sig(text));
            call.facts.masked = sig(&format!("{:?} {text}", call.facts.masked));
            call.facts.raw = call.facts.masked;
        })
    }

    pub fn tool(self, name: &str) -> Self {
        self.with(|call| call.facts.tool = sig(name))
    }

    /// The arguments without numbers and the order of words.
    pub fn loose(self, words: &str) -> Self {
        self.with(|call| call.facts.loose = Some(sig(words)))
    }

    /// The arguments' words, as hashes.
    pub fn words(self, words: impl Iterator<Item = u32> + Clone) -> Self {
        self.with(|call| call.facts.words = words.clone().collect())
    }

    /// It brought much back, or nobody knows what.
    pub fn brings_much(self) -> Self {
        self.with(|call| call.facts.in_vain = false)
    }

    /// A call that looks, of a tool of no known class.
    pub fn looking(self) -> Self {
        self.with(|call| call.facts.looks = true)
    }

    pub fn without_args(self) -> Self {
        self.with(|call| call.facts.call = None)
    }

    pub fn without_target(self) -> Self {
        self.with(|call| call.facts.target = None)
    }

    pub fn poll(self) -> Self {
        self.with(|call| call.facts.kind = CallKind::Poll)
    }

    pub fn outage(self) -> Self {
        self.fails("503")
            .with(|call| call.facts.kind = CallKind::Outage)
    }

    pub fn at(self, secs: u64) -> Self {
        self.with(|call| call.secs = secs)
    }

    pub fn round(self, id: &str) -> Self {
        self.with(|call| call.round = Some(sig(id)))
    }

    pub fn after_progress(self) -> Self {
        self.with(|call| call.after_progress = true)
    }

    fn with(mut self, change: impl Fn(&mut Call)) -> Self {
        for step in &mut self.0 {
            if let Step::Call(call) = step {
                change(call);
            }
        }
        self
    }

    /// What the detector counts on each event; 0 where it finds nothing.
    pub fn counts<D: Detector>(self, settings: &D::Settings) -> Vec<i32> {
        let count = |look| match look {
            Look::Found(finding) => finding.count,
            Look::Away | Look::Abstained(_) | Look::Clear | Look::Standing => 0,
        };
        self.looks::<D>(settings).into_iter().map(count).collect()
    }

    pub fn findings<D: Detector>(self, settings: &D::Settings) -> Vec<Finding> {
        let found = |look| match look {
            Look::Found(finding) => Some(*finding),
            Look::Away | Look::Abstained(_) | Look::Clear | Look::Standing => None,
        };
        let looks = self.looks::<D>(settings).into_iter();
        looks.filter_map(found).collect()
    }

    /// A letter an event: ` ` away, `?` abstained, `.` clear, `=` standing, `!`
    /// found, `+` found to go on.
    pub fn marks<D: Detector>(self, settings: &D::Settings) -> String {
        let mark = |look: &Look| match look {
            Look::Away => ' ',
            Look::Abstained(_) => '?',
            Look::Clear => '.',
            Look::Standing => '=',
            Look::Found(finding) if finding.extends => '+',
            Look::Found(_) => '!',
        };
        self.looks::<D>(settings).iter().map(mark).collect()
    }

    /// Plays the script as the engine does.
    fn looks<D: Detector>(self, settings: &D::Settings) -> Vec<Look> {
        let mut detector = D::default();
        let mut past = History::default();
        let mut progress = Progress::default();
        let mut looks = Vec::new();
        for step in self.0 {
            let index = looks.len() as i32;
            let (mut round, mut secs) = (None, 0);
            let seen = match step {
                Step::Cited => {
                    let cited: Vec<i32> = (0..index).collect();
                    past.spend(&cited);
                    detector.spend(&cited);
                    continue;
                }
                Step::User => {
                    progress.start_anew();
                    detector.reset();
                    past.clear();
                    looks.push(Look::Away);
                    continue;
                }
                Step::Compaction(context_tokens) => Seen::Marker {
                    kind: MarkerKind::Compaction,
                    context_tokens,
                },
                Step::Turn(text) => {
                    let listener = Listener::new(D::phrases(settings)).unwrap();
                    let mut sketcher = Sketcher::default();
                    sketcher.push(&text, &listener);
                    Seen::Turn(sketcher.finish(&listener))
                }
                Step::Call(call) => {
                    if call.after_progress {
                        progress.advance();
                    }
                    progress.act();
                    progress.see_state(call.facts.state);
                    let rooms = Rooms::from(ROOM);
                    progress.note(&call.facts, &rooms.paths);
                    (round, secs) = (call.round, call.secs);
                    Seen::Call(call.facts)
                }
            };
            let at = Moment {
                index,
                time: SystemTime::UNIX_EPOCH + Duration::from_secs(secs),
                progress: progress.count(),
                moves: progress.moves(),
                calls: progress.calls(),
                round,
            };
            let mut now = Observation {
                at,
                seen,
                used: Used::default(),
                rooms: ROOM.into(),
            };
            looks.push(detector.observe(&now, &past, settings));
            past.push(&mut now, Cost::default(), &Words::default());
        }
        looks
    }
}

impl Add for Script {
    type Output = Self;

    fn add(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }
}

impl Sum for Script {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(Vec::new()), Add::add)
    }
}
