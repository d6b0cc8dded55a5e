//! What kind of text is being written: the bars depend on it.

use crate::domain::{LadderRung, RepetitionSettings};

/// What a byte of ASCII is.
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

/// More than 8 in 100 characters of [`Class::Code`], white space apart: measured
/// on prose and code, it tells one from the other best. (White space counted, as
/// code is indented deeper, 7 in 100 of prose would be 4 of code.)
const CODE_PERCENT: u32 = 8;

/// Whether the latest 256 bytes or so look like code: a moving average, in
/// parts of 65,536. White space says nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct CodeDetector {
    code_share: u32,
    /// Characters since, none of them a mark of code, that are not taken off yet:
    /// in prose nobody asks, since it can only be less.
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

    /// So many that are neither white space nor marks of code.
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

    /// Takes the others off, each a 256th of what there is, rounded down: as long
    /// as that is the same for all of them, at once.
    fn apply_pending(&mut self) {
        /// Of fewer a division does not pay.
        const LOOP_MAX: u32 = 16;
        let mut others = std::mem::take(&mut self.pending_others);
        while others > LOOP_MAX && self.code_share > 255 {
            let each = self.code_share >> 8;
            let batch = (self.code_share % 256 / each + 1).min(others);
            self.code_share -= batch * each;
            others -= batch;
        }
        for _ in 0..others.min(LOOP_MAX) {
            self.code_share -= self.code_share >> 8;
        }
    }
}

/// Follows the fences (``` or ~~~) of Markdown, line by line.
#[derive(Clone, Copy, Default)]
pub(super) struct FenceTracker {
    /// What closes the fence that is open.
    open: Option<(u8, u8)>,
    line: FenceLine,
}

#[derive(Clone, Copy, Default)]
enum FenceLine {
    /// So many spaces.
    #[default]
    Blank,
    Indented(u8),
    /// So many of the mark, and whether white space alone follows.
    Marks {
        mark: u8,
        count: u8,
        bare: bool,
    },
    Text,
}

impl FenceTracker {
    /// Deeper is an indented code block.
    const INDENT_MAX: u8 = 3;
    const MARKS_MIN: u8 = 3;

    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The line goes on. Only its beginning is looked at.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if matches!(self.line, FenceLine::Text) {
                return;
            }
            self.push_byte(*byte);
        }
    }

    /// The line ends: whether a fence opens or closes here.
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
            // A code span may begin a line as well; a fence has no mark behind it.
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

/// What a unit of repeated text consists of.
#[derive(Clone, Copy, Default)]
pub(super) struct UnitStats {
    pub chars: u32,
    letters: u32,
    digits: u32,
    code_marks: u32,
    spaces: u32,
    words: u32,
}

/// What stands between white space: letters alone are a word.
enum WordState {
    None,
    Letters,
    Other,
}

/// Follows the names of a text for what tells code from prose beside its marks.
#[derive(Default)]
struct IdentifierScanner {
    last: char,
    letters: u32,
    has_digit: bool,
    /// Letters of names with a digit in them.
    identifier_letters: u32,
}

