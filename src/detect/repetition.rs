//! `repetition`: the text of one turn repeats itself.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count};
use crate::domain::{
    DetectorExplanation, DetectorOutcome, Finding, Observation, ObservationBody,
    RepetitionSettings, TextRepetition,
};

/// Fires when: prose repeats `count` times in a row over at least `chars`
/// characters, with any period up to 4,032 bytes. Code, tables, figures and
/// fenced text need more repetition (`text/repetition/content.rs` has the
/// thresholds), and so does text that differs only in its digits. It also fires
/// when nearly all of the latest words or sentences were written before, in any
/// order, or when the last 96 words contain only 10 different ones. The finding
/// sets the ladder level itself: WARN first, BREAK if it continues, ESCALATE if
/// that does not help.
///
/// Resets when: the text ends, another text begins, a tool is called, or a BREAK
/// was issued. The loop is remembered: the same loop in a later text starts one
/// level higher.
///
/// Cost: about 10 ns per character and at most 11 KB per text while the text is
/// streamed; nothing on other events.
///
/// Defaults: thresholds measured on 98 MB of prose, code and logs. The chunk
/// tier is a published rule, used by the profile `classic`.
#[derive(Default, Serialize, Deserialize)]
pub struct Repetition;

/// The detector needs this many repeated characters to notice a period, so a
/// shorter run can never fire.
const NOTICED_CHARS: u32 = 64;
/// Upper bound for `chunk_window`: the chunk tier stores its window as characters.
const CHUNK_WINDOW_MAX: u32 = 4_096;

impl Detector for Repetition {
    type Settings = RepetitionSettings;

    fn check(settings: &RepetitionSettings) -> Result<(), NeverFires> {
        let RepetitionSettings { count, chars, .. } = *settings;
        check_count("count", count, "copy")?;
        let repeated = chars - chars / count;
        if repeated < NOTICED_CHARS {
            let why = format!(
                "{count} copies in {chars} characters repeat only {repeated} characters; a \
                 repetition is noticed after {NOTICED_CHARS}"
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
            would_not_fire_if: "text that continues with something new",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _: &History,
        _: &RepetitionSettings,
    ) -> DetectorOutcome {
        let event = match &now.body {
            // The turn is not an event yet.
            ObservationBody::PartialText(_) => None,
            // A call ends the text, and with it a loop in that text.
            ObservationBody::Turn(_) | ObservationBody::Call(_) => Some(now.at.index),
            ObservationBody::Marker { .. } | ObservationBody::Other => {
                return DetectorOutcome::NotApplicable;
            }
        };
        now.repetition()
            .map_or(DetectorOutcome::NoMatch, |repeated| {
                DetectorOutcome::from_finding(build_finding(repeated, event))
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
        if !chunks_only {
            return Ok(());
        }
        let why = "chunk_window = 0 turns the chunk tier off, and chunks_only turns off the rest";
        return Err(NeverFires::new("chunks_only", why.to_owned()).with_other_key("chunk_window"));
    }
    if chunk_window > CHUNK_WINDOW_MAX {
        let why = format!("{chunk_window} characters, at most {CHUNK_WINDOW_MAX}");
        return Err(NeverFires::new("chunk_window", why));
    }
    let sizes_max = RepetitionSettings::CHUNK_SIZES_MAX;
    if settings.chunks.len() > sizes_max {
        let why = format!("{} sizes, at most {sizes_max}", settings.chunks.len());
        return Err(NeverFires::new("chunks", why));
    }
    check_count("chunk_count", chunk_count, "copy")?;
    if settings.chunk_sizes().next().is_none() {
        let least = settings.chunks.iter().min().copied().unwrap_or_default();
        let why = format!(
            "{chunk_count} chunks of {least} characters do not fit into chunk_window, {chunk_window}"
        );
        return Err(NeverFires::new("chunks", why).with_other_key("chunk_window"));
    }
    Ok(())
}

fn build_finding(repeated: &TextRepetition, event: Option<i32>) -> Finding {
    let events = event.into_iter().collect();
    Finding {
        period: repeated.period,
        similarity: repeated.similarity,
        confidence: repeated.similarity,
        level: Some(repeated.level),
        extends: repeated.extends,
        ..Finding::new(repeated.count, events, smallvec![repeated.loop_key])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::repetition_settings;

    #[track_caller]
    fn check(change: impl FnOnce(&mut RepetitionSettings), key: Option<&str>) {
        let mut settings = repetition_settings();
        change(&mut settings);
        let rejected_key = Repetition::check(&settings).err().map(|error| error.key);
        assert_eq!(rejected_key, key, "{settings:?}");
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
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
