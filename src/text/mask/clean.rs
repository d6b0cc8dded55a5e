//! Converts a text to what a person sees: without colour codes and invisible
//! characters, and with runs of white space collapsed.
//!
//! Cleaning runs first, so that a recogniser never meets a colour code within a number.
//! Blocks of 64 bytes are classified with vector instructions, and runs of plain text
//! are copied as a whole, because most bytes stay unchanged.

use super::MaskKind;
use crate::domain::sanitize::is_invisible;
use crate::text::simd::{BLOCK_BYTES, bits_from, equals, in_range, match_bits};

/// A terminal title or link longer than this is treated as text. The limit bounds the
/// cost of a text full of unterminated sequences.
const ESCAPE_STRING_BYTES_MAX: usize = 512;

/// Writes the cleaned `text` to `buffer`. Returns the number of bytes written, which is
/// never more than the text has, and whether only white space was dropped. A block of
/// zeros follows the written bytes, and the buffer must have room for it. A run of
/// white space becomes one space, or one line feed if it contained one, because a
/// number and its unit are on one line.
pub fn clean(text: &str, kind: MaskKind, buffer: &mut [u8]) -> (usize, bool) {
    let mut cleaned = CleanBuffer {
        buffer,
        len: 0,
        pending_space: NO_SPACE,
        is_lossless: true,
    };
    let bytes = text.as_bytes();
    // Nearly all bytes of most texts stay unchanged. Bytes from `from` up to `at` are
    // not copied yet.
    let mut from = 0;
    let mut at = 0;
    let mut after_gap = false;
    while at < bytes.len() {
        let (mut special, last_is_gap) = find_special_bytes(bytes, at, after_gap);
        after_gap = last_is_gap;
        let start = at;
        at += BLOCK_BYTES;
        while special != 0 {
            let special_at = start + special.trailing_zeros() as usize;
            cleaned.push_run(bytes.get(from..special_at).unwrap_or_default());
            from = cleaned.push_special(text, special_at, kind);
            special &= bits_from(from - start);
            if from >= at {
                at = from;
                after_gap = false;
            }
        }
    }
    cleaned.push_run(bytes.get(from..).unwrap_or_default());
    let CleanBuffer {
        buffer,
        len,
        is_lossless,
        ..
    } = cleaned;
    if let Some(behind) = buffer.get_mut(len..len + BLOCK_BYTES) {
        behind.fill(0);
    }
    (len, is_lossless)
}

/// One bit for each byte of the block at `start` that may change: everything except
/// visible ASCII and single spaces and line feeds. Also returns whether the last byte
/// is a space or a line feed.
#[inline]
fn find_special_bytes(bytes: &[u8], start: usize, after_gap: bool) -> (u64, bool) {
    let rest = bytes.get(start..).unwrap_or_default();
    // A short block is padded with letters, which stay unchanged. Zeros would be
    // reported as special bytes.
    let mut short = [b'a'; BLOCK_BYTES];
    let block = rest.first_chunk().unwrap_or_else(|| {
        if let Some(head) = short.get_mut(..rest.len()) {
            head.copy_from_slice(rest);
        }
        &short
    });
    let visible = match_bits(block, |lane| in_range(lane, b'!', b'~'));
    let gaps = match_bits(block, |lane| equals(lane, b' ') | equals(lane, b'\n'));
    let repeated = gaps & (gaps << 1 | u64::from(after_gap));
    (repeated | !(visible | gaps), gaps >> (BLOCK_BYTES - 1) != 0)
}

/// No pending white space. Cleaned text never contains this byte.
const NO_SPACE: u8 = 0;

struct CleanBuffer<'a> {
    buffer: &'a mut [u8],
    len: usize,
    /// White space that is read but not written yet. It is dropped at the end of the
    /// text.
    pending_space: u8,
    /// Nothing except white space was dropped.
    is_lossless: bool,
}

