//! Tests of the tracker as a whole, and of its parts against exhaustive searches.

use super::{content::LEVELS, period::PERIOD_MAX, *};
use proptest::prelude::*;

use crate::testing::repetition_settings;

fn classic() -> RepetitionSettings {
    RepetitionSettings {
        chunk_window: 200,
        chunks_only: true,
        ..repetition_settings()
    }
}

/// The findings in a text that is pushed in pieces of `piece_chars` characters, each with
/// the number of characters pushed before it was reported.
fn findings(
    text: &str,
    piece_chars: usize,
    settings: &RepetitionSettings,
) -> Vec<(usize, TextRepetition)> {
    let mut tracker = RepetitionTracker::default();
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let mut findings = Vec::new();
    for piece in chars.chunks(piece_chars) {
        at += piece.len();
        let repetition = tracker.push(&String::from_iter(piece), settings, &HashKey::fixed());
        findings.extend(repetition.map(|repetition| (at, repetition)));
    }
    findings
}

/// The character at which each level is first reached.
fn levels(text: &str) -> Vec<(EscalationLevel, usize)> {
    let mut levels: Vec<(EscalationLevel, usize)> = Vec::new();
    for (at, repetition) in findings(text, 1, &repetition_settings()) {
        if levels
            .last()
            .is_none_or(|(level, _)| *level < repetition.level)
        {
            levels.push((repetition.level, at));
        }
    }
    levels
}

#[track_caller]
fn first(text: &str) -> TextRepetition {
    let findings = findings(text, 1, &repetition_settings());
    findings.into_iter().next().expect("a finding").1
}

#[test]
fn prose_is_soft_at_3_copies_over_150_characters_then_hard_at_4_and_final_at_8() {
    let text = "Wait, but the test still fails, so the mock must be wrong. ".repeat(20);
    assert_eq!(
        levels(&text),
        [
            (EscalationLevel::Soft, 177),
            (EscalationLevel::Hard, 300),
            (EscalationLevel::Final, 800)
        ]
    );
    let word = "exactly ".repeat(150);
    assert_eq!(
        levels(&word),
        [
            (EscalationLevel::Soft, 150),
            (EscalationLevel::Hard, 300),
            (EscalationLevel::Final, 800)
        ]
    );
}

#[test]
fn a_finding_has_the_unit_its_count_and_its_start() {
    let text = format!(
        "Let me see: {}",
        "I will check it once more now. ".repeat(6)
    );
    let repeated = first(&text);
    assert_eq!(&*repeated.unit, "I will check it once more now.");
    assert_eq!((repeated.count, repeated.period), (4, 31));
    // The white space before the unit is repeated as well.
    assert_eq!(repeated.start_char, 11);
    assert_eq!(repeated.similarity, 1.0);
}

#[test]
fn characters_are_counted_not_bytes() {
    let text = "設定ファイルをもう一度確認してから、次の手順に進みます。".repeat(20);
    assert_eq!(levels(&text)[0], (EscalationLevel::Soft, 150));
    let repeated = first(&text);
    assert_eq!(
        (repeated.count, repeated.period, repeated.start_char),
        (5, 28, 0)
    );
}

#[test]
fn a_unit_has_one_loop_key_wherever_it_starts() {
    let unit = "go back and look at the log of the worker again, ";
    let rotated = format!("{}{}", &unit[20..], &unit[..20]);
    let other = "go back and look at the log of the server again, ";
    let loop_key = |unit: &str| first(&unit.repeat(8)).loop_key;
    assert_eq!(loop_key(unit), loop_key(&rotated));
    assert_ne!(loop_key(unit), loop_key(other));
}

#[test]
fn a_counter_is_one_loop_however_many_digits_it_has() {
    let line = |n| format!("Attempt {n} failed, I will try the same command again.\n");
    let text: String = (0..200).map(line).collect();
    let findings = findings(&text, 1, &repetition_settings());
    let (_, first) = &findings[0];
    assert_eq!((first.count, first.similarity), (8, 0.9));
    assert!(
        findings
            .iter()
            .all(|(_, other)| other.loop_key == first.loop_key)
    );
}

#[test]
fn a_long_period_of_digits_is_found() {
    let unit = "31415926535897932384626433832795028841971693993751";
    let finding = first(&unit.repeat(40));
    assert_eq!((finding.count, finding.period), (30, 50));
    // Digits that do not repeat are no loop, whatever their number.
    let digits: String = (0..4_000_u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).to_string())
        .collect();
    assert!(findings(&digits, 400, &repetition_settings()).is_empty());
}

