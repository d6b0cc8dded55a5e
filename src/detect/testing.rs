//! Scripts of observations for the detectors' tests: `call("a").times(3)`.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    iter::Sum,
    ops::Add,
    time::SystemTime,
};

use super::{Detector, History, Words};
use crate::{
    domain::{
        CallFacts, Cost, Finding, Look, MarkerKind, Moment, Observation, Operation, Outcome, Seen,
        Sig,
    },
    facts::{Key, Sketcher},
};

#[derive(Clone)]
pub struct Script(Vec<Step>);

#[derive(Clone)]
enum Step {
    Call {
        facts: CallFacts,
        round: Option<Sig>,
        progress: u32,
    },
    Turn(String),
    Marker(MarkerKind),
    User,
}

pub fn sig(text: &str) -> Sig {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Sig::new(hasher.finish())
}

pub fn call(name: &str) -> Script {
    Script(vec![Step::Call {
        facts: CallFacts {
            call: Some(sig(name)),
            operation: Operation::Other,
            target: Some(sig("target")),
            outcome: Some(Outcome::Ok),
            masked: sig("same"),
            raw: sig("same"),
            content: None,
            state: None,
        },
        round: None,
        progress: 0,
    }])
}

pub fn turn(text: &str) -> Script {
    Script(vec![Step::Turn(text.to_owned())])
}

pub fn user() -> Script {
    Script(vec![Step::User])
}

pub fn compaction() -> Script {
    Script(vec![Step::Marker(MarkerKind::Compaction)])
}

impl Script {
    pub fn times(self, n: usize) -> Self {
        Self(std::iter::repeat_n(self.0, n).flatten().collect())
    }

    pub fn read(self) -> Self {
        self.with(|facts, _, _| facts.operation = Operation::Read)
    }

    pub fn result(self, text: &str) -> Self {
        self.with(|facts, _, _| {
            facts.masked = sig(text);
            facts.raw = sig(text);
        })
    }

    /// Another raw outcome, the same once masked.
    pub fn raw(self, text: &str) -> Self {
        self.with(|facts, _, _| facts.raw = sig(text))
    }

    pub fn without_args(self) -> Self {
        self.with(|facts, _, _| facts.call = None)
    }

    pub fn round(self, id: &str) -> Self {
        self.with(|_, round, _| *round = Some(sig(id)))
    }

    pub fn after_progress(self) -> Self {
        self.with(|_, _, progress| *progress += 1)
    }

    fn with(mut self, change: impl Fn(&mut CallFacts, &mut Option<Sig>, &mut u32)) -> Self {
        for step in &mut self.0 {
            if let Step::Call {
                facts,
                round,
                progress,
            } = step
            {
                change(facts, round, progress);
            }
        }
        self
    }

    /// What the detector counts on each event; 0 where it finds nothing.
    pub fn counts<D: Detector>(self, settings: &D::Settings) -> Vec<i32> {
        let count = |look| match look {
            Look::Found(finding) => finding.count,
            Look::Away | Look::Abstained(_) | Look::Clear => 0,
        };
        self.looks::<D>(settings).into_iter().map(count).collect()
    }

    pub fn findings<D: Detector>(self, settings: &D::Settings) -> Vec<Finding> {
        let found = |look| match look {
            Look::Found(finding) => Some(finding),
            Look::Away | Look::Abstained(_) | Look::Clear => None,
        };
        let looks = self.looks::<D>(settings).into_iter();
        looks.filter_map(found).collect()
    }

    /// Plays the script as the engine does.
    fn looks<D: Detector>(self, settings: &D::Settings) -> Vec<Look> {
        let mut detector = D::default();
        let mut past = History::default();
        let mut play = |(index, step): (usize, Step)| {
            let mut at = Moment {
                index: index as i32,
                time: SystemTime::UNIX_EPOCH,
                progress: 0,
                round: None,
            };
            let seen = match step {
                Step::User => {
                    detector.reset();
                    past.clear();
                    return Look::Away;
                }
                Step::Marker(kind) => Seen::Marker {
                    kind,
                    context_tokens: 0,
                },
                Step::Turn(text) => {
                    let mut sketcher = Sketcher::default();
                    let key = Key::fixed();
                    sketcher.push(&text, &key);
                    Seen::Turn(sketcher.finish(&key))
                }
                Step::Call {
                    facts,
                    round,
                    progress,
                } => {
                    at.round = round;
                    at.progress = progress;
                    Seen::Call(facts)
                }
            };
            let now = Observation { at, seen };
            let look = detector.observe(&now, &past, settings);
            past.push(now, Cost::default(), &Words::default());
            look
        };
        self.0.into_iter().enumerate().map(&mut play).collect()
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
