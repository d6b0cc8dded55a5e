//! What kind of text is being written, and how often text of that kind must repeat.
//!
//! Code, tables and rows of digits repeat by nature, so they need more repetitions than
//! prose before they count as a loop. [`CodeDetector`] decides for the text as a whole,
//! [`FenceTracker`] follows Markdown fences, and [`UnitStats`] measures one repeated
//! unit and gives its thresholds. Cost: constant per character, linear per unit.

use serde::{Deserialize, Serialize};

use crate::domain::{EscalationLevel, RepetitionSettings};

/// The class of an ASCII byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CharClass {
    Letter,
    Digit,
    Space,
    Newline,
    /// `.`, `!`, `?`
    SentenceEnd,
    /// Frequent in code, rare in prose.
    CodeMark,
    Other,
}

pub(super) const CHAR_CLASSES: [CharClass; 256] = {
    let mut classes = [CharClass::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => CharClass::Letter,
            b'0'..=b'9' => CharClass::Digit,
            b'\n' => CharClass::Newline,
            b' ' | b'\t' | b'\r' => CharClass::Space,
            b'.' | b'!' | b'?' => CharClass::SentenceEnd,
            b'{' | b'}' | b'(' | b')' | b'[' | b']' | b';' | b'=' | b'<' | b'>' | b'"' | b'\''
            | b'|' | b'_' | b'/' | b'\\' | b'+' | b'*' | b'&' | b'$' | b'#' | b'@' | b'`' => {
                CharClass::CodeMark
            }
            _ => CharClass::Other,
        };
        byte += 1;
    }
    classes
};

/// Text is code if more than 8 in 100 of its characters other than white space are
/// [`CharClass::CodeMark`]. Measured on prose and code, this separates them best. White
/// space is left out because code is indented deeper: with it, 7 in 100 in prose would
/// correspond to 4 in 100 in code.
const CODE_PERCENT: u32 = 8;

/// Decides whether about the latest 256 bytes look like code: a moving average of the
/// share of code marks, in parts of 65,536. White space is ignored.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct CodeDetector {
    code_share: u32,
    /// Later characters that are not code marks and are not yet applied to the share. In
    /// prose they need not be: they can only lower it.
    pending_others: u32,
}

impl CodeDetector {
    #[inline]
    pub fn push(&mut self, class: CharClass) {
        match class {
            CharClass::Space | CharClass::Newline => {}
            CharClass::CodeMark => {
                self.apply_pending();
                self.code_share = self.code_share - (self.code_share >> 8) + 256;
            }
            CharClass::Letter | CharClass::Digit | CharClass::SentenceEnd | CharClass::Other => {
                self.push_others(1)
            }
        }
    }

    /// Adds `count` characters that are neither white space nor code marks.
    #[inline]
    pub fn push_others(&mut self, count: u32) {
        self.pending_others = self.pending_others.saturating_add(count);
    }

    #[inline]
    pub fn is_code(&mut self) -> bool {
        self.exceeds_threshold() && {
            self.apply_pending();
            self.exceeds_threshold()
        }
    }

    #[inline]
    fn exceeds_threshold(self) -> bool {
        self.code_share * 100 > CODE_PERCENT << 16
    }

    /// Whether a thawed share is at most the whole.
    pub fn is_consistent(self) -> bool {
        self.code_share <= 1 << 16
    }

    /// Applies the pending characters. Each lowers the share by a 256th of it, rounded
    /// down; as many as lower it by the same amount are applied in one step.
    fn apply_pending(&mut self) {
        /// Below this a loop is cheaper than a division.
        const LOOP_MAX: u32 = 16;
        let mut others = std::mem::take(&mut self.pending_others);
        while others > LOOP_MAX && self.code_share > 255 {
            let step = self.code_share >> 8;
            let batch = (self.code_share % 256 / step + 1).min(others);
            self.code_share -= batch * step;
            others -= batch;
        }
        for _ in 0..others.min(LOOP_MAX) {
            self.code_share -= self.code_share >> 8;
        }
    }
}

/// Follows Markdown fences (``` or ~~~) line by line.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct FenceTracker {
    /// The mark and its least count that close the open fence.
    open: Option<(u8, u8)>,
    line: FenceLine,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
enum FenceLine {
    #[default]
    Blank,
    /// This many spaces.
    Indented(u8),
    /// `count` marks; `bare` if only white space follows.
    Marks {
        mark: u8,
        count: u8,
        bare: bool,
    },
    Text,
}