#[test]
fn invisible_characters_make_no_difference() {
    let text = "I am sure that this is the right file, let me open it. ".repeat(20);
    let hidden: String = text
        .chars()
        .enumerate()
        .flat_map(|(n, c)| [Some(c), (n % 7 == n / 90).then_some('\u{200b}')])
        .flatten()
        .collect();
    let without_offsets = |text: &str| -> Vec<TextRepetition> {
        let findings = findings(text, 1, &repetition_settings());
        findings
            .into_iter()
            .map(|(_, repetition)| repetition)
            .collect()
    };
    assert_eq!(without_offsets(&hidden), without_offsets(&text));
}

#[test]
fn a_loop_found_before_a_restart_is_extended_after_it() {
    let text = "I am sure that this is the right file, let me open it. ".repeat(6);
    let mut tracker = RepetitionTracker::default();
    let key = HashKey::fixed();
    let before = tracker.push(&text, &repetition_settings(), &key).unwrap();
    tracker.restart();
    let after = tracker.push(&text, &repetition_settings(), &key).unwrap();
    assert_eq!((before.extends, after.extends), (false, true));
    assert_eq!(
        (before.loop_key, before.start_char),
        (after.loop_key, after.start_char)
    );
}

#[test]
fn both_ends_of_a_whole_text_are_read() {
    let unit = "This is the last thing that I have to say about it. ";
    let fresh: String = (0..16_000).map(|n| format!("{:x} ", n * 7_919)).collect();
    let at_end = format!("{fresh}{}", unit.repeat(20));
    assert!(at_end.len() > 64 * 1_024);
    let key = HashKey::fixed();
    let last = RepetitionTracker::default()
        .push(&at_end, &repetition_settings(), &key)
        .expect("a finding at the end");
    // The white space before the unit is repeated as well.
    assert_eq!(last.start_char as usize, fresh.len() - 1);
    let at_start = format!("{}{fresh}", unit.repeat(20));
    let first = RepetitionTracker::default()
        .push(&at_start, &repetition_settings(), &key)
        .expect("a finding at the start");
    assert_eq!((first.start_char, first.loop_key), (0, last.loop_key));
    assert_eq!(
        RepetitionTracker::default().push(&fresh, &repetition_settings(), &key),
        None
    );
}

#[test]
fn a_tracker_stays_within_its_memory_bound() {
    const BYTES_MAX: usize = 11 * 1_024;
    let mut tracker = RepetitionTracker::default();
    let settings = RepetitionSettings {
        chunks_only: false,
        ..classic()
    };
    assert_eq!(tracker.heap_bytes(), 0);
    for n in 0..400 {
        let piece = format!("word{n} of {}. 「{}」\n", n % 17, "loop ".repeat(n % 40));
        tracker.push(&piece, &settings, &HashKey::fixed());
        let chunks = tracker.chunks.heap_bytes();
        assert!(tracker.heap_bytes() - chunks + size_of::<RepetitionTracker>() <= BYTES_MAX);
        assert!(chunks <= 4 * 1_024);
    }
}

#[test]
fn recurring_sentences_have_the_right_start_in_a_long_text() {
    // More new sentences than are kept, then some others that recur.
    let fresh: String = (0..200).map(|n| format!("{}. ", fresh_words(n))).collect();
    let known: Vec<String> = (900..907).map(fresh_words).collect();
    let order = [
        0, 3, 5, 1, 6, 2, 4, 2, 0, 6, 4, 1, 5, 3, 6, 1, 3, 0, 2, 5, 4,
    ];
    let recurring: String = order
        .iter()
        .cycle()
        .take(80)
        .map(|n| known[*n].clone() + ". ")
        .collect();
    let finding = first(&(fresh.clone() + &recurring));
    assert_eq!(finding.period, 0);
    assert!(
        finding.start_char as usize >= fresh.len() - 400,
        "{}",
        finding.start_char
    );
}

