use serde::Deserialize;

use super::{Detector, Futile, History, streak::Streak};
use crate::domain::{CallFacts, Explained, Finding, Look, Moment, Observation, Operation, Sig};

/// Fires when `count` calls in a row, with arguments that vary, all say the same
/// (raw: a changed number is news), or when `count` calls that act leave the
/// state of the world as it was.
///
/// Resets when a call says something else, with progress, with a changed state.
/// Abstains where nothing telling came back: empty, ok, done, a write's answer.
///
/// Cost: two comparisons a call. Six in a row: a storm of searches against a
/// captcha page is longer, three tries that miss are not.
#[derive(Default)]
pub struct Stagnation {
    said: Option<(Sig, u32)>,
    same_result: Streak,
    /// Of the state of the world, where it is told.
    world: Option<Box<World>>,
}

#[derive(Default)]
struct World {
    /// The state and how often it had changed: one that went away and came back
    /// is another.
    state: Option<(Sig, u32)>,
    same_state: Streak,
}

/// `[detect.stagnation]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
}

impl Detector for Stagnation {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), Futile> {
        if settings.count < 2 {
            let why = format!("{} calls do not stand still: at least 2 do", settings.count);
            return Err(Futile::new("count", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> Explained {
        Explained {
            rule: "calls that vary lead nowhere: one result, or a state that stays as it was",
            threshold: format!("{} in a row", settings.count),
            quiet: "another result, a changed state, or a write that changed something",
        }
    }

    fn observe(&mut self, now: &Observation, _past: &History, settings: &Settings) -> Look {
        let Some(facts) = now.ordinary() else {
            return Look::Away;
        };
        let by_state = self.state(now.at, facts, settings);
        let by_result = self.result(now.at, facts, settings);
        let world = self.world.as_ref();
        let stands =
            self.same_result.stands() || world.is_some_and(|world| world.same_state.stands());
        match (by_result, by_state) {
            (Look::Found(finding), _) => Look::Found(finding),
            (_, Some(finding)) => Look::found(finding),
            (Look::Clear, None) if stands => Look::Standing,
            (other, None) => other,
        }
    }

    fn spend(&mut self, cited: &[i32]) {
        self.same_result.spend(cited);
        if let Some(world) = &mut self.world {
            world.same_state.spend(cited);
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        let world = |world: &World| size_of::<World>() + world.same_state.heap_bytes();
        self.same_result.heap_bytes() + self.world.as_deref().map_or(0, world)
    }
}

impl Stagnation {
    fn result(&mut self, at: Moment, facts: &CallFacts, settings: &Settings) -> Look {
        let (Some(call), Some(said), false) = (facts.call, facts.said, facts.failed()) else {
            self.said = None;
            self.same_result.clear();
            let missing = facts.call.map_or("tool_call.args", |_| "tool_call.result");
            return if facts.failed() {
                Look::Clear
            } else {
                Look::Abstained(missing)
            };
        };
        if self.said == Some((said, at.progress)) {
            if !self.same_result.push(at, Some(call)) {
                return Look::Away;
            }
        } else {
            self.said = Some((said, at.progress));
            self.same_result.restart(at, Some(call));
        }
        let varied = self.same_result.distinct() > 1;
        let found = varied.then(|| self.same_result.finding(settings.count));
        match found.flatten() {
            Some(finding) => Look::found(Finding {
                name: [said].into_iter().collect(),
                ..finding
            }),
            None => Look::Clear,
        }
    }

    fn state(&mut self, at: Moment, facts: &CallFacts, settings: &Settings) -> Option<Finding> {
        let state = facts.state?;
        let now = (state, at.moves);
        let world = self.world.get_or_insert_default();
        if world.state.replace(now) != Some(now) {
            // The first call brought the state about; those after it keep it.
            world.same_state.clear();
            return None;
        }
        let acts = match facts.operation {
            Operation::Read | Operation::Search => false,
            Operation::Other => !facts.looks,
            Operation::Write | Operation::Edit | Operation::Execute => true,
        };
        if !acts || !world.same_state.push(at, facts.call) {
            return None;
        }
        let finding = world.same_state.finding(settings.count)?;
        Some(Finding {
            name: [state].into_iter().collect(),
            ..finding
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, calls, cited, edit, read, run, user};

    const SETTINGS: Settings = Settings { count: 6 };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<Stagnation>(&SETTINGS), expected);
    }

    #[track_caller]
    fn marks(script: Script, expected: &str) {
        assert_eq!(script.marks::<Stagnation>(&SETTINGS), expected);
    }

    #[test]
    fn looking_leaves_the_state_as_it_was() {
        let clicks: Script = (0..7).map(|n| call(&n.to_string()).state("page")).sum();
        check(clicks.clone(), &[0, 0, 0, 0, 0, 0, 6]);
        check(clicks.looking(), &[0; 7]);
    }

    #[test]
    fn what_a_loop_was_reported_with_counts_no_more() {
        let same = |names: &str| calls(names).says("captcha");
        check(same("a b c d") + cited() + same("e f g h"), &[0; 8]);
        check(
            same("a b c d") + cited() + same("e f g h i j"),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 6],
        );
        check(
            same("a b c d e f") + cited() + same("g"),
            &[0, 0, 0, 0, 0, 6, 7],
        );
    }

    #[test]
    fn six_different_calls_with_one_result_are_found_and_each_that_goes_on() {
        check(
            calls("a b c d e f g").says("captcha"),
            &[0, 0, 0, 0, 0, 6, 7],
        );
        marks(
            calls("a b c d e f g").says("captcha") + call("h").says("x"),
            ".....!+.",
        );
    }

    #[test]
    fn equal_calls_do_not_vary() {
        check(call("a").says("x").times(8), &[0; 8]);
        let found = (call("a").times(7) + call("b"))
            .says("x")
            .findings::<Stagnation>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(!found[0].extends);
    }

    #[test]
    fn another_result_a_failure_or_progress_starts_anew() {
        let (five, six) = (calls("a b c d e").says("x"), call("f").says("x"));
        check(five.clone() + call("y").says("y") + six.clone(), &[0; 7]);
        check(five.clone() + call("y").fails("x") + six.clone(), &[0; 7]);
        check(five.clone() + six.clone().after_progress(), &[0; 6]);
        check(five.clone() + edit("g", "1") + six.clone(), &[0; 7]);
        check(five + user() + six, &[0; 7]);
    }

    #[test]
    fn what_tells_nothing_is_not_compared() {
        marks(calls("a b c d e f g"), "???????");
        let edits: Script = ["1", "2", "3", "4", "5", "6"]
            .map(|n| edit("f", n))
            .into_iter()
            .sum();
        marks(edits, "??????");
        marks(call("a").says("x").without_args(), "?");
    }

    #[test]
    fn a_round_counts_once() {
        check(calls("a b c d e f g").says("x").round("1"), &[0; 7]);
        let round = |n: &str| (call(n) + call("z")).says("x").round(n);
        let six: Script = ["1", "2", "3", "4", "5", "6"].map(round).into_iter().sum();
        marks(six, ". . . . . ! ");
    }

    #[test]
    fn six_acts_that_leave_the_state_as_it_was_are_found() {
        check(
            calls("a b c d e f g h").state("s"),
            &[0, 0, 0, 0, 0, 0, 6, 7],
        );
        check(call("a").state("s").times(7), &[0, 0, 0, 0, 0, 0, 6]);
    }

    #[test]
    fn a_look_tells_the_state_but_is_no_act() {
        check(
            read("f").state("s") + calls("a b c d e f").state("s"),
            &[0, 0, 0, 0, 0, 0, 6],
        );
        check(read("f").state("s").times(8), &[0; 8]);
        let looks = calls("a b c d e f g") + read("f").says("text") + call("h");
        marks(looks.state("s"), "??????!=+");
    }

    #[test]
    fn another_state_starts_anew_and_an_unknown_one_does_not() {
        let six = calls("a b c d e f").state("s");
        check(
            six.clone() + call("g").state("t") + call("h").state("t"),
            &[0; 8],
        );
        check(
            six.clone() + read("f").state("t") + call("h").state("s"),
            &[0; 8],
        );
        check(
            six + call("x") + run("g").state("s"),
            &[0, 0, 0, 0, 0, 0, 0, 6],
        );
    }

    #[test]
    fn acts_of_one_round_that_leave_the_state_count_once() {
        let round = |n: &str| calls("a b c").state("s").round(n);
        let six = ["1", "2", "3", "4", "5", "6"].map(round);
        marks(six.into_iter().sum(), "???????????????!??");
    }

    #[test]
    fn evidence_names_the_events_and_what_they_say() {
        let found =
            (call("x") + calls("a b c d e f g").says("x")).findings::<Stagnation>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(found[0].name, found[1].name);
        assert_eq!(found[1].events.as_slice(), [7]);
    }

    #[test]
    fn settings_that_can_never_fire_are_refused() {
        assert!(Stagnation::check(&SETTINGS).is_ok());
        assert!(Stagnation::check(&Settings { count: 1 }).is_err());
    }
}
