//! Scans cleaned text once from left to right and replaces noise.
//!
//! Errors are scanned word by word, because the words before a number determine its
//! meaning. Results use the same scanner but skip to candidates (`results`). Cost: one
//! table lookup per byte of an error, plus a recogniser for each word that may begin
//! noise.

use super::cursor::Cursor;
use super::error_numbers::{NumberRole, classify_number};
use super::media::MediaScanner;
use super::noise_candidates::NoiseCandidates;
use super::{MaskKind, PLACEHOLDER, PrecedingWord, datetime, ephemeral, ids, results};
use std::ops::Range;

/// Replaces a path below a temporary directory.
pub const TEMP_PLACEHOLDER: &[u8] = b"<tmp>";

const LETTER: u8 = 1;
const DIGIT: u8 = 2;
/// The byte may begin something other than a word.
const SIGN: u8 = 4;

/// The class of each byte. A table, because the class is needed for every byte.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 128u8 {
        if byte.is_ascii_alphabetic() {
            classes[byte as usize] = LETTER;
        } else if byte.is_ascii_digit() {
            classes[byte as usize] = DIGIT;
        } else if matches!(byte, b'\n' | b'/' | b'=' | b'!' | b'<' | b'>') {
            classes[byte as usize] = SIGN;
        }
        byte += 1;
    }
    classes
};

/// The class of the byte at `at`. Past the end it is `SIGN`.
fn class_at(text: &[u8], at: usize) -> u8 {
    let byte = text.get(at);
    byte.map_or(SIGN, |byte| CLASSES[usize::from(*byte)])
}

/// Calls `out` with the pieces of the masked text. `text` is modified in place. Returns
/// whether it may contain media.
pub fn scan(
    text: &mut [u8],
    candidates: Option<NoiseCandidates>,
    kind: MaskKind,
    out: &mut impl FnMut(&[u8]),
) -> bool {
    let mut scan = Scanner {
        text,
        kind,
        at: 0,
        unflushed_from: 0,
        preceding: PrecedingWord::default(),
        media: MediaScanner::default(),
        out,
    };
    let may_have_media = match candidates {
        Some(stops) => results::mask_result(&mut scan, stops),
        None => {
            scan.scan_words();
            true
        }
    };
    scan.flush(scan.at);
    may_have_media
}

pub struct Scanner<'a, F> {
    pub text: &'a mut [u8],
    kind: MaskKind,
    /// Text before this offset has been processed.
    pub at: usize,
    /// Text from here to `at` is passed on unchanged.
    pub unflushed_from: usize,
    /// The last word or comparison. It determines the meaning of a number after it.
    preceding: PrecedingWord,
    media: MediaScanner,
    out: &'a mut F,
}

impl<F: FnMut(&[u8])> Scanner<'_, F> {
    fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.text, self.at)
    }

    fn flush(&mut self, to: usize) {
        let piece = self
            .text
            .get_mut(self.unflushed_from..to)
            .unwrap_or_default();
        if self.kind == MaskKind::Error {
            piece.make_ascii_lowercase();
        }
        if !piece.is_empty() {
            (self.out)(piece);
        }
        self.unflushed_from = to;
    }

    /// Writes `with` in place of the text in `range`, and continues after it.
    pub fn replace(&mut self, range: Range<usize>, with: &[u8]) {
        self.flush(range.start);
        (self.out)(with);
        self.unflushed_from = range.end;
        self.at = range.end;
    }

    fn scan_words(&mut self) {
        loop {
            self.skip_plain_words();
            match self.text.get(self.at) {
                Some(b'\n') => self.scan_line_end(),
                Some(b'/') => self.scan_slash(),
                Some(b'=' | b'!' | b'<' | b'>') => self.scan_comparison(),
                Some(_) => self.scan_word(),
                None => break,
            }
        }
    }

    fn scan_line_end(&mut self) {
        if let Some(byte) = self.text.get_mut(self.at) {
            *byte = b' ';
        }
        self.preceding.end_line();
        self.at += 1;
    }

    fn scan_slash(&mut self) {
        match ephemeral::temp_path_end(self.cursor()) {
            Some(end) => self.replace(self.at..end, TEMP_PLACEHOLDER),
            None => self.at += 1,
        }
    }

    /// Scans `==`, `!=`, `<=` or `>=`. The numbers on both sides are what the error is
    /// about.
    fn scan_comparison(&mut self) {
        let start = self.at;
        self.at += 1;
        if self.cursor().peek(0) == b'=' {
            self.at += 1;
            self.preceding = PrecedingWord::new(start..self.at);
        }
    }

    /// Skips plain words and bytes of no class: the larger part of most texts.
    fn skip_plain_words(&mut self) {
        let text = &*self.text;
        let mut at = self.at;
        loop {
            match class_at(text, at) {
                0 => at += 1,
                LETTER => {
                    let (end, has_digit) = word_end(text, at);
                    if has_digit || !is_plain_word(text, at, end) {
                        break;
                    }
                    self.preceding = PrecedingWord::new(at..end);
                    at = end;
                }
                _ => break,
            }
        }
        self.at = at;
    }

    /// Scans the run of ASCII letters and digits that begins here.
    fn scan_word(&mut self) {
        let (end, has_digit) = word_end(self.text, self.at);
        if let Some(payload) = self.media.find_payload(self.text, self.at..end) {
            return self.replace(payload, PLACEHOLDER);
        }
        let c = self.cursor();
        let is_drive = end - self.at == 1 && c.peek(1) == b':';
        if is_drive && let Some(end) = ephemeral::windows_temp_path_end(c) {
            return self.replace(self.at..end, TEMP_PLACEHOLDER);
        }
        if let Some(end) = noise_end(c, end, has_digit) {
            return self.replace(self.at..end, PLACEHOLDER);
        }
        if has_digit {
            self.mask_error_word(end);
        } else {
            self.preceding = PrecedingWord::new(self.at..end);
            self.at = end;
        }
    }

    /// Masks the numbers of a word in an error, including those within a name:
    /// `worker7`.
    fn mask_error_word(&mut self, end: usize) {
        let mut c = self.cursor();
        let word = c.with_offset(end).slice_from(self.at);
        if ids::is_error_code(word) {
            self.at = end;
            return;
        }
        if ids::is_long_id(word) {
            return self.replace(self.at..end, PLACEHOLDER);
        }
        let has_letters = !c.eat_letters().is_empty();
        let start = c.at;
        let end = numbers_end(c);
        if has_letters {
            self.preceding = PrecedingWord::new(self.at..start);
        }
        match classify_number(self.text, &self.preceding, start, end) {
            NumberRole::Noise => return self.replace(start..end, PLACEHOLDER),
            NumberRole::Significant => {}
            NumberRole::ListItem => self.preceding.extend_to(end),
        }
        self.at = end;
    }
}