/// A different sentence for each number.
fn fresh_words(n: u32) -> String {
    let word = |k: u32| {
        let letter = |i: u32| char::from(b'a' + ((n / 26u32.pow(i) + k * 7) % 26) as u8);
        (0..4).map(letter).chain(['x'; 2]).collect::<String>()
    };
    (0..6).map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_endless_word_does_not_overflow() {
    let mut tracker = RepetitionTracker::default();
    for _ in 0..80 {
        let piece: String = (0..1_000u32)
            .map(|n| char::from(b'a' + (n * n % 23) as u8))
            .collect();
        tracker.push(&piece, &repetition_settings(), &HashKey::fixed());
    }
}

/// The specification of [`PeriodTracker`]: tries every period at each byte.
struct NaivePeriods {
    text: Vec<u8>,
    exact: Vec<u32>,
    blind: Vec<u32>,
}

impl NaivePeriods {
    /// The highest level that any primitive period reaches at this byte.
    fn push(&mut self, byte: u8, settings: &RepetitionSettings) -> Option<EscalationLevel> {
        let fold = |byte: u8| if byte.is_ascii_digit() { b'0' } else { byte };
        let at = self.text.len();
        self.text.push(byte);
        let mut strongest = None;
        for period in 1..=at.min(PERIOD_MAX) {
            let before = self.text[at - period];
            self.exact[period] = if before == byte {
                self.exact[period] + 1
            } else {
                0
            };
            self.blind[period] = if fold(before) == fold(byte) {
                self.blind[period] + 1
            } else {
                0
            };
            let span = period as u32;
            if self.blind[period] + span < content::required_span_min(span, settings) {
                continue;
            }
            let unit = &self.text[at + 1 - period..];
            let folded: Vec<u8> = unit.iter().map(|byte| fold(*byte)).collect();
            let measured = content::UnitStats::measure(unit);
            let top = |run: u32, thresholds: [(u32, u32); 3]| {
                let is_passed = |threshold| {
                    run + span >= content::required_span(threshold, span, measured.chars, settings)
                };
                let highest = thresholds.into_iter().rposition(is_passed);
                highest.map(|level| LEVELS[level])
            };
            if is_primitive(unit) {
                strongest = strongest.max(top(self.exact[period], measured.thresholds(false)));
            }
            if let Some(thresholds) = measured
                .digit_blind_thresholds(false)
                .filter(|_| is_primitive(&folded))
            {
                strongest = strongest.max(top(self.blind[period], thresholds));
            }
        }
        strongest
    }
}

fn is_primitive(unit: &[u8]) -> bool {
    let is_period = |part: usize| unit[part..].iter().zip(unit).all(|(a, b)| a == b);
    !(1..=unit.len() / 2).any(|part| unit.len().is_multiple_of(part) && is_period(part))
}

/// Texts that often repeat: units of any length, cut off anywhere, with changed digits
/// and new text between.
fn loops() -> impl Strategy<Value = String> {
    let unit = prop_oneof![
        "[a-c ]{1,6}",
        "[a-z ,.]{5,40}",
        "[a-z]{2,7}( [a-z]{2,7}){5,12}[.]\n",
        "[a-z{}();= ]{10,60}",
        "[0-9,]{3,20}",
        "[a-zé漢字 ]{3,30}",
    ];
    let run = (unit, 1..40usize, 0..40usize).prop_map(|(unit, copies, cut)| {
        let text = unit.repeat(copies);
        let end = text.floor_char_boundary(text.len().saturating_sub(cut));
        text[..end].to_owned()
    });
    let counted = ("[a-z]{3,8}", "( [a-z]{2,6}){6,9}", 1..30u32)
        .prop_map(|(a, b, n)| (0..n).map(|n| format!("{a} {}{b}\n", n % 10)).collect());
    let fresh = "[a-z]{2,9}( [a-z]{2,9}){0,12}[.] ";
    let part = prop_oneof![run, counted, fresh.prop_map(String::from)];
    prop::collection::vec(part, 1..6).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// No period is missed or reported late.
    #[test]
    fn periods_are_found_where_an_exhaustive_search_finds_them(text in loops()) {
        let settings = repetition_settings();
        let text = &text.as_bytes()[..text.len().min(2_000)];
        let mut naive = NaivePeriods {
            text: Vec::new(),
            exact: vec![0; PERIOD_MAX + 1],
            blind: vec![0; PERIOD_MAX + 1],
        };
        let mut periods = period::PeriodTracker::default();
        let (mut expected, mut strongest) = (None, None);
        for (at, byte) in text.iter().enumerate() {
            expected = expected.max(naive.push(*byte, &settings));
            periods.push_byte(*byte, &settings);
            if periods.is_due() {
                let passed = periods.check_due_runs(false, &settings);
                strongest = strongest.max(passed.map(|passed| passed.level));
            }
            prop_assert_eq!(strongest, expected, "at byte {}", at);
        }
    }

    #[test]
    fn how_a_text_is_cut_makes_no_difference(
        text in loops(),
        cuts in prop::collection::vec(1..50usize, 1..400),
    ) {
        let one_by_one = findings(&text, 1, &repetition_settings());
        let chars: Vec<char> = text.chars().collect();
        let mut tracker = RepetitionTracker::default();
        let mut at = 0;
        for cut in cuts.into_iter().chain([chars.len()]) {
            let end = (at + cut).min(chars.len());
            let piece: String = chars[at..end].iter().collect();
            let together = tracker.push(&piece, &repetition_settings(), &HashKey::fixed());
            let apart = one_by_one.iter().filter(|(found_at, _)| (at + 1..=end).contains(found_at));
            let first_of_strongest = apart.map(|(_, repetition)| repetition).reduce(|best, other| {
                if other.level > best.level { other } else { best }
            });
            // `extends` depends on what was reported in the same push.
            let comparable = |repetition: &TextRepetition| TextRepetition { extends: false, ..repetition.clone() };
            prop_assert_eq!(together.as_ref().map(comparable), first_of_strongest.map(comparable));
            at = end;
        }
    }

    #[test]
    fn the_chunk_rule_fires_whenever_its_source_does_and_no_later(
        text in chunky(),
        piece in 1..30usize,
    ) {
        // A text that costs too much to search is not searched to its end.
        let mut tracker = RepetitionTracker::default();
        tracker.push(&text, &classic(), &HashKey::fixed());
        prop_assume!(!tracker.take_work_limited());
        let ours = findings(&text, 1, &classic()).first().map(|(at, _)| *at);
        let chars: Vec<char> = text.chars().collect();
        let ends = (piece..=chars.len()).step_by(piece);
        let theirs = ends.map(|end| &chars[..end]).find(|text| source_fires(text));
        if let Some(theirs) = theirs {
            prop_assert!(ours.is_some_and(|ours| ours <= theirs.len()), "{:?}", ours);
        }
    }
}

/// The source's rule: at each delta, whether any 50 characters of the last 200 occur
/// there three times without overlapping.
fn source_fires(text: &[char]) -> bool {
    let window = &text[text.len().saturating_sub(200)..];
    window.windows(50).any(|pattern| {
        let (mut count, mut at) = (0, 0);
        while at + 50 <= window.len() {
            let same = &window[at..at + 50] == pattern;
            count += usize::from(same);
            at += if same { 50 } else { 1 };
        }
        count >= 3
    })
}

/// Texts with periods around those that the chunk rule finds.
fn chunky() -> impl Strategy<Value = String> {
    let run = ("[a-zé .]{8,90}", 1..12usize).prop_map(|(unit, copies)| unit.repeat(copies));
    let part = prop_oneof![run, "[a-z ]{1,60}".prop_map(String::from)];
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.concat())
}

