//! The packed ring of calls beside a plain list of them.

use std::{fmt::Debug, time::SystemTime};

use proptest::{
    option::weighted,
    prelude::*,
    sample::{Select, select},
};

use super::*;
use crate::{
    detect::testing::{seen_call, sig},
    domain::{Outcome, UsageDelta},
};

/// What happened.
#[derive(Clone, Debug)]
enum Happened {
    /// A call, before which the session made progress so often.
    Call(Box<Made>, u32),
    /// A verdict cited the events that were so long ago.
    Cited(Vec<i32>),
    /// A user spoke.
    User,
}

/// A call, with all that is told of it.
#[derive(Clone, Debug)]
struct Made {
    at: EventPosition,
    facts: CallFacts,
    cost: Cost,
    /// Tool, target and event id.
    words: [String; 3],
    spent: bool,
}

/// There are so many calls and targets.
const CALLS: u8 = 60;
const TARGETS: u8 = 12;

fn numbered(what: &str, number: u8) -> Sig {
    sig(&format!("{what} {number}"))
}

fn one_of<T: Clone + Debug + 'static>(all: &[T]) -> Select<T> {
    select(all.to_vec())
}

fn some(what: &'static str, most: u8) -> impl Strategy<Value = Sig> {
    (0..most).prop_map(move |number| numbered(what, number))
}

fn word(bytes_max: usize) -> impl Strategy<Value = String> {
    let letter = prop::char::range('a', 'z').prop_map(String::from);
    // Most are short.
    let len = prop_oneof![8 => 0..40usize, 1 => 0..=bytes_max];
    (letter, len).prop_map(|(letter, len)| letter.repeat(len))
}

fn facts() -> impl Strategy<Value = CallFacts> {
    use Operation::{Edit, Execute, Read};
    let facts = (
        one_of(&[CallKind::Ordinary, CallKind::Ordinary, CallKind::Poll]),
        one_of(&[Read, Edit, Execute]),
        weighted(0.8, some("call", CALLS)),
        weighted(0.8, some("target", TARGETS)),
        one_of(&[None, Some(Outcome::Ok), Some(Outcome::Error)]),
        [some("text", 4), some("text", 4)],
        weighted(0.1, some("content", 4)),
        weighted(0.1, (1..9u32, 9..20u32)),
    );
    facts.prop_map(
        |(kind, operation, call, target, outcome, [masked, raw], content, lines)| {
            let ObservationBody::Call(facts) = seen_call(operation, kind) else {
                unreachable!("it is a call");
            };
            CallFacts {
                call,
                target,
                outcome,
                masked_outcome: masked,
                raw_outcome: raw,
                content,
                lines,
                ..facts
            }
        },
    )
}

fn made() -> impl Strategy<Value = Box<Made>> {
    // Sums of quarters are the same in any order.
    let cost = (1..100i64, 0..9u8).prop_map(|(tokens, quarters)| Cost {
        input_tokens: tokens,
        output_tokens: 1,
        usd: f64::from(quarters) / 4.0,
    });
    let cost = weighted(0.1, cost).prop_map(Option::unwrap_or_default);
    let round = weighted(0.1, some("round", 4));
    let words = [word(255), word(History::TARGET_BYTES_MAX), word(255)];
    let made = (facts(), round, cost, words);
    made.prop_map(|(facts, round, cost, words)| {
        let at = EventPosition {
            index: 0,
            time: SystemTime::UNIX_EPOCH,
            progress: 0,
            state_changes: 0,
            calls: 0,
            round,
        };
        Box::new(Made {
            at,
            facts,
            cost,
            words,
            spent: false,
        })
    })
}

fn happened() -> impl Strategy<Value = Happened> {
    let progress = prop_oneof![10 => Just(0), 1 => 1..3u32];
    let call = (made(), progress).prop_map(|(made, progress)| Happened::Call(made, progress));
    let cited = prop::collection::vec(0..40, 1..6).prop_map(Happened::Cited);
    prop_oneof![60 => call, 6 => cited, 1 => Just(Happened::User)]
}

impl Made {
    fn push_to(&self, past: &mut History) {
        let mut now = Observation {
            at: self.at,
            body: ObservationBody::Call(self.facts.clone()),
            usage: UsageDelta::default(),
            capacities: crate::domain::Capacities::default(),
        };
        let [tool, target, event_id] = &self.words;
        let words = CallText {
            tool,
            target,
            event_id,
        };
        past.push(&mut now, self.cost, &words);
    }

    fn is_ordinary(&self) -> bool {
        self.facts.kind == CallKind::Ordinary
    }

