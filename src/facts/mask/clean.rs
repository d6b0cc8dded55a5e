//! The text as a person sees it: without colours and unseen characters, white
//! space folded. Done first, so that a recogniser never meets a colour code
//! within a number.

use super::Mask;
use super::stops::{LANES, between, equal};
use crate::domain::text::is_unseen;
use wide::u8x16;

/// A terminal's title or link longer than this is taken for text; bounds what a
/// text full of openings can cost.
const COMMAND_BYTES_MAX: usize = 512;

/// Writes `text` to `buffer`, cleaned, and returns how many bytes that took:
/// never more than the text has. A run of white space becomes one space, or one
/// line feed where it held one: a number and the unit after it stand on one
/// line. What the buffer cannot hold is left out.
pub fn clean(text: &str, kind: Mask, buffer: &mut [u8]) -> usize {
    let mut cleaned = Cleaned {
        buffer,
        len: 0,
        gap: None,
    };
    let bytes = text.as_bytes();
    let mut at = cleaned.lanes(bytes, 0);
    while let Some(&byte) = bytes.get(at) {
        at += match byte {
            b'!'..=b'~' => cleaned.push(bytes.get(at..=at).unwrap_or_default()),
            b' ' | b'\t'..=b'\r' => cleaned.space(byte),
            0x1b => escape_len(bytes.get(at..).unwrap_or_default()),
            0..=0x7f => 1,
            _ => cleaned.wide(bytes, at, text, kind),
        };
        if !matches!(bytes.get(at), Some(b' ' | b'\t'..=b'\r')) {
            at = cleaned.lanes(bytes, at);
        }
    }
    cleaned.len
}

struct Cleaned<'a> {
    buffer: &'a mut [u8],
    len: usize,
    /// White space seen and not yet written: at the end it is left out.
    gap: Option<u8>,
}

impl Cleaned<'_> {
    /// Takes in sixteen bytes at a time, as far as they can stay as they are:
    /// visible ASCII, and single spaces and line feeds within. Nearly all of nearly
    /// every text. Says how far it came.
    #[inline]
    fn lanes(&mut self, bytes: &[u8], mut at: usize) -> usize {
        while let Some(lane) = bytes.get(at..).and_then(|rest| rest.first_chunk::<LANES>()) {
            let lanes = u8x16::new(*lane);
            let visible = between(lanes, b'!', b'~').to_bitmask();
            let gaps = (equal(lanes, b' ') | equal(lanes, b'\n')).to_bitmask();
            // A gap stays if something visible stands on both sides; at the end of
            // the lanes that is not known.
            let kept = visible | gaps & (visible << 1) & (visible >> 1);
            let taken = kept.trailing_ones() as usize;
            if taken == 0 {
                break;
            }
            self.push(lane.get(..taken).unwrap_or_default());
            at += taken;
            if taken < LANES - 1 {
                break;
            }
        }
        at
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) -> usize {
        if let Some(space) = self.gap.take()
            && self.len > 0
        {
            self.put(&[space]);
        }
        self.put(bytes);
        bytes.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(free) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            free.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn space(&mut self, byte: u8) -> usize {
        let line_ends = matches!(byte, b'\n' | b'\r') || self.gap == Some(b'\n');
        self.gap = Some(if line_ends { b'\n' } else { b' ' });
        1
    }

    /// A character beyond ASCII.
    fn wide(&mut self, bytes: &[u8], at: usize, text: &str, kind: Mask) -> usize {
        let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) else {
            return 1;
        };
        if c == '\u{9b}' {
            return c.len_utf8() + control_len(bytes.get(at + 2..).unwrap_or_default());
        }
        if c.is_whitespace() {
            self.space(if c == '\u{a0}' { b' ' } else { b'\n' });
        } else if !is_unseen(c) {
            let folded = if kind == Mask::Error { lower(c) } else { c };
            self.push(folded.encode_utf8(&mut [0; 4]).as_bytes());
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
