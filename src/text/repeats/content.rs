//! What kind of text is being written: the bars depend on it.

use crate::domain::{Bar, RepeatSettings};

/// What a byte of ASCII is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Letter,
    Digit,
    Space,
    Newline,
    /// `.`, `!`, `?`
    Stop,
    /// Frequent in code, rare in prose.
    Code,
    Other,
}

pub(super) const CLASSES: [Class; 256] = {
    let mut classes = [Class::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Digit,
            b'\n' => Class::Newline,
            b' ' | b'\t' | b'\r' => Class::Space,
            b'.' | b'!' | b'?' => Class::Stop,
            b'{' | b'}' | b'(' | b')' | b'[' | b']' | b';' | b'=' | b'<' | b'>' | b'"' | b'\''
            | b'|' | b'_' | b'/' | b'\\' | b'+' | b'*' | b'&' | b'$' | b'#' | b'@' | b'`' => {
                Class::Code
            }
            _ => Class::Other,
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
pub(super) struct Codeness {
    parts: u32,
    /// Characters since, none of them a mark of code, that are not taken off yet:
    /// in prose nobody asks, since it can only be less.
    others: u32,
}

impl Codeness {
    #[inline]
    pub fn push(&mut self, class: Class) {
        match class {
            Class::Space | Class::Newline => {}
            Class::Code => {
                self.settle();
                self.parts = self.parts - (self.parts >> 8) + 256;
            }
            Class::Letter | Class::Digit | Class::Stop | Class::Other => self.push_others(1),
        }
    }

    /// So many that are neither white space nor marks of code.
    #[inline]
    pub fn push_others(&mut self, count: u32) {
        self.others = self.others.saturating_add(count);
    }

    #[inline]
    pub fn is_code(&mut self) -> bool {
        self.is_above() && {
            self.settle();
            self.is_above()
        }
    }

    #[inline]
    fn is_above(self) -> bool {
        self.parts * 100 > CODE_PERCENT << 16
    }

    /// Takes the others off, each a 256th of what there is, rounded down: as long
    /// as that is the same for all of them, at once.
    fn settle(&mut self) {
        /// Of fewer a division does not pay.
        const FEW: u32 = 16;
        let mut others = std::mem::take(&mut self.others);
        while others > FEW && self.parts > 255 {
            let each = self.parts >> 8;
            let alike = (self.parts % 256 / each + 1).min(others);
            self.parts -= alike * each;
            others -= alike;
        }
        for _ in 0..others.min(FEW) {
            self.parts -= self.parts >> 8;
        }
    }
}

/// Follows the fences (``` or ~~~) of Markdown, line by line.
#[derive(Clone, Copy, Default)]
pub(super) struct Fence {
    /// What closes the fence that is open.
    open: Option<(u8, u8)>,
    line: Line,
}

#[derive(Clone, Copy, Default)]
enum Line {
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

impl Fence {
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
            if matches!(self.line, Line::Text) {
                return;
            }
            self.go_on(*byte);
        }
    }

    /// The line ends: whether a fence opens or closes here.
    pub fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        self.end(line)
    }

    fn go_on(&mut self, byte: u8) {
        self.line = match (self.line, byte) {
            (Line::Text, _) => Line::Text,
            (Line::Blank, b' ') => Line::Indented(1),
            (Line::Indented(n), b' ') if n < Self::INDENT_MAX => Line::Indented(n + 1),
            (Line::Blank | Line::Indented(_), b'`' | b'~') => Line::Marks {
                mark: byte,
                count: 1,
                bare: true,
            },
            (Line::Blank | Line::Indented(_), _) => Line::Text,
            (
                Line::Marks {
                    mark,
                    count,
                    bare: true,
                },
                _,
            ) if byte == mark => Line::Marks {
                mark,
                count: count.saturating_add(1),
                bare: true,
            },
            (Line::Marks { count, .. }, _) if count < Self::MARKS_MIN => Line::Text,
            // A code span may begin a line as well; a fence has no mark behind it.
            (Line::Marks { .. }, b'`') => Line::Text,
            (Line::Marks { mark, count, bare }, _) => Line::Marks {
                mark,
                count,
                bare: bare && byte.is_ascii_whitespace(),
            },
        };
    }

    fn end(&mut self, line: Line) -> bool {
        let Line::Marks { mark, count, bare } = line else {
            return false;
        };
        let was = self.open;
        match was {
            _ if count < Self::MARKS_MIN => {}
            None => self.open = Some((mark, count)),
            Some((open, least)) if open == mark && count >= least && bare => self.open = None,
            Some(_) => {}
        }
        was != self.open
    }
}

/// What a unit of repeated text consists of.
#[derive(Clone, Copy, Default)]
pub(super) struct Unit {
    pub chars: u32,
    letters: u32,
    digits: u32,
    codes: u32,
    spaces: u32,
    words: u32,
}

/// What stands between white space: letters alone are a word.
enum Word {
    None,
    Letters,
    Other,
}

/// Follows the names of a text for what tells code from prose beside its marks.
#[derive(Default)]
struct Name {
    last: char,
    letters: u32,
    has_digit: bool,
    /// Letters of names with a digit in them.
    figures: u32,
}