#[test]
fn the_chunk_rule_has_the_limits_of_its_source() {
    let fires = |period: usize| {
        let unit: String = ('a'..='z').cycle().step_by(7).take(period - 1).collect();
        let unit = format!("{unit}#");
        findings(&unit.repeat(30), 1, &classic())
            .first()
            .map(|(at, repetition)| (*at, repetition.count))
    };
    assert_eq!(fires(50), Some((150, 3)));
    assert_eq!(fires(75), Some((200, 3)));
    assert_eq!(fires(76), None, "the window does not hold it");
    assert_eq!(fires(38), None, "copies that overlap count once");
    assert_eq!(fires(37), Some((198, 3)));
}

#[test]
fn a_chunk_that_goes_on_escalates_window_by_window() {
    let text = "this is a sentence of exactly fifty characters ok ".repeat(40);
    let levels: Vec<_> = findings(&text, 1, &classic())
        .into_iter()
        .map(|(at, repetition)| (repetition.level, at))
        .collect();
    assert_eq!(
        levels,
        [
            (EscalationLevel::Soft, 150),
            (EscalationLevel::Hard, 350),
            (EscalationLevel::Final, 950)
        ]
    );
}

#[test]
fn the_first_and_the_last_32_kib_of_a_long_piece_are_read() {
    /// Words that never recur.
    fn prose(bytes: usize) -> String {
        let mut seed = 7_u64;
        let mut letter = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'a' + (seed >> 33) as u8 % 26)
        };
        let words = (0..bytes / 8).map(|_| (0..7).map(|_| letter()).chain([' ']).collect());
        words.collect::<Vec<String>>().concat()
    }
    let is_found = |before: usize, after: usize| {
        let copies = "Wait, but the test still fails, so the mock must be wrong. ".repeat(8);
        let text = [prose(before), copies, prose(after)].concat();
        let mut tracker = RepetitionTracker::default();
        tracker
            .push(&text, &repetition_settings(), &HashKey::fixed())
            .is_some()
    };
    assert!(is_found(32_000, 100_000));
    assert!(!is_found(33_000, 100_000));
    assert!(is_found(100_000, 32_000));
    assert!(!is_found(100_000, 33_000));
}