/// The end of the noise that begins with this word, for noise that is masked in results
/// and errors alike.
pub fn noise_end(c: Cursor, end: usize, has_digit: bool) -> Option<usize> {
    let word = c.with_offset(end).slice_from(c.at);
    let next = c.with_offset(end).peek(0);
    if word.len() == 8
        && next == b'-'
        && let Some(end) = ids::uuid_end(c)
    {
        return Some(end);
    }
    if !has_digit {
        let is_name = matches!(next, b' ' | b',') && c.peek(0).is_ascii_uppercase();
        return is_name.then(|| datetime::named_date_end(c)).flatten();
    }
    if is_fraction(c) {
        return None;
    }
    if ids::is_address(word) || ids::is_hex_hash(word) {
        return Some(end);
    }
    let mut digits = c;
    digits.skip_while(|b| b.is_ascii_digit());
    if digits.at > c.at {
        return measurement_end(c, digits.at);
    }
    None
}

/// The end of the run of letters and digits at `at`, and whether it has a digit.
pub fn word_end(text: &[u8], at: usize) -> (usize, bool) {
    let (mut end, mut classes) = (at, 0);
    loop {
        let class = class_at(text, end) & (LETTER | DIGIT);
        if class == 0 {
            return (end, classes & DIGIT != 0);
        }
        classes |= class;
        end += 1;
    }
}

/// Whether the length of a run of letters and the byte after it rule out that it begins
/// noise. This decides most words without a recogniser.
fn is_plain_word(text: &[u8], at: usize, end: usize) -> bool {
    let begins = match text.get(end) {
        Some(b':' | b'/' | b'+') => true,
        Some(b'-') => end - at == 8,
        Some(b' ' | b',') => datetime::can_begin_date_name(text.get(at..end).unwrap_or_default()),
        _ => false,
    };
    !begins && end - at < MediaScanner::RUN_LEN_MIN
}

/// Whether this is the fractional part of a number, or a later part of a version.
pub fn is_fraction(c: Cursor) -> bool {
    c.peek_back(1) == b'.' && c.peek_back(2).is_ascii_digit()
}

/// The end of a date, an address, a time or a duration that begins with these digits,
/// which end at `end`. The number of digits and the next byte select the recogniser,
/// and rule out most numbers.
#[inline]
pub fn measurement_end(c: Cursor, end: usize) -> Option<usize> {
    let rest = c.with_offset(end);
    let in_name = c.peek_back(1) == b'_';
    match (end - c.at, rest.peek(0)) {
        (_, b'.' | b',') if !rest.peek(1).is_ascii_digit() => None,
        (4, b'-' | b'/') | (8, b'T' | b'_' | b'-') | (1..=2, b'/' | b'-') => datetime::date_end(c),
        (1..=2, b':') if !in_name => datetime::time_end(c),
        (1..=3, b'.') => datetime::date_end(c)
            .or_else(|| ephemeral::ip_port_end(c))
            .or_else(|| datetime::duration_end(c)),
        (1..=2, b' ') if datetime::can_begin_date_name(rest.with_offset(end + 1).rest()) => {
            datetime::date_end(c).or_else(|| datetime::duration_end(c))
        }
        (_, b' ') if !datetime::can_begin_unit(rest.with_offset(end + 1)) => None,
        (_, b'A'..=b'Z' | b'a'..=b'z' | 0xc2 | 0xce) if !datetime::can_begin_unit(rest) => None,
        (_, b' ' | b'.' | b',' | b'A'..=b'Z' | b'a'..=b'z' | 0xc2 | 0xce) if !in_name => {
            datetime::duration_end(c)
        }
        _ => None,
    }
}

/// The end of a group of numbers: `1.2.3`, `12:34`, `1,234`.
fn numbers_end(mut c: Cursor) -> usize {
    c.at = datetime::decimal_end(c);
    while matches!(c.peek(0), b'.' | b':') && c.peek(1).is_ascii_digit() {
        // In `sha256:8c6d` a digest follows, which is masked by itself.
        let is_word = c.peek(0) == b':' && has_letter_in_word(c.with_offset(c.at + 1));
        if is_word {
            break;
        }
        c.at += 1;
        c.at = datetime::decimal_end(c);
    }
    c.at
}

/// Whether the run of letters and digits at the cursor has a letter.
fn has_letter_in_word(mut c: Cursor) -> bool {
    c.skip_while(|b| b.is_ascii_digit());
    c.peek(0).is_ascii_alphabetic()
}
