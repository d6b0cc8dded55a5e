//! Compares the packed ring of calls with a plain list of them.

use std::{fmt::Debug, time::SystemTime};

use proptest::{
    option::weighted,
    prelude::*,
    sample::{Select, select},
};

use super::*;
use crate::{
    detect::testing::{observed_call, sig},
    domain::{Outcome, UsageDelta},
};

#[derive(Clone, Debug)]
enum ModelStep {
    /// A call, and how often the session made progress before it.
    Call(Box<ModelCall>, u32),
    /// A verdict cites the events this many events ago.
    Cited(Vec<i32>),
    /// A message of the user.
    User,
}

/// A call with all its fields, unpacked.
#[derive(Clone, Debug)]
struct ModelCall {
    at: EventPosition,
    facts: CallFacts,
    cost: Cost,
    /// Tool, target and event id.
    names: [String; 3],
    consumed: bool,
}

/// The number of distinct calls and targets.
const CALLS: u8 = 60;
const TARGETS: u8 = 12;

fn numbered_sig(what: &str, number: u8) -> Sig {
    sig(&format!("{what} {number}"))
}

fn one_of<T: Clone + Debug + 'static>(all: &[T]) -> Select<T> {
    select(all.to_vec())
}

fn any_sig(what: &'static str, count: u8) -> impl Strategy<Value = Sig> {
    (0..count).prop_map(move |number| numbered_sig(what, number))
}

