use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use smallvec::smallvec;

use super::{Detector, Futile, History};
use crate::domain::{Explained, Finding, Look, Observation, Seen, Sig, Sketch};

/// Fires when `count` turns in a row are each similar to one of the `window`
/// turns before: token sets (lower case, split at white space) overlap by at
/// least `similarity` (Jaccard). The first turn counts 0.
///
/// Resets with a dissimilar turn. An empty turn neither counts nor resets. A
/// turn that differs from its like in numbers only is progress, so dissimilar:
/// "batch 12 of 500" after "batch 11 of 500". The published rule has neither
/// guard, so settings take them away.
///
/// Cost: a merge of two sorted lists for each of five turns, on turns only. The
/// numbers are those of the published rule (.85, five turns, warn at three).
#[derive(Default)]
pub struct SimilarTurns {
    streak: u32,
    /// Names the loop: the tokens of the turn that the first similar one was
    /// like.
    first: Option<Sig>,
}

/// `[detect.similar_turns]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub window: u32,
    pub similarity: f64,
    pub empty: Empty,
    /// A turn that differs from its like in numbers only is dissimilar.
    pub numbers_are_progress: bool,
}

/// What an empty turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Empty {
    /// As if it had not been made.
    Skip,
    /// A turn that is like no other.
    Reset,
}