impl FenceTracker {
    /// A deeper indent makes an indented code block, not a fence.
    const INDENT_MAX: u8 = 3;
    const MARKS_MIN: u8 = 3;

    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Reads more of the line. Only its beginning matters.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if matches!(self.line, FenceLine::Text) {
                return;
            }
            self.push_byte(*byte);
        }
    }

    /// Ends the line. Returns whether it opened or closed a fence.
    pub fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        self.apply_line(line)
    }

    fn push_byte(&mut self, byte: u8) {
        self.line = match (self.line, byte) {
            (FenceLine::Text, _) => FenceLine::Text,
            (FenceLine::Blank, b' ') => FenceLine::Indented(1),
            (FenceLine::Indented(n), b' ') if n < Self::INDENT_MAX => FenceLine::Indented(n + 1),
            (FenceLine::Blank | FenceLine::Indented(_), b'`' | b'~') => FenceLine::Marks {
                mark: byte,
                count: 1,
                bare: true,
            },
            (FenceLine::Blank | FenceLine::Indented(_), _) => FenceLine::Text,
            (
                FenceLine::Marks {
                    mark,
                    count,
                    bare: true,
                },
                _,
            ) if byte == mark => FenceLine::Marks {
                mark,
                count: count.saturating_add(1),
                bare: true,
            },
            (FenceLine::Marks { count, .. }, _) if count < Self::MARKS_MIN => FenceLine::Text,
            // A line may begin with a code span; a fence has no mark after its text.
            (FenceLine::Marks { .. }, b'`') => FenceLine::Text,
            (FenceLine::Marks { mark, count, bare }, _) => FenceLine::Marks {
                mark,
                count,
                bare: bare && byte.is_ascii_whitespace(),
            },
        };
    }

    fn apply_line(&mut self, line: FenceLine) -> bool {
        let FenceLine::Marks { mark, count, bare } = line else {
            return false;
        };
        let previous = self.open;
        match previous {
            _ if count < Self::MARKS_MIN => {}
            None => self.open = Some((mark, count)),
            Some((open, least)) if open == mark && count >= least && bare => self.open = None,
            Some(_) => {}
        }
        previous != self.open
    }
}

/// What a repeated unit consists of.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct UnitStats {
    pub chars: u32,
    letters: u32,
    digits: u32,
    code_marks: u32,
    spaces: u32,
    words: u32,
}

/// What has been read since the last white space. Only letters make a word.
enum WordState {
    None,
    Letters,
    Other,
}

/// Finds signs of code other than its punctuation, and identifiers that contain digits.
#[derive(Default)]
struct IdentifierScanner {
    last: char,
    letters: u32,
    has_digit: bool,
    /// Letters of identifiers that contain a digit.
    identifier_letters: u32,
}

impl IdentifierScanner {
    /// How many code marks the character counts for together with the previous one: `::`, a
    /// comma or semicolon at the end of a line, a capital inside a word.
    fn push(&mut self, c: char) -> u32 {
        let last = std::mem::replace(&mut self.last, c);
        if c.is_alphanumeric() {
            self.letters += u32::from(c.is_alphabetic());
            self.has_digit |= c.is_numeric();
        } else {
            self.end_name();
        }
        match (last, c) {
            (':', ':') | (',' | ';', '\n') => 2,
            _ => u32::from(last.is_lowercase() && c.is_uppercase()),
        }
    }

    fn end_name(&mut self) {
        if std::mem::take(&mut self.has_digit) {
            self.identifier_letters += self.letters;
        }
        self.letters = 0;
    }
}

impl UnitStats {
    /// Measures a unit given in any rotation, even one that splits a character.
    pub fn measure(bytes: &[u8]) -> Self {
        let mut unit = Self::default();
        // Rotate to the first byte of a character.
        let start = bytes
            .iter()
            .position(|byte| !is_continuation_byte(*byte))
            .unwrap_or(0);
        let whole = [&bytes[start..], &bytes[..start]].concat();
        let mut word = WordState::None;
        let mut identifiers = IdentifierScanner::default();
        for c in String::from_utf8_lossy(&whole).chars() {
            unit.chars += 1;
            unit.letters += u32::from(c.is_alphabetic());
            unit.code_marks += identifiers.push(c);
            word = match word {
                WordState::Letters if c.is_whitespace() || ".,;:!?".contains(c) => {
                    unit.words += 1;
                    if c.is_whitespace() {
                        WordState::None
                    } else {
                        WordState::Other
                    }
                }
                _ if c.is_whitespace() => WordState::None,
                WordState::None | WordState::Letters if c.is_alphabetic() || "'’-".contains(c) => {
                    WordState::Letters
                }
                _ => WordState::Other,
            };
            unit.digits += u32::from(c.is_numeric());
            unit.spaces += u32::from(c.is_whitespace());
            unit.code_marks +=
                u32::from(c.is_ascii() && CHAR_CLASSES[c as usize] == CharClass::CodeMark);
        }
        identifiers.end_name();
        // The letters of a hex word or an id count as digits.
        unit.letters -= identifiers.identifier_letters;
        unit.digits += identifiers.identifier_letters;
        unit
    }

