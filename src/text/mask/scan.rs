//! Reads cleaned text once, from left to right, and replaces what is noise. An
//! error is read word by word: what its numbers mean is said by the words before.

use super::cursor::Cursor;
use super::errors::{Kept, kept};
use super::media::Media;
use super::stops::Stops;
use super::{Before, MASKED, Mask, ids, place, results, when};
use std::ops::Range;

/// Stands for a path below a temporary directory.
pub const TEMP: &[u8] = b"<tmp>";

const LETTER: u8 = 1;
const DIGIT: u8 = 2;
/// It may begin something that is no word.
const SIGN: u8 = 4;

/// What each byte is; a look-up, since it is asked of every byte.
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

/// The class of the byte at `at`; past the end it is a sign.
fn class(text: &[u8], at: usize) -> u8 {
    let byte = text.get(at);
    byte.map_or(SIGN, |byte| CLASSES[usize::from(*byte)])
}

/// Calls `out` with the pieces of the masked text. `text` is changed underway. Says
/// whether it may have media.
pub fn scan(
    text: &mut [u8],
    stops: Option<Stops>,
    kind: Mask,
    out: &mut impl FnMut(&[u8]),
) -> bool {
    let mut scan = Scan {
        text,
        kind,
        at: 0,
        plain: 0,
        before: Before::default(),
        media: Media::default(),
        out,
    };
    let may_have_media = match stops {
        Some(stops) => results::read(&mut scan, stops),
        None => {
            scan.words();
            true
        }
    };
    scan.flush(scan.at);
    may_have_media
}

pub struct Scan<'a, F> {
    pub text: &'a mut [u8],
    kind: Mask,
    /// What lies before is decided.
    pub at: usize,
    /// What lies from here to `at` is to be passed on as it is.
    pub plain: usize,
    /// The word or comparison last seen; it says what a number behind it means.
    before: Before,
    media: Media,
    out: &'a mut F,
}

impl<F: FnMut(&[u8])> Scan<'_, F> {
    fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.text, self.at)
    }

    fn flush(&mut self, to: usize) {
        let piece = self.text.get_mut(self.plain..to).unwrap_or_default();
        if self.kind == Mask::Error {
            piece.make_ascii_lowercase();
        }
        if !piece.is_empty() {
            (self.out)(piece);
        }
        self.plain = to;
    }

    /// Writes `with` instead of the text in `range`, and goes on behind it.
    pub fn replace(&mut self, range: Range<usize>, with: &[u8]) {
        self.flush(range.start);
        (self.out)(with);
        self.plain = range.end;
        self.at = range.end;
    }

    fn words(&mut self) {
        loop {
            self.skip();
            match self.text.get(self.at) {
                Some(b'\n') => self.line_end(),
                Some(b'/') => self.slash(),
                Some(b'=' | b'!' | b'<' | b'>') => self.comparison(),
                Some(_) => self.word(),
                None => break,
            }
        }
    }

    fn line_end(&mut self) {
        if let Some(byte) = self.text.get_mut(self.at) {
            *byte = b' ';
        }
        self.before.end_line();
        self.at += 1;
    }

    fn slash(&mut self) {
        match place::temp_path(self.cursor()) {
            Some(end) => self.replace(self.at..end, TEMP),
            None => self.at += 1,
        }
    }

    /// `==`, `!=`, `<=`, `>=`: the numbers beside are what an error is about.
    fn comparison(&mut self) {
        let start = self.at;
        self.at += 1;
        if self.cursor().peek(0) == b'=' {
            self.at += 1;
            self.before = Before::new(start..self.at);
        }
    }

    /// Goes past mere words and what is nothing at all: most of most texts.
    fn skip(&mut self) {
        let text = &*self.text;
        let mut at = self.at;
        loop {
            match class(text, at) {
                0 => at += 1,
                LETTER => {
                    let (end, has_digit) = word_end(text, at);
                    if has_digit || !is_mere_word(text, at, end) {
                        break;
                    }
                    self.before = Before::new(at..end);
                    at = end;
                }
                _ => break,
            }
        }
        self.at = at;
    }

    /// A run of ASCII letters and digits begins here.
    fn word(&mut self) {
        let (end, has_digit) = word_end(self.text, self.at);
        if let Some(payload) = self.media.payload(self.text, self.at..end) {
            return self.replace(payload, MASKED);
        }
        let c = self.cursor();
        let is_drive = end - self.at == 1 && c.peek(1) == b':';
        if is_drive && let Some(end) = place::windows_temp_path(c) {
            return self.replace(self.at..end, TEMP);
        }
        if let Some(end) = noise(c, end, has_digit) {
            return self.replace(self.at..end, MASKED);
        }
        if has_digit {
            self.error_word(end);
        } else {
            self.before = Before::new(self.at..end);
            self.at = end;
        }
    }

    /// In an error numbers go, also those within a name: `worker7`.
    fn error_word(&mut self, end: usize) {
        let mut c = self.cursor();
        let word = c.to(end).since(self.at);
        if ids::error_code(word) {
            self.at = end;
            return;
        }
        if ids::long_id(word) {
            return self.replace(self.at..end, MASKED);
        }
        let has_letters = !c.letters().is_empty();
        let start = c.at;
        let end = numbers_end(c);
        if has_letters {
            self.before = Before::new(self.at..start);
        }
        match kept(self.text, &self.before, start, end) {
            Kept::No => return self.replace(start..end, MASKED),
            Kept::Alone => {}
            Kept::Listed => self.before.carry(end),
        }
        self.at = end;
    }
}