impl Detector for SimilarTurns {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), Futile> {
        let Settings {
            count,
            window,
            similarity,
            ..
        } = *settings;
        let window_max = History::TURNS_MAX as u32;
        if count == 0 {
            return Err(Futile::new("count", "must be at least 1".to_owned()));
        }
        if window == 0 || window > window_max {
            let why = format!("{window} turns to compare with, of 1 to {window_max} that are kept");
            return Err(Futile::new("window", why));
        }
        if !(similarity > 0.0 && similarity <= 1.0) {
            let why = format!("{similarity} is not above 0 and at most 1");
            return Err(Futile::new("similarity", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> Explained {
        Explained {
            rule: "turns in a row say what was said before",
            threshold: format!(
                "{} in a row, each sharing {} or more of its words with one of the {} before",
                settings.count, settings.similarity, settings.window
            ),
            quiet: if settings.numbers_are_progress {
                "a turn that says something else, or the same of another number"
            } else {
                "a turn that says something else"
            },
        }
    }

    fn observe(&mut self, now: &Observation, past: &History, settings: &Settings) -> Look {
        let Seen::Turn(turn) = &now.seen else {
            return Look::Away;
        };
        if turn.sketch.is_empty() && settings.empty == Empty::Skip {
            return Look::Away;
        }
        let Some((similarity, like)) = most_similar(&turn.sketch, past, settings) else {
            self.reset();
            return Look::Clear;
        };
        let first = *self.first.get_or_insert_with(|| set_signature(like));
        self.streak = self.streak.saturating_add(1);
        if self.streak < settings.count {
            return Look::Clear;
        }
        let extends = self.streak > settings.count;
        let mut events = smallvec![now.at.index];
        if !extends {
            let earlier = settings.count.saturating_sub(1) as usize;
            events.extend(past.turns().take(earlier).map(|turn| turn.at.index));
            events.reverse();
        }
        Look::Found(Finding {
            count: self.streak.try_into().unwrap_or(i32::MAX),
            period: 0,
            similarity,
            confidence: similarity,
            bar: None,
            extends,
            events,
            name: smallvec![first],
            calls: smallvec![],
        })
    }

    fn reset(&mut self) {
        self.streak = 0;
        self.first = None;
    }
}

/// The most similar of the last turns, where any is similar enough.
fn most_similar<'a>(
    turn: &Sketch,
    past: &'a History,
    settings: &Settings,
) -> Option<(f64, &'a Sketch)> {
    // Where empty turns are turns, they have their places among the last.
    let begin = match settings.empty {
        Empty::Skip => 0,
        Empty::Reset => (past.turns_made() + 1).saturating_sub(settings.window),
    };
    past.turns()
        .take(settings.window as usize)
        .take_while(|earlier| earlier.number >= begin)
        .filter(|earlier| {
            let moved = differs_in_numbers_only(turn, &earlier.sketch);
            !(moved && settings.numbers_are_progress)
        })
        .map(|earlier| (jaccard(turn, &earlier.sketch), &earlier.sketch))
        .filter(|(similarity, _)| *similarity >= settings.similarity)
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

fn differs_in_numbers_only(a: &Sketch, b: &Sketch) -> bool {
    a.words == b.words && a.numbers != b.numbers
}

/// Shared tokens by all tokens; 0 for two empty turns.
fn jaccard(a: &Sketch, b: &Sketch) -> f64 {
    let (shared_words, all_words) = overlap(&a.words, &b.words, Sketch::WORDS_MAX);
    let (shared_numbers, all_numbers) = overlap(&a.numbers, &b.numbers, Sketch::NUMBERS_MAX);
    let all = all_words + all_numbers;
    if all == 0 {
        return 0.0;
    }
    f64::from(shared_words + shared_numbers) / f64::from(all)
}

/// How many hashes two sorted lists share and how many they have together. A
/// full list is a sample, so only the lowest `sample` of the union count.
fn overlap(a: &[u32], b: &[u32], sample: usize) -> (u32, u32) {
    let limit = if a.len() == sample || b.len() == sample {
        sample as u32
    } else {
        u32::MAX
    };
    let (mut i, mut j, mut shared, mut all) = (0, 0, 0, 0);
    while all < limit {
        match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) => {
                shared += u32::from(x == y);
                i += usize::from(x <= y);
                j += usize::from(y <= x);
            }
            (Some(_), None) => i += 1,
            (None, Some(_)) => j += 1,
            (None, None) => break,
        }
        all += 1;
    }
    (shared, all)
}

/// Folds the tokens, which are hashes already, into one.
fn set_signature(sketch: &Sketch) -> Sig {
    let mut hasher = DefaultHasher::new();
    sketch.words.hash(&mut hasher);
    sketch.numbers.hash(&mut hasher);
    Sig::new(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        detect::testing::{Script, call, turn, user},
        facts::{Key, Sketcher},
    };

    const SETTINGS: Settings = Settings {
        count: 3,
        window: 5,
        similarity: 0.85,
        empty: Empty::Skip,
        numbers_are_progress: true,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<SimilarTurns>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_similarity(a: &str, b: &str, expected: f64) {
        let sketch = |text| {
            let key = Key::fixed();
            let mut sketcher = Sketcher::default();
            sketcher.push(text, &key);
            sketcher.finish(&key).sketch
        };
        let similarity = jaccard(&sketch(a), &sketch(b));
        assert!((similarity - expected).abs() < 1e-9, "{similarity}");
    }

    #[test]
    fn the_overlap_is_shared_tokens_by_all_tokens() {
        check_similarity("a b c d e f", "A b C d x y", 4.0 / 8.0);
        check_similarity("a b c d e", "a b c d e f", 5.0 / 6.0);
        check_similarity("a b", "b a a", 1.0);
        check_similarity("a", "b", 0.0);
        check_similarity("", "", 0.0);
    }

    #[test]
    fn the_overlap_of_long_turns_is_estimated_from_a_sample() {
        let words = |from: u32, to: u32| -> String {
            let word = |n: u32| n.to_string().bytes().map(|d| (d + 49) as char).collect();
            (from..to).map(word).collect::<Vec<String>>().join(" ")
        };
        let key = Key::fixed();
        let sketch = |text: String| {
            let mut sketcher = Sketcher::default();
            sketcher.push(&text, &key);
            sketcher.finish(&key).sketch
        };
        let similarity = jaccard(&sketch(words(0, 4_000)), &sketch(words(400, 4_400)));
        assert!(
            (similarity - 3_600.0 / 4_400.0).abs() < 0.06,
            "{similarity}"
        );
    }

    #[test]
    fn the_first_turn_counts_zero_and_the_fourth_equal_one_is_found() {
        check(turn("let me look again").times(6), &[0, 0, 0, 3, 4, 5]);
    }

    #[test]
    fn five_sixths_stays_below() {
        check(
            turn("a b c d e") + turn("a b c d e f").times(1) + turn("a b c d e g"),
            &[0, 0, 0],
        );
    }

    #[test]
    fn a_dissimilar_turn_resets() {
        check(
            turn("x y z").times(3) + turn("something else now") + turn("x y z").times(3),
            &[0, 0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn an_empty_turn_neither_counts_nor_resets() {
        check(
            (turn("check price") + turn("")).times(4),
            &[0, 0, 0, 0, 0, 0, 3, 0],
        );
    }

    #[test]
    fn a_turn_that_differs_in_a_number_only_is_progress() {
        let batch = |n: u32| {
            turn(&format!(
                "processed batch {n} of 500 and wrote it to the table"
            ))
        };
        check((1..8).map(batch).sum(), &[0; 7]);
    }

    #[test]
    fn alternating_turns_are_seen_within_the_window() {
        check(
            (turn("ping one") + turn("pong two")).times(3),
            &[0, 0, 0, 0, 3, 4],
        );
    }

    #[test]
    fn a_user_starts_anew_and_calls_do_not() {
        check(
            turn("a b").times(3) + user() + turn("a b").times(2),
            &[0; 6],
        );
        check(
            turn("a b").times(3) + call("x") + turn("a b"),
            &[0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn evidence_names_the_turns_that_counted() {
        let found = turn("same again")
            .times(4)
            .findings::<SimilarTurns>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[0].similarity, 1.0);
    }

    #[test]
    fn settings_that_can_never_fire_are_refused() {
        let refuses = |count, window, similarity| {
            SimilarTurns::check(&Settings {
                count,
                window,
                similarity,
                ..SETTINGS
            })
            .is_err()
        };
        assert!(!refuses(3, 5, 1.0));
        assert!(refuses(0, 5, 0.85));
        assert!(refuses(3, 0, 0.85));
        assert!(refuses(3, 6, 0.85));
        assert!(refuses(3, 5, 0.0));
        assert!(refuses(3, 5, 1.01));
        assert!(refuses(3, 5, f64::NAN));
    }
}
