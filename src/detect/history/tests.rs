//! The packed ring of calls beside a plain list of them.

use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use crate::{
    detect::testing::{ROOM, seen_call, sig},
    domain::{Outcome, Used},
};

/// What happened: a call, of the few that there are, or a user who spoke.
#[derive(Clone, Debug)]
enum Happened {
    Call(Made),
    User,
}

#[derive(Clone, Debug)]
struct Made {
    call: Option<u8>,
    target: Option<u8>,
    is_ordinary: bool,
    outcome: Option<Outcome>,
    event_id: String,
}

fn happened() -> impl Strategy<Value = Happened> {
    let outcome = prop::sample::select(vec![None, Some(Outcome::Ok), Some(Outcome::Error)]);
    let call = (
        prop::option::of(0u8..60),
        prop::option::of(0u8..12),
        any::<bool>(),
        outcome,
        "[a-z]{0,40}",
    );
    let call = call.prop_map(|(call, target, is_ordinary, outcome, event_id)| {
        Happened::Call(Made {
            call,
            target,
            is_ordinary,
            outcome,
            event_id,
        })
    });
    prop_oneof![60 => call, 1 => Just(Happened::User)]
}

fn called(number: u8) -> Sig {
    sig(&format!("call {number}"))
}

fn acted_on(number: u8) -> Sig {
    sig(&format!("target {number}"))
}

impl Made {
    fn push_to(&self, past: &mut History, index: i32) {
        let kind = if self.is_ordinary {
            CallKind::Ordinary
        } else {
            CallKind::Poll
        };
        let Seen::Call(facts) = seen_call(Operation::Read, kind) else {
            return;
        };
        let seen = Seen::Call(CallFacts {
            call: self.call.map(called),
            target: self.target.map(acted_on),
            outcome: self.outcome,
            ..facts
        });
        let at = Moment {
            index,
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(index as u64),
            progress: 0,
            moves: 0,
            calls: 0,
            round: None,
        };
        let mut now = Observation {
            at,
            seen,
            used: Used::default(),
            rooms: ROOM.into(),
        };
        let words = Words {
            tool: "tool",
            target: "target",
            event_id: &self.event_id,
        };
        past.push(&mut now, Cost::default(), &words);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_ring_of_calls_finds_what_a_list_of_them_would(
        all in prop::collection::vec(happened(), 0..120),
    ) {
        let mut past = History::default();
        let mut list: Vec<(i32, Made)> = Vec::new();
        for (index, happened) in (0..).zip(all) {
            match happened {
                Happened::User => {
                    past.clear();
                    list.clear();
                }
                Happened::Call(made) => {
                    made.push_to(&mut past, index);
                    list.push((index, made));
                }
            }
            let kept = list.len().saturating_sub(History::CALLS_MAX);
            list.drain(..kept);
            let latest_first = || list.iter().rev();
            for number in 0..60 {
                let equal = |made: &Made| made.call == Some(number);
                let latest = latest_first().find(|(_, made)| equal(made) && made.is_ordinary);
                prop_assert_eq!(
                    past.latest(called(number)).map(|entry| entry.index),
                    latest.map(|(index, _)| *index)
                );
                let member = latest_first().find(|(_, made)| equal(made));
                prop_assert_eq!(
                    past.member(called(number)).map(|(member, _)| member.event_id),
                    member.map(|(_, made)| made.event_id.clone())
                );
            }
            for number in 0..12 {
                let ordinary = latest_first().filter(|(_, made)| made.is_ordinary);
                let on = ordinary.take(20).filter(|(_, made)| made.target == Some(number));
                let on: Vec<i32> = on.map(|(index, _)| *index).collect();
                let found = past.calls_on(acted_on(number), 20);
                prop_assert_eq!(found.map(|entry| entry.index).collect::<Vec<_>>(), on);
            }
            let steps: Vec<(i32, SystemTime, Option<Outcome>)> = past
                .steps()
                .filter_map(|(_, step)| match step.kind {
                    StepKind::Call { outcome, .. } => Some((step.index, step.time, outcome)),
                    _ => None,
                })
                .collect();
            let told = list.iter().map(|(index, made)| {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(*index as u64);
                (*index, time, made.outcome)
            });
            prop_assert_eq!(steps, told.collect::<Vec<_>>());
        }
    }
}
