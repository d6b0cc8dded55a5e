use smallvec::SmallVec;

use super::{Detector, History, NeverFires};
use crate::domain::{
    DetectorExplanation, DetectorOutcome, Finding, Observation, ObservationBody,
    RepetitionSettings, TextRepetition,
};

/// The text of a turn repeats itself.
///
/// Fires when: prose stands `count` times in a row over `chars` characters, in
/// any period up to 4,032 bytes; code, tables, figures and text in a fence need
/// more (`facts/repeats/content.rs` has the bars), text that differs in its
/// digits only too. Besides, when nearly all of the latest words or sentences
/// have been written before, in any order, or when the last 96 words are but 10
/// different ones. The text decides how bad it is: a WARN, a BREAK when it goes
/// on, an ESCALATE when that does not help.
///
/// Resets when: the text ends, another begins, a tool is called, a BREAK was
/// given. The loop is remembered: the same one in a later text is a rung worse.
///
/// Cost: about 10 ns a character as it is written and at most 11 KB a text,
/// while it is written; nothing on other events.
///
/// Defaults: bars that were measured on 98 MB of prose, code and logs. The
/// chunk tier is a published rule, for the profile `classic`.
#[derive(Default)]
pub struct Repetition;

/// A period is noticed within so many characters, so no shorter run may count.
const NOTICED_CHARS: u32 = 64;
/// The window of the chunk tier is kept as characters.
const CHUNK_WINDOW_MAX: u32 = 4_096;

impl Detector for Repetition {
    type Settings = RepetitionSettings;

    fn check(settings: &RepetitionSettings) -> Result<(), NeverFires> {
        let RepetitionSettings { count, chars, .. } = *settings;
        if count < 2 {
            let why = format!("{count} copies are no repetition: at least 2 are");
            return Err(NeverFires::new("count", why));
        }
        let repeated = chars - chars / count;
        if repeated < NOTICED_CHARS {
            let why = format!(
                "{count} times over {chars} characters, only {repeated} repeat others, of the \
                 {NOTICED_CHARS} in which that is noticed"
            );
            return Err(NeverFires::new("chars", why).with_other_key("count"));
        }
        check_chunks(settings)
    }

    fn explain(settings: &RepetitionSettings) -> DetectorExplanation {
        let chunks: Vec<String> = settings
            .chunk_sizes()
            .map(|size| size.to_string())
            .collect();
        let chunks = format!(
            "{} characters {} times in the last {}",
            chunks.join(" or "),
            settings.chunk_count,
            settings.chunk_window
        );
        DetectorExplanation {
            rule: "the text of a turn repeats itself",
            threshold: if settings.chunks_only {
                chunks
            } else {
                format!(
                    "prose {} times in a row over {} characters; code, fences, rules and \
                     figures more often; or words and sentences that keep coming back",
                    settings.count, settings.chars
                )
            },
            avoided_by: "text that goes on with something new",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _: &History,
        _: &RepetitionSettings,
    ) -> DetectorOutcome {
        let event = match &now.body {
            // The turn is no event yet.
            ObservationBody::PartialText(_) => None,
            // A call ends the text, and with it a loop that stood there.
            ObservationBody::Turn(_) | ObservationBody::Call(_) => Some(now.at.index),
            ObservationBody::Marker { .. } | ObservationBody::Other => {
                return DetectorOutcome::NotApplicable;
            }
        };
        now.repetition()
            .map_or(DetectorOutcome::NoMatch, |repeated| {
                DetectorOutcome::from_finding(build_finding(repeated, event.into_iter().collect()))
            })
    }

    fn reset(&mut self) {}

    fn heap_bytes(&self) -> usize {
        0
    }
}

fn check_chunks(settings: &RepetitionSettings) -> Result<(), NeverFires> {
    let RepetitionSettings {
        chunk_count,
        chunk_window,
        chunks_only,
        ..
    } = *settings;
    if chunk_window == 0 {
        let why = "with a chunk_window of 0 there are no chunks, and nothing else is looked for";
        return match chunks_only {
            true => {
                Err(NeverFires::new("chunks_only", why.to_owned()).with_other_key("chunk_window"))
            }
            false => Ok(()),
        };
    }
    if chunk_window > CHUNK_WINDOW_MAX {
        let why = format!(
            "{chunk_window} characters are more than the {CHUNK_WINDOW_MAX} of which there is room"
        );
        return Err(NeverFires::new("chunk_window", why));
    }
    if chunk_count < 2 {
        let why = format!("{chunk_count} copies are no repetition: at least 2 are");
        return Err(NeverFires::new("chunk_count", why));
    }
    if settings.chunk_sizes().next().is_none() {
        let least = settings.chunks.iter().min().copied().unwrap_or_default();
        let why = format!(
            "{chunk_count} chunks of {least} characters do not fit into chunk_window, {chunk_window}"
        );
        return Err(NeverFires::new("chunks", why).with_other_key("chunk_window"));
    }
    Ok(())
}

fn build_finding(repeated: &TextRepetition, events: SmallVec<[i32; 8]>) -> Finding {
    Finding {
        count: repeated.count,
        period: repeated.period,
        similarity: repeated.similarity,
        confidence: repeated.similarity,
        rung: Some(repeated.rung),
        extends: repeated.extends,
        events,
        loop_key: std::iter::once(repeated.loop_key).collect(),
        calls: SmallVec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RepetitionSettings {
        RepetitionSettings {
            count: 3,
            chars: 150,
            chunks: vec![50, 80, 120],
            chunk_count: 3,
            chunk_window: 0,
            chunks_only: false,
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut RepetitionSettings), key: Option<&str>) {
        let mut settings = settings();
        change(&mut settings);
        let refused = Repetition::check(&settings).err().map(|futile| futile.key);
        assert_eq!(refused, key, "{settings:?}");
    }

    #[test]
    fn settings_that_can_never_fire_are_refused() {
        check(|_| {}, None);
        check(|s| s.count = 1, Some("count"));
        check(|s| s.chars = 90, Some("chars"));
        check(|s| (s.count, s.chars) = (2, 128), None);
        check(|s| s.chunk_window = 200, None);
        check(|s| s.chunk_window = 149, Some("chunks"));
        check(|s| s.chunk_window = 5_000, Some("chunk_window"));
        check(
            |s| (s.chunk_window, s.chunk_count) = (200, 1),
            Some("chunk_count"),
        );
        check(|s| s.chunks_only = true, Some("chunks_only"));
        check(|s| (s.chunks_only, s.chunk_window) = (true, 200), None);
    }
}