/// Where the noise that begins with this word ends: what is masked in results
/// and errors alike.
pub fn noise(c: Cursor, end: usize, has_digit: bool) -> Option<usize> {
    let word = c.to(end).since(c.at);
    let next = c.to(end).peek(0);
    if word.len() == 8
        && next == b'-'
        && let Some(end) = ids::uuid(c)
    {
        return Some(end);
    }
    if !has_digit {
        let is_name = matches!(next, b' ' | b',') && c.peek(0).is_ascii_uppercase();
        return is_name.then(|| when::named_date(c)).flatten();
    }
    if in_number(c) {
        return None;
    }
    if ids::address(word) || ids::hex_word(word) {
        return Some(end);
    }
    let mut digits = c;
    digits.skip(|b| b.is_ascii_digit());
    if digits.at > c.at {
        return measure(c, digits.at);
    }
    None
}

/// Where the run of letters and digits at `at` ends, and whether it has a digit.
pub fn word_end(text: &[u8], at: usize) -> (usize, bool) {
    let (mut end, mut seen) = (at, 0);
    loop {
        let class = class(text, end) & (LETTER | DIGIT);
        if class == 0 {
            return (end, seen & DIGIT != 0);
        }
        seen |= class;
        end += 1;
    }
}

/// Whether a run of letters is none of what a word can begin, by its length and
/// what stands beside it: most are told by that.
fn is_mere_word(text: &[u8], at: usize, end: usize) -> bool {
    let begins = match text.get(end) {
        Some(b':' | b'/' | b'+') => true,
        Some(b'-') => end - at == 8,
        Some(b' ' | b',') => when::begins_name(text.get(at..end).unwrap_or_default()),
        _ => false,
    };
    !begins && end - at < Media::RUN_LEN_MIN
}

/// Whether this is the fraction of a number, or of a version.
pub fn in_number(c: Cursor) -> bool {
    c.behind(1) == b'.' && c.behind(2).is_ascii_digit()
}

/// A date, an address, a time or a duration that begins with these digits, which
/// end at `end`. How many there are and what follows says what it can be: most
/// numbers are none.
#[inline]
pub fn measure(c: Cursor, end: usize) -> Option<usize> {
    let rest = c.to(end);
    let in_name = c.behind(1) == b'_';
    match (end - c.at, rest.peek(0)) {
        (_, b'.' | b',') if !rest.peek(1).is_ascii_digit() => None,
        (4, b'-' | b'/') | (8, b'T' | b'_' | b'-') | (1..=2, b'/' | b'-') => when::date(c),
        (1..=2, b':') if !in_name => when::time(c),
        (1..=3, b'.') => when::date(c)
            .or_else(|| place::ip_port(c))
            .or_else(|| when::duration(c)),
        (1..=2, b' ') if when::begins_name(rest.to(end + 1).rest()) => {
            when::date(c).or_else(|| when::duration(c))
        }
        (_, b' ') if !when::begins_unit(rest.to(end + 1)) => None,
        (_, b'A'..=b'Z' | b'a'..=b'z' | 0xc2 | 0xce) if !when::begins_unit(rest) => None,
        (_, b' ' | b'.' | b',' | b'A'..=b'Z' | b'a'..=b'z' | 0xc2 | 0xce) if !in_name => {
            when::duration(c)
        }
        _ => None,
    }
}

/// Where numbers end that belong together: `1.2.3`, `12:34`, `1,234`.
fn numbers_end(mut c: Cursor) -> usize {
    c.at = when::decimal(c);
    while matches!(c.peek(0), b'.' | b':') && c.peek(1).is_ascii_digit() {
        c.at += 1;
        c.at = when::decimal(c);
    }
    c.at
}
