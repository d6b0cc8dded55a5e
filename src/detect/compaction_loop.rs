use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

use super::{Detector, Futile, History, streak::Streak};
use crate::domain::{Explained, Look, MarkerKind, Observation, Seen, Sig};

/// Fires when the context is summarised `count` times in a row with no tool call
/// between, or without progress and ending at the same size each time: what is
/// kept fills the context, and the agent no longer gets to work.
///
/// Resets with a tool call, or for the second with progress or another size.
///
/// Cost: a comparison a marker. Three: one that fails and one more try are
/// ordinary.
#[derive(Default)]
pub struct CompactionLoop {
    idle: Streak,
    last: Option<(i32, u32)>,
    stuck: Streak,
}

/// `[detect.compaction_loop]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
}

/// Sizes within a hundredth of each other are the same.
const SIZE_TOLERANCE: u32 = 100;

impl Detector for CompactionLoop {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), Futile> {
        if settings.count < 2 {
            let why = format!("{} compactions are no loop: at least 2 are", settings.count);
            return Err(Futile::new("count", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> Explained {
        Explained {
            rule: "the context is summarised again and again, and no work comes between",
            threshold: format!(
                "{} in a row with no tool call between, or with no progress and to the same size",
                settings.count
            ),
            quiet: "progress between, or a tool call and another size",
        }
    }

    fn observe(&mut self, now: &Observation, _past: &History, settings: &Settings) -> Look {
        let (kind, size) = match &now.seen {
            Seen::Marker {
                kind,
                context_tokens,
            } => (*kind, *context_tokens),
            Seen::Call(_) => {
                self.idle.clear();
                return Look::Away;
            }
            Seen::Turn(_) | Seen::Text(_) | Seen::Other => return Look::Away,
        };
        if kind != MarkerKind::Compaction {
            return Look::Away;
        }
        self.idle.push(now.at, None);
        let same = self.last.is_some_and(|(last, progress)| {
            let near = size.abs_diff(last) <= last.unsigned_abs() / SIZE_TOLERANCE;
            size > 0 && progress == now.at.progress && near
        });
        self.last = Some((size, now.at.progress));
        if same {
            self.stuck.push(now.at, None);
        } else {
            self.stuck.restart(now.at, None);
        }
        let found = self.idle.finding(settings.count);
        match found.or_else(|| self.stuck.finding(settings.count)) {
            Some(mut finding) => {
                finding.name = [name()].into_iter().collect();
                Look::Found(finding)
            }
            None => Look::Clear,
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// All compaction loops of an agent are one loop.
fn name() -> Sig {
    let mut hasher = DefaultHasher::new();
    "compaction".hash(&mut hasher);
    Sig::new(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, compaction, compaction_to, edit, read, turn, user};

    const SETTINGS: Settings = Settings { count: 3 };

    #[track_caller]
    fn marks(script: Script, expected: &str) {
        assert_eq!(script.marks::<CompactionLoop>(&SETTINGS), expected);
    }

    #[test]
    fn three_in_a_row_are_found_and_each_that_goes_on() {
        let script = compaction().times(4);
        assert_eq!(script.counts::<CompactionLoop>(&SETTINGS), [0, 0, 3, 4]);
        marks(compaction().times(4), "..!+");
    }

    #[test]
    fn talk_between_is_no_work_and_a_call_is() {
        marks((compaction() + turn("on we go")).times(3), ". . ! ");
        marks((compaction() + call("a")).times(4), ". . . . ");
    }

    #[test]
    fn ending_at_the_same_size_without_progress_is_found() {
        let lap = |tokens| read("f") + compaction_to(tokens);
        marks(
            [90_000, 90_500, 89_900, 90_100].map(lap).into_iter().sum(),
            " . . ! +",
        );
        marks(
            [90_000, 80_000, 90_000, 80_000].map(lap).into_iter().sum(),
            " . . . .",
        );
    }

    #[test]
    fn progress_between_makes_it_work() {
        let lap = |n: &str| edit("f", n) + compaction_to(90_000);
        marks(["1", "2", "3", "4"].map(lap).into_iter().sum(), " . . . .");
    }

    #[test]
    fn unknown_and_absurd_sizes_are_not_compared() {
        let lap = |tokens| read("f") + compaction_to(tokens);
        marks([0, 0, 0, 0].map(lap).into_iter().sum(), " . . . .");
        marks(
            [i32::MIN, i32::MAX, i32::MIN, -1]
                .map(lap)
                .into_iter()
                .sum(),
            " . . . .",
        );
    }

    #[test]
    fn a_user_starts_anew() {
        marks(compaction().times(2) + user() + compaction(), ".. .");
    }

    #[test]
    fn evidence_names_the_compactions() {
        let found = (call("a") + compaction().times(4)).findings::<CompactionLoop>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[1].events.as_slice(), [4]);
        assert_eq!(found[0].name, found[1].name);
    }

    #[test]
    fn settings_that_can_never_fire_are_refused() {
        assert!(CompactionLoop::check(&SETTINGS).is_ok());
        assert!(CompactionLoop::check(&Settings { count: 1 }).is_err());
    }
}