impl Name {
    /// How many marks of code the character makes with the one before: `::`, a
    /// comma or semicolon at the end of a line, a capital within a word.
    fn push(&mut self, c: char) -> u32 {
        let last = std::mem::replace(&mut self.last, c);
        if c.is_alphanumeric() {
            self.letters += u32::from(c.is_alphabetic());
            self.has_digit |= c.is_numeric();
        } else {
            self.end();
        }
        match (last, c) {
            (':', ':') | (',' | ';', '\n') => 2,
            _ => u32::from(last.is_lowercase() && c.is_uppercase()),
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.has_digit) {
            self.figures += self.letters;
        }
        self.letters = 0;
    }
}

impl Unit {
    /// `bytes` are the unit in any rotation, perhaps within a character.
    pub fn of(bytes: &[u8]) -> Self {
        let mut unit = Self::default();
        // From a character's first byte on, and round.
        let begin = bytes.iter().position(|byte| !is_inner(*byte)).unwrap_or(0);
        let mut whole = Vec::with_capacity(bytes.len());
        whole.extend_from_slice(&bytes[begin..]);
        whole.extend_from_slice(&bytes[..begin]);
        let mut word = Word::None;
        let mut name = Name::default();
        for c in String::from_utf8_lossy(&whole).chars() {
            unit.chars += 1;
            unit.letters += u32::from(c.is_alphabetic());
            unit.codes += name.push(c);
            word = match word {
                Word::Letters if c.is_whitespace() || ".,;:!?".contains(c) => {
                    unit.words += 1;
                    if c.is_whitespace() {
                        Word::None
                    } else {
                        Word::Other
                    }
                }
                _ if c.is_whitespace() => Word::None,
                Word::None | Word::Letters if c.is_alphabetic() || "'’-".contains(c) => {
                    Word::Letters
                }
                _ => Word::Other,
            };
            unit.digits += u32::from(c.is_numeric());
            unit.spaces += u32::from(c.is_whitespace());
            unit.codes += u32::from(c.is_ascii() && CLASSES[c as usize] == Class::Code);
        }
        name.end();
        // A hex word or an id is a figure, its letters too.
        unit.letters -= name.figures;
        unit.digits += name.figures;
        unit
    }

    /// Code is also what consists of indentation for the most part.
    fn is_code(self) -> bool {
        let seen = self.chars - self.spaces;
        self.codes * 100 > seen * CODE_PERCENT || self.spaces > seen
    }

    /// Mostly digits and separators.
    fn is_figures(self) -> bool {
        self.digits >= self.letters || self.letters * 3 < self.chars - self.spaces
    }

    /// How often and over how many characters the unit must stand for each bar.
    pub fn bars(self, fenced: bool) -> [(u32, u32); 3] {
        let code = self.is_code();
        let own = match self.letters {
            // Rules, zeros, spaces, rows of figures.
            _ if self.is_figures() => [(6, 1_500), (6, 3_000), (6, 6_000)],
            // Zeros in base64 are one letter as well, and have no spaces.
            1..=3 if code || self.spaces == 0 => [(6, 600), (6, 1_200), (6, 2_400)],
            1..=3 => [(6, 300), (6, 600), (6, 1_200)],
            _ if code => [(6, 400), (10, 800), (20, 2_000)],
            _ => PROSE,
        };
        if !fenced {
            return own;
        }
        let fence = [(20, 2_000), (40, 4_000), (80, 8_000)];
        std::array::from_fn(|bar| (own[bar].0.max(fence[bar].0), own[bar].1.max(fence[bar].1)))
    }

    /// The same for units that are equal but for their digits. Short ones are
    /// counters and rows of lists.
    pub fn blind_bars(self, fenced: bool) -> Option<[(u32, u32); 3]> {
        // A counter or two, not rows of data or a log.
        let counts = self.digits > 0 && self.digits * FIGURES_IN <= self.letters;
        let prose = !fenced && !self.is_code() && counts;
        (prose && self.words >= WORDS_MIN).then_some([(8, 400), (12, 800), (24, 1_600)])
    }
}

/// Prose has no more than one figure in so many letters.
const FIGURES_IN: u32 = 4;

/// A unit that differs in its digits only is a sentence from so many words on.
const WORDS_MIN: u32 = 6;

/// From 98 MB of real text; no kind of content has lower bars.
const PROSE: [(u32, u32); 3] = [(3, 150), (4, 300), (8, 800)];

pub(super) const BARS: [Bar; 3] = [Bar::Soft, Bar::Hard, Bar::Last];

/// The bytes that a unit of `period` bytes and `chars` characters must span for
/// a bar, in proportion to what the settings ask of prose.
pub(super) fn span(
    (count, least): (u32, u32),
    period: u32,
    chars: u32,
    settings: &RepeatSettings,
) -> u32 {
    let [(prose_count, prose_chars), ..] = PROSE;
    let scaled =
        |bar: u32, by: u32, of: u32| (u64::from(bar) * u64::from(by)).div_ceil(u64::from(of));
    let count = scaled(count, settings.count, prose_count);
    let least = scaled(least, settings.chars, prose_chars);
    let bytes = (least * u64::from(period)).div_ceil(u64::from(chars.max(1)));
    let span = count.saturating_mul(u64::from(period)).max(bytes);
    u32::try_from(span).unwrap_or(u32::MAX)
}

/// The least that any unit must span.
pub(super) fn least_span(period: u32, settings: &RepeatSettings) -> u32 {
    span(PROSE[0], period, period, settings)
}

/// A byte within a character, not its first.
pub(super) fn is_inner(byte: u8) -> bool {
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
                let mut codeness = Codeness { parts, others };
                codeness.settle();
                assert_eq!((codeness.parts, codeness.others), (one_by_one, 0));
            }
        }
    }
}
