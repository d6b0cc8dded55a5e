//! The text as a person sees it: without colours and unseen characters, white
//! space folded. Done first, so that a recogniser never meets a colour code
//! within a number.

use super::Mask;
use super::lanes::{self, BLOCK, between, bits, equal};
use crate::domain::text::is_unseen;

/// A terminal's title or link longer than this is taken for text; bounds what a
/// text full of openings can cost.
const COMMAND_BYTES_MAX: usize = 512;

/// Writes `text` to `buffer`, cleaned, and returns how many bytes that took:
/// never more than the text has; and whether all but white space is there. Behind them are zeros, a block of them, for which
/// the buffer has room. A run of white space becomes one space, or one line feed
/// where it held one: a number and the unit after it stand on one line.
pub fn clean(text: &str, kind: Mask, buffer: &mut [u8]) -> (usize, bool) {
    let mut cleaned = Cleaned {
        buffer,
        len: 0,
        gap: NO_GAP,
        is_whole: true,
    };
    let bytes = text.as_bytes();
    // Nearly all of nearly every text stays as it is: from here on, up to `at`.
    let mut from = 0;
    let mut at = 0;
    let mut after_gap = false;
    while at < bytes.len() {
        let (mut breaks, last_is_gap) = breaks(bytes, at, after_gap);
        after_gap = last_is_gap;
        let start = at;
        at += BLOCK;
        while breaks != 0 {
            let stop = start + breaks.trailing_zeros() as usize;
            cleaned.piece(bytes.get(from..stop).unwrap_or_default());
            from = cleaned.odd(text, stop, kind);
            breaks &= lanes::from(from - start);
            if from >= at {
                at = from;
                after_gap = false;
            }
        }
    }
    cleaned.piece(bytes.get(from..).unwrap_or_default());
    let Cleaned {
        buffer,
        len,
        is_whole,
        ..
    } = cleaned;
    if let Some(behind) = buffer.get_mut(len..len + BLOCK) {
        behind.fill(0);
    }
    (len, is_whole)
}

/// A bit for each byte of the block at `start` that cannot stay as it is: all but
/// visible ASCII, and spaces and line feeds that stand alone. And whether the last
/// one is such a gap.
#[inline]
fn breaks(bytes: &[u8], start: usize, after_gap: bool) -> (u64, bool) {
    let rest = bytes.get(start..).unwrap_or_default();
    // Zeros would be no part of the text; letters stay.
    let mut short = [b'a'; BLOCK];
    let block = rest.first_chunk().unwrap_or_else(|| {
        if let Some(head) = short.get_mut(..rest.len()) {
            head.copy_from_slice(rest);
        }
        &short
    });
    let shown = bits(block, |lane| between(lane, b'!', b'~'));
    let gaps = bits(block, |lane| equal(lane, b' ') | equal(lane, b'\n'));
    let again = gaps & (gaps << 1 | u64::from(after_gap));
    (again | !(shown | gaps), gaps >> (BLOCK - 1) != 0)
}

/// Cleaned text holds no such byte.
const NO_GAP: u8 = 0;

struct Cleaned<'a> {
    buffer: &'a mut [u8],
    len: usize,
    /// White space seen and not yet written: at the end it is left out.
    gap: u8,
    /// Nothing but white space was left out.
    is_whole: bool,
}

impl Cleaned<'_> {
    /// Takes in a piece that can stay as it is; a gap at either end may be part of a
    /// longer one.
    fn piece(&mut self, mut piece: &[u8]) {
        if let [first @ (b' ' | b'\n'), rest @ ..] = piece {
            self.space(*first == b'\n');
            piece = rest;
        }
        if piece.is_empty() {
            return;
        }
        self.fill_gap();
        if let [rest @ .., last @ (b' ' | b'\n')] = piece {
            self.put(rest);
            self.space(*last == b'\n');
        } else {
            self.put(piece);
        }
    }

    #[inline]
    fn fill_gap(&mut self) {
        if self.gap != NO_GAP && self.len > 0 {
            let space = self.gap;
            self.put(&[space]);
        }
        self.gap = NO_GAP;
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(free) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            free.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn space(&mut self, ends_line: bool) {
        let ends_line = ends_line || self.gap == b'\n';
        self.gap = if ends_line { b'\n' } else { b' ' };
    }

    /// Takes in white space and what is not ASCII, as far as it goes, and says where
    /// that is.
    fn odd(&mut self, text: &str, mut at: usize, kind: Mask) -> usize {
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(at) {
            at += match byte {
                b'!'..=b'~' => break,
                b' ' => {
                    self.space(false);
                    let mut end = at + 1;
                    // An indent has many.
                    while let Some(b' ') = bytes.get(end) {
                        end += 1;
                    }
                    end - at
                }
                b'\t'..=b'\r' => {
                    self.space(matches!(byte, b'\n' | b'\r'));
                    1
                }
                0x1b => {
                    self.is_whole = false;
                    escape_len(bytes.get(at..).unwrap_or_default())
                }
                0..=0x7f => {
                    self.is_whole = false;
                    1
                }
                _ => self.wide(bytes, at, text, kind),
            };
        }
        at
    }

    /// A character beyond ASCII.
    fn wide(&mut self, bytes: &[u8], at: usize, text: &str, kind: Mask) -> usize {
        let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) else {
            return 1;
        };
        if c == '\u{9b}' {
            self.is_whole = false;
            return c.len_utf8() + control_len(bytes.get(at + 2..).unwrap_or_default());
        }
        if c.is_whitespace() {
            self.space(c != '\u{a0}');
        } else if !is_unseen(c) {
            let folded = if kind == Mask::Error { lower(c) } else { c };
            self.fill_gap();
            self.put(folded.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            self.is_whole = false;
        }
        c.len_utf8()
    }
}
/// The small letter, where it takes no more room.
fn lower(c: char) -> char {
    let mut small = c.to_lowercase();
    match (small.next(), small.next()) {
        (Some(one), None) if one.len_utf8() == c.len_utf8() => one,
        _ => c,
    }
}

/// The length of the escape sequence that `bytes` begin with; a lone ESC is 1.
fn escape_len(bytes: &[u8]) -> usize {
    match bytes.get(1) {
        Some(b'[') => 2 + control_len(bytes.get(2..).unwrap_or_default()),
        Some(b']' | b'P' | b'X' | b'^' | b'_') => command_len(bytes),
        Some(b' '..=b'/') => 2 + usize::from(matches!(bytes.get(2), Some(b'0'..=b'~'))),
        Some(b'0'..=b'Z' | b'\\' | b'`'..=b'~') => 2,
        _ => 1,
    }
}

/// The rest of a control sequence: parameters, then a final byte.
fn control_len(bytes: &[u8]) -> usize {
    let parameters = bytes.iter().take_while(|b| matches!(b, b' '..=b'?'));
    // A broken sequence must not eat the text behind it.
    let parameters = parameters.take(32).count();
    parameters + usize::from(matches!(bytes.get(parameters), Some(b'@'..=b'~')))
}

/// A title or a link: ends with BEL or ESC \. Without its end, only its opening.
fn command_len(bytes: &[u8]) -> usize {
    let window = bytes.get(..COMMAND_BYTES_MAX).unwrap_or(bytes);
    let end = window.iter().skip(2).position(|b| matches!(b, 7 | 0x1b));
    match end.map(|i| i + 2) {
        Some(i) if window.get(i) == Some(&7) => i + 1,
        Some(i) if bytes.get(i + 1) == Some(&b'\\') => i + 2,
        _ => 2,
    }
}