    /// As it is to be found when the session has made progress so often.
    fn entry(&self, progress: u32) -> CallEntry {
        CallEntry {
            index: self.at.index,
            progress: (self.at.progress == progress).then_some(progress),
            round: self.at.round,
            call: self.facts.call,
            operation: self.facts.operation,
            lines: self.facts.lines,
            masked_outcome: self.facts.masked_outcome.tag(),
            raw_outcome: self.facts.raw_outcome.tag(),
            content: self.facts.content,
            consumed: self.spent,
        }
    }

    fn member(&self) -> (LoopMember, Operation) {
        let [tool, target, event_id] = self.words.clone();
        let member = LoopMember {
            tool,
            target,
            event_id,
        };
        (member, self.facts.operation)
    }

    fn step(&self) -> (Option<Sig>, TimelineStep) {
        let [tool, target, _] = self.words.clone();
        let kind = TimelineStepKind::Call {
            tool,
            target,
            operation: self.facts.operation,
            outcome: self.facts.outcome,
        };
        (
            self.facts.call,
            timeline_step(self.at.index, self.at.time, kind),
        )
    }
}

/// All of an entry, to be compared.
fn of_entry(entry: CallEntry) -> impl PartialEq + Debug {
    let CallEntry {
        index,
        progress,
        round,
        call,
        operation,
        lines,
        masked_outcome: masked,
        raw_outcome: raw,
        content,
        consumed: spent,
    } = entry;
    let made = (index, progress, round, call, operation, lines);
    (made, masked, raw, content, spent)
}

/// All of a step, to be compared.
fn of_step((call, step): (Option<Sig>, TimelineStep)) -> impl PartialEq + Debug {
    let kind = match step.kind {
        TimelineStepKind::Call {
            tool,
            target,
            operation,
            outcome,
        } => Some((tool, target, operation, outcome)),
        _ => None,
    };
    (call, step.index, step.time, kind)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_ring_of_calls_finds_what_a_list_of_them_would(
        all in prop::collection::vec(happened(), 0..120),
    ) {
        let calls: Vec<Sig> = (0..CALLS).map(|number| numbered("call", number)).collect();
        let targets: Vec<Sig> = (0..TARGETS).map(|number| numbered("target", number)).collect();
        let mut past = History::default();
        let mut list: Vec<Made> = Vec::new();
        let mut progress = 0;
        for (index, happened) in (0..).zip(all) {
            match happened {
                Happened::User => {
                    past.clear();
                    list.clear();
                }
                Happened::Cited(ago) => {
                    let cited: Vec<i32> = ago.iter().map(|ago| index - ago).collect();
                    past.consume(&cited);
                    for made in &mut list {
                        made.spent |= cited.contains(&made.at.index);
                    }
                }
                Happened::Call(mut made, moves) => {
                    progress += moves;
                    let time = made.at.time + Duration::from_millis(1_001 * index as u64);
                    made.at = EventPosition { index, time, progress, ..made.at };
                    made.push_to(&mut past);
                    list.push(*made);
                }
            }
            let lost = list.len().saturating_sub(History::CALLS_MAX);
            list.drain(..lost);
            let latest_first = || list.iter().rev();
            let ordinary = || latest_first().filter(|made| made.is_ordinary());
            let entry = |made: &Made| of_entry(made.entry(progress));
            prop_assert_eq!(
                past.calls().map(of_entry).collect::<Vec<_>>(),
                ordinary().map(entry).collect::<Vec<_>>()
            );
            for call in &calls {
                let equal = |made: &&Made| made.facts.call == Some(*call);
                prop_assert_eq!(
                    past.latest_call(*call).map(of_entry),
                    ordinary().find(equal).map(entry)
                );
                prop_assert_eq!(
                    past.find_member(*call),
                    latest_first().find(equal).map(Made::member)
                );
            }
            for target in &targets {
                let on = ordinary().take(20).filter(|made| made.facts.target == Some(*target));
                prop_assert_eq!(
                    past.calls_on_target(*target, 20).map(of_entry).collect::<Vec<_>>(),
                    on.map(entry).collect::<Vec<_>>()
                );
            }
            for since in [0, index - 20, index - 3] {
                let mut waste = Waste::default();
                for made in list.iter().filter(|made| made.at.index >= since) {
                    waste += Waste::new(1, made.cost);
                }
                prop_assert_eq!(past.cost_since(since), waste);
            }
            let mut steps: Vec<_> = past.timeline_steps().collect();
            steps.sort_by_key(|(_, step)| step.index);
            prop_assert_eq!(
                steps.into_iter().map(of_step).collect::<Vec<_>>(),
                list.iter().map(|made| of_step(made.step())).collect::<Vec<_>>()
            );
        }
    }
}