impl CleanBuffer<'_> {
    /// Appends a piece that stays unchanged. White space at either end may be part of a
    /// longer run.
    fn push_run(&mut self, mut piece: &[u8]) {
        if let [first @ (b' ' | b'\n'), rest @ ..] = piece {
            self.add_space(*first == b'\n');
            piece = rest;
        }
        if piece.is_empty() {
            return;
        }
        self.flush_space();
        if let [rest @ .., last @ (b' ' | b'\n')] = piece {
            self.write(rest);
            self.add_space(*last == b'\n');
        } else {
            self.write(piece);
        }
    }

    #[inline]
    fn flush_space(&mut self) {
        if self.pending_space != NO_SPACE && self.len > 0 {
            let space = self.pending_space;
            self.write(&[space]);
        }
        self.pending_space = NO_SPACE;
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        if let Some(free) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            free.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn add_space(&mut self, ends_line: bool) {
        let ends_line = ends_line || self.pending_space == b'\n';
        self.pending_space = if ends_line { b'\n' } else { b' ' };
    }

    /// Processes consecutive white space, control and non-ASCII bytes. Returns the
    /// offset after them.
    fn push_special(&mut self, text: &str, mut at: usize, kind: MaskKind) -> usize {
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(at) {
            at += match byte {
                b'!'..=b'~' => break,
                b' ' => {
                    self.add_space(false);
                    let mut end = at + 1;
                    // An indent has many spaces.
                    while let Some(b' ') = bytes.get(end) {
                        end += 1;
                    }
                    end - at
                }
                b'\t'..=b'\r' => {
                    self.add_space(matches!(byte, b'\n' | b'\r'));
                    1
                }
                0x1b => {
                    self.is_lossless = false;
                    escape_len(bytes.get(at..).unwrap_or_default())
                }
                0..=0x7f => {
                    self.is_lossless = false;
                    1
                }
                _ => self.push_wide_char(bytes, at, text, kind),
            };
        }
        at
    }

    /// Processes a non-ASCII character. Returns the number of bytes consumed.
    fn push_wide_char(&mut self, bytes: &[u8], at: usize, text: &str, kind: MaskKind) -> usize {
        let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) else {
            return 1;
        };
        if c == '\u{9b}' {
            self.is_lossless = false;
            return c.len_utf8() + control_len(bytes.get(at + 2..).unwrap_or_default());
        }
        if c.is_whitespace() {
            self.add_space(c != '\u{a0}');
        } else if !is_invisible(c) {
            let folded = if kind == MaskKind::Error {
                lowercase_same_len(c)
            } else {
                c
            };
            self.flush_space();
            self.write(folded.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            self.is_lossless = false;
        }
        c.len_utf8()
    }
}
/// The lower-case form of a character, if it has the same length in UTF-8.
fn lowercase_same_len(c: char) -> char {
    let mut small = c.to_lowercase();
    match (small.next(), small.next()) {
        (Some(one), None) if one.len_utf8() == c.len_utf8() => one,
        _ => c,
    }
}

/// The length of the escape sequence at the start of `bytes`. A lone ESC has length 1.
fn escape_len(bytes: &[u8]) -> usize {
    match bytes.get(1) {
        Some(b'[') => 2 + control_len(bytes.get(2..).unwrap_or_default()),
        Some(b']' | b'P' | b'X' | b'^' | b'_') => escape_string_len(bytes),
        Some(b' '..=b'/') => 2 + usize::from(matches!(bytes.get(2), Some(b'0'..=b'~'))),
        Some(b'0'..=b'Z' | b'\\' | b'`'..=b'~') => 2,
        _ => 1,
    }
}

/// The length of the rest of a control sequence: parameters, then a final byte.
fn control_len(bytes: &[u8]) -> usize {
    let parameters = bytes.iter().take_while(|b| matches!(b, b' '..=b'?'));
    // The limit prevents a broken sequence from consuming the text after it.
    let parameters = parameters.take(32).count();
    parameters + usize::from(matches!(bytes.get(parameters), Some(b'@'..=b'~')))
}

/// The length of a title or a link, which ends with BEL or ESC \. If the end is
/// missing, only the opening counts.
fn escape_string_len(bytes: &[u8]) -> usize {
    let window = bytes.get(..ESCAPE_STRING_BYTES_MAX).unwrap_or(bytes);
    let end = window.iter().skip(2).position(|b| matches!(b, 7 | 0x1b));
    match end.map(|i| i + 2) {
        Some(i) if window.get(i) == Some(&7) => i + 1,
        Some(i) if bytes.get(i + 1) == Some(&b'\\') => i + 2,
        _ => 2,
    }
}