impl IdentifierScanner {
    /// How many marks of code the character makes with the one before: `::`, a
    /// comma or semicolon at the end of a line, a capital within a word.
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
    /// `bytes` are the unit in any rotation, perhaps within a character.
    pub fn measure(bytes: &[u8]) -> Self {
        let mut unit = Self::default();
        // From a character's first byte on, and round.
        let begin = bytes
            .iter()
            .position(|byte| !is_continuation_byte(*byte))
            .unwrap_or(0);
        let mut whole = Vec::with_capacity(bytes.len());
        whole.extend_from_slice(&bytes[begin..]);
        whole.extend_from_slice(&bytes[..begin]);
        let mut word = WordState::None;
        let mut name = IdentifierScanner::default();
        for c in String::from_utf8_lossy(&whole).chars() {
            unit.chars += 1;
            unit.letters += u32::from(c.is_alphabetic());
            unit.code_marks += name.push(c);
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
        name.end_name();
        // A hex word or an id is a figure, its letters too.
        unit.letters -= name.identifier_letters;
        unit.digits += name.identifier_letters;
        unit
    }

    /// Code is also what consists of indentation for the most part.
    fn is_code(self) -> bool {
        let visible = self.chars - self.spaces;
        self.code_marks * 100 > visible * CODE_PERCENT || self.spaces > visible
    }

    /// Mostly digits and separators.
    fn is_mostly_digits(self) -> bool {
        self.digits >= self.letters || self.letters * 3 < self.chars - self.spaces
    }

    /// How often and over how many characters the unit must stand for each bar.
    pub fn thresholds(self, fenced: bool) -> [(u32, u32); 3] {
        let code = self.is_code();
        let thresholds = match self.letters {
            // Rules, zeros, spaces, rows of figures.
            _ if self.is_mostly_digits() => [(6, 1_500), (6, 3_000), (6, 6_000)],
            // Zeros in base64 are one letter as well, and have no spaces.
            1..=3 if code || self.spaces == 0 => [(6, 600), (6, 1_200), (6, 2_400)],
            1..=3 => [(6, 300), (6, 600), (6, 1_200)],
            _ if code => [(6, 400), (10, 800), (20, 2_000)],
            _ => PROSE_THRESHOLDS,
        };
        if !fenced {
            return thresholds;
        }
        let fence = [(20, 2_000), (40, 4_000), (80, 8_000)];
        std::array::from_fn(|bar| {
            (
                thresholds[bar].0.max(fence[bar].0),
                thresholds[bar].1.max(fence[bar].1),
            )
        })
    }

    /// The same for units that are equal but for their digits. Short ones are
    /// counters and rows of lists.
    pub fn digit_blind_thresholds(self, fenced: bool) -> Option<[(u32, u32); 3]> {
        // A counter or two, not rows of data or a log.
        let counts = self.digits > 0 && self.digits * LETTERS_PER_DIGIT_MIN <= self.letters;
        let prose = !fenced && !self.is_code() && counts;
        (prose && self.words >= WORDS_MIN).then_some([(8, 400), (12, 800), (24, 1_600)])
    }
}

/// Prose has no more than one figure in so many letters.
const LETTERS_PER_DIGIT_MIN: u32 = 4;

/// A unit that differs in its digits only is a sentence from so many words on.
const WORDS_MIN: u32 = 6;

/// From 98 MB of real text; no kind of content has lower bars.
const PROSE_THRESHOLDS: [(u32, u32); 3] = [(3, 150), (4, 300), (8, 800)];

pub(super) const LEVELS: [LadderRung; 3] = [LadderRung::Soft, LadderRung::Hard, LadderRung::Final];

/// The bytes that a unit of `period` bytes and `chars` characters must span for
/// a bar, in proportion to what the settings ask of prose.
pub(super) fn required_span(
    (count, least): (u32, u32),
    period: u32,
    chars: u32,
    settings: &RepetitionSettings,
) -> u32 {
    let [(prose_count, prose_chars), ..] = PROSE_THRESHOLDS;
    let scaled =
        |bar: u32, by: u32, of: u32| (u64::from(bar) * u64::from(by)).div_ceil(u64::from(of));
    let count = scaled(count, settings.count, prose_count);
    let least = scaled(least, settings.chars, prose_chars);
    let bytes = (least * u64::from(period)).div_ceil(u64::from(chars.max(1)));
    let span = count.saturating_mul(u64::from(period)).max(bytes);
    u32::try_from(span).unwrap_or(u32::MAX)
}

/// The least that any unit must span.
pub(super) fn required_span_min(period: u32, settings: &RepetitionSettings) -> u32 {
    required_span(PROSE_THRESHOLDS[0], period, period, settings)
}

/// A byte within a character, not its first.
pub(super) fn is_continuation_byte(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_off_at_once_is_what_is_taken_off_one_by_one() {
        for parts in (0..=65_536).step_by(97) {
            for others in [1, 5, 16, 17, 40, 200, 3_000] {
                let one_by_one = (0..others).fold(parts, |parts, _| parts - (parts >> 8));
                let mut codeness = CodeDetector {
                    code_share: parts,
                    pending_others: others,
                };
                codeness.apply_pending();
                assert_eq!(
                    (codeness.code_share, codeness.pending_others),
                    (one_by_one, 0)
                );
            }
        }
    }
}