fn name(bytes_max: usize) -> impl Strategy<Value = String> {
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
        weighted(0.8, any_sig("call", CALLS)),
        weighted(0.8, any_sig("target", TARGETS)),
        one_of(&[None, Some(Outcome::Ok), Some(Outcome::Error)]),
        [any_sig("text", 4), any_sig("text", 4)],
        weighted(0.1, any_sig("content", 4)),
        weighted(0.1, (1..9u32, 9..20u32)),
    );
    facts.prop_map(
        |(kind, operation, call, target, outcome, [masked, raw], content, lines)| {
            let ObservationBody::Call(facts) = observed_call(operation, kind) else {
                unreachable!("observed_call returns a call");
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

fn model_call() -> impl Strategy<Value = Box<ModelCall>> {
    // Sums of quarters are exact in any order.
    let cost = (1..100i64, 0..9u8).prop_map(|(tokens, quarters)| Cost {
        input_tokens: tokens,
        output_tokens: 1,
        cached_input_tokens: tokens / 2,
        usd: f64::from(quarters) / 4.0,
    });
    let rare_cost = weighted(0.1, cost).prop_map(Option::unwrap_or_default);
    let round = weighted(0.1, any_sig("round", 4));
    let names = [name(255), name(History::TARGET_BYTES_MAX), name(255)];
    (facts(), round, rare_cost, names).prop_map(|(facts, round, cost, names)| {
        let at = EventPosition {
            index: 0,
            time: SystemTime::UNIX_EPOCH,
            progress: 0,
            state_changes: 0,
            calls: 0,
            round,
        };
        Box::new(ModelCall {
            at,
            facts,
            cost,
            names,
            consumed: false,
        })
    })
}

fn model_step() -> impl Strategy<Value = ModelStep> {
    let progress = prop_oneof![10 => Just(0), 1 => 1..3u32];
    let call =
        (model_call(), progress).prop_map(|(call, progress)| ModelStep::Call(call, progress));
    let cited = prop::collection::vec(0..40, 1..6).prop_map(ModelStep::Cited);
    prop_oneof![60 => call, 6 => cited, 1 => Just(ModelStep::User)]
}

impl ModelCall {
    fn push_to(&self, past: &mut History) {
        let mut now = Observation {
            at: self.at,
            body: ObservationBody::Call(self.facts.clone()),
            usage: UsageDelta::default(),
            world_moves: 0,
            new_results: 0,
            capacities: crate::domain::Capacities::default(),
        };
        let [tool, target, event_id] = &self.names;
        let text = CallText {
            tool,
            target,
            event_id,
            args: target,
        };
        past.push(&mut now, self.cost, &text);
    }

    fn is_ordinary(&self) -> bool {
        self.facts.kind == CallKind::Ordinary
    }

    /// The expected entry when the session's progress count is `progress`.
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
            consumed: self.consumed,
        }
    }

    fn member(&self) -> (LoopMember, Operation) {
        let [tool, target, event_id] = self.names.clone();
        let member = LoopMember {
            tool,
            target,
            event_id,
            call_key: None,
            args: String::new(),
        };
        (member, self.facts.operation)
    }

    fn step(&self) -> (Option<Sig>, TimelineStep) {
        let [tool, target, _] = self.names.clone();
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

/// All fields of an entry, for a comparison.
fn entry_fields(entry: CallEntry) -> impl PartialEq + Debug {
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
        consumed,
    } = entry;
    let call_fields = (index, progress, round, call, operation, lines);
    (call_fields, masked, raw, content, consumed)
}

/// All fields of a step, for a comparison.
fn step_fields((call, step): (Option<Sig>, TimelineStep)) -> impl PartialEq + Debug {
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
    fn the_ring_of_calls_returns_what_a_list_of_them_would(
        steps in prop::collection::vec(model_step(), 0..120),
    ) {
        let calls: Vec<Sig> = (0..CALLS).map(|number| numbered_sig("call", number)).collect();
        let targets: Vec<Sig> = (0..TARGETS).map(|number| numbered_sig("target", number)).collect();
        let mut past = History::default();
        let mut list: Vec<ModelCall> = Vec::new();
        let mut progress = 0;
        for (index, step) in (0..).zip(steps) {
            match step {
                ModelStep::User => {
                    past.clear();
                    list.clear();
                }
                ModelStep::Cited(ago) => {
                    let cited: Vec<i32> = ago.iter().map(|ago| index - ago).collect();
                    past.consume(&cited);
                    for call in &mut list {
                        call.consumed |= cited.contains(&call.at.index);
                    }
                }
                ModelStep::Call(mut call, advances) => {
                    progress += advances;
                    let time = call.at.time + Duration::from_millis(1_001 * index as u64);
                    call.at = EventPosition { index, time, progress, ..call.at };
                    call.push_to(&mut past);
                    list.push(*call);
                }
            }
            let excess = list.len().saturating_sub(History::CALLS_MAX);
            list.drain(..excess);
            let latest_first = || list.iter().rev();
            let ordinary = || latest_first().filter(|call| call.is_ordinary());
            let entry = |call: &ModelCall| entry_fields(call.entry(progress));
            prop_assert_eq!(
                past.calls().map(entry_fields).collect::<Vec<_>>(),
                ordinary().map(entry).collect::<Vec<_>>()
            );
            for call in &calls {
                let equal = |stored: &&ModelCall| stored.facts.call == Some(*call);
                prop_assert_eq!(
                    past.latest_call(*call).map(entry_fields),
                    ordinary().find(equal).map(entry)
                );
                let found = past.find_member(*call);
                let stored = latest_first().find(equal);
                // The oldest arguments give way to later ones.
                if let (Some((.., args)), Some(call)) = (&found, stored) {
                    prop_assert!(args.is_empty() || *args == call.names[1]);
                }
                prop_assert_eq!(
                    found.map(|(member, operation, _)| (member, operation)),
                    stored.map(ModelCall::member)
                );
            }
            for target in &targets {
                let on = ordinary().take(20).filter(|call| call.facts.target == Some(*target));
                prop_assert_eq!(
                    past.calls_on_target(*target, 20).map(entry_fields).collect::<Vec<_>>(),
                    on.map(entry).collect::<Vec<_>>()
                );
            }
            for since in [0, index - 20, index - 3] {
                let mut waste = Waste::default();
                for call in list.iter().filter(|call| call.at.index >= since) {
                    waste += Waste::new(1, call.cost);
                }
                prop_assert_eq!(past.cost_since(since), waste);
            }
            let mut steps: Vec<_> = past.timeline_steps().collect();
            steps.sort_by_key(|(_, step)| step.index);
            prop_assert_eq!(
                steps.into_iter().map(step_fields).collect::<Vec<_>>(),
                list.iter().map(|call| step_fields(call.step())).collect::<Vec<_>>()
            );
        }
    }
}