    /// Whether these can be the numbers of a unit of at most this many bytes.
    pub fn is_consistent(self, bytes_max: usize) -> bool {
        // A character counts for at most three code marks.
        let counts = [self.chars, self.letters, self.digits, self.words];
        counts.iter().all(|count| *count as usize <= bytes_max)
            && self.code_marks as usize <= 3 * bytes_max
            && self.spaces <= self.chars
    }

    /// A unit that is mostly white space is indented code.
    fn is_code(self) -> bool {
        let visible = self.chars - self.spaces;
        self.code_marks * 100 > visible * CODE_PERCENT || self.spaces > visible
    }

    /// Mostly digits and separators.
    fn is_mostly_digits(self) -> bool {
        self.digits >= self.letters || self.letters * 3 < self.chars - self.spaces
    }

    /// For each level: how often the unit must occur, and over how many characters.
    pub fn thresholds(self, fenced: bool) -> [(u32, u32); 3] {
        let is_code = self.is_code();
        let thresholds = match self.letters {
            // Rulers, zeros, spaces, rows of numbers.
            _ if self.is_mostly_digits() => [(6, 1_500), (6, 3_000), (6, 6_000)],
            // Zeros in base64 are one letter without spaces.
            1..=3 if is_code || self.spaces == 0 => [(6, 600), (6, 1_200), (6, 2_400)],
            1..=3 => [(6, 300), (6, 600), (6, 1_200)],
            _ if is_code => [(6, 400), (10, 800), (20, 2_000)],
            _ => PROSE_THRESHOLDS,
        };
        if !fenced {
            return thresholds;
        }
        let fence = [(20, 2_000), (40, 4_000), (80, 8_000)];
        std::array::from_fn(|level| {
            (
                thresholds[level].0.max(fence[level].0),
                thresholds[level].1.max(fence[level].1),
            )
        })
    }

    /// The same for units that differ only in their digits. `None` for short ones, which
    /// are counters and list rows.
    pub fn digit_blind_thresholds(self, fenced: bool) -> Option<[(u32, u32); 3]> {
        // A counter or two, not rows of data or a log.
        let has_few_digits = self.digits > 0 && self.digits * LETTERS_PER_DIGIT_MIN <= self.letters;
        let is_prose = !fenced && !self.is_code() && has_few_digits;
        (is_prose && self.words >= WORDS_MIN).then_some([(8, 400), (12, 800), (24, 1_600)])
    }
}

/// Prose has at least this many letters per digit.
const LETTERS_PER_DIGIT_MIN: u32 = 4;

/// A unit that differs only in its digits is a sentence if it has this many words.
const WORDS_MIN: u32 = 6;

/// Measured on 98 MB of real text. No kind of content has lower thresholds.
const PROSE_THRESHOLDS: [(u32, u32); 3] = [(3, 150), (4, 300), (8, 800)];

pub(super) const LEVELS: [EscalationLevel; 3] = [
    EscalationLevel::Soft,
    EscalationLevel::Hard,
    EscalationLevel::Final,
];

/// The bytes that a unit of `period` bytes and `chars` characters must span to reach a
/// threshold, scaled by what the settings ask of prose.
pub(super) fn required_span(
    (count, span_chars): (u32, u32),
    period: u32,
    chars: u32,
    settings: &RepetitionSettings,
) -> u32 {
    let [(prose_count, prose_chars), ..] = PROSE_THRESHOLDS;
    let count_min = scale(count, settings.count, prose_count);
    let chars_min = scale(span_chars, settings.chars, prose_chars);
    let bytes_min = (chars_min * u64::from(period)).div_ceil(u64::from(chars.max(1)));
    let span = count_min.saturating_mul(u64::from(period)).max(bytes_min);
    u32::try_from(span).unwrap_or(u32::MAX)
}

/// `value * numerator / denominator`, rounded up.
fn scale(value: u32, numerator: u32, denominator: u32) -> u64 {
    (u64::from(value) * u64::from(numerator)).div_ceil(u64::from(denominator))
}

/// The smallest span that any unit of this period needs.
pub(super) fn required_span_min(period: u32, settings: &RepetitionSettings) -> u32 {
    required_span(PROSE_THRESHOLDS[0], period, period, settings)
}

/// Whether a byte of UTF-8 is not the first of its character.
pub(super) fn is_continuation_byte(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applying_characters_at_once_equals_applying_them_one_by_one() {
        for parts in (0..=65_536).step_by(97) {
            for others in [1, 5, 16, 17, 40, 200, 3_000] {
                let one_by_one = (0..others).fold(parts, |parts, _| parts - (parts >> 8));
                let mut detector = CodeDetector {
                    code_share: parts,
                    pending_others: others,
                };
                detector.apply_pending();
                assert_eq!(
                    (detector.code_share, detector.pending_others),
                    (one_by_one, 0)
                );
            }
        }
    }
}
