//! What of a result or an error is the same each time: the text with that
//! taken out which changes on every call and says nothing.
//!
//! An agent that sends one message twenty times gets twenty receipts, each with
//! its own id and time; a test that fails three times takes another while each
//! time. Compared as they are, no two of these are equal and no loop is seen.
//!
//! Results are masked little, since a changed number in a result is progress;
//! where it is not sure that something is noise, it stays. Errors are masked
//! more, since a line number that moves does not make another error.
//!
//! A text is first cleaned into a buffer on the stack (`clean`), then read once
//! from left to right: a result from one place where noise can be told to the next
//! (`stops`, `results`, `numbers`), an error word by word (`scan`). Recognisers say
//! how far a date, a duration, a path reaches. No heap, no panic, no unbounded
//! look-ahead. Cost: some 21 instructions a byte of results full of numbers
//! (`benches/counts.rs`); at most 4 KiB of a text is masked, the rest is passed on.

mod before;
mod clean;
mod cursor;
mod errors;
mod ids;
mod json;
pub(super) mod lanes;
mod media;
mod numbers;
mod place;
mod results;
mod scan;
mod stops;
mod when;

#[cfg(test)]
mod tests;

use before::Before;
use lanes::BLOCK;
pub use media::{is_only_media, without_media};
use std::hash::Hasher;
use stops::Stops;

/// As much of each end of a long text is masked; a header and a footer hold
/// what changes with every call, and the cost of a text has a bound.
const END_BYTES_MAX: usize = 2048;

/// As much of a text as is masked at once.
const TEXT_BYTES_MAX: usize = 2 * END_BYTES_MAX;

/// How far a cut may move to fall on a line's end.
const CUT_SLACK_BYTES: usize = 512;

/// The hasher is fed in pieces of this size, however the masked text comes.
const CHUNK_BYTES: usize = 256;

/// Stands for what was masked.
const MASKED: &[u8] = b"#";

/// What a text is masked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// What a tool returned: numbers stay, unless they are known to be noise.
    Result,
    /// What went wrong: numbers go, unless they are known to matter. Case too.
    Error,
}

/// What is learned of a text by the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// If not, [`without_media`] takes nothing out of it.
    pub may_have_media: bool,
}

/// Calls `out` with the pieces of the masked text, in order. Concatenated they
/// are the masked text. Between the ends of a long text it is passed on as it
/// is, so that a change there is still seen. Says what of the text was learned.
pub fn mask(text: &str, kind: Mask, out: &mut impl FnMut(&[u8])) -> Seen {
    if text.len() <= TEXT_BYTES_MAX {
        return mask_short(text, kind, out);
    }
    let head = Cut::before(text, END_BYTES_MAX);
    mask_short(part(text, 0, head.end), kind, out);
    head.mark(out);
    let rest = part(text, head.resume, text.len());
    let seen = Seen {
        may_have_media: true,
    };
    if rest.len() <= END_BYTES_MAX {
        mask_short(rest, kind, out);
        return seen;
    }
    let tail = Cut::after(rest, rest.len() - END_BYTES_MAX);
    out(part(rest, 0, tail.end).as_bytes());
    tail.mark(out);
    mask_short(part(rest, tail.resume, rest.len()), kind, out);
    seen
}

/// Streams the masked text into `hasher`. The digest depends on the masked text
/// only, not on how its pieces fall: a hasher may tell one `write` of "ab" from
/// a "a" and a "b", so what it gets is always cut at the same places.
pub fn masked_hash(text: &str, kind: Mask, hasher: &mut impl Hasher) -> Seen {
    let mut chunks = Chunks {
        hasher,
        chunk: [0; CHUNK_BYTES],
        filled: 0,
        total: 0,
    };
    let seen = mask(text, kind, &mut |piece| chunks.push(piece));
    chunks.finish();
    seen
}

/// Masks a text of at most [`TEXT_BYTES_MAX`] bytes.
fn mask_short(text: &str, kind: Mask, out: &mut impl FnMut(&[u8])) -> Seen {
    const SHORT_BYTES_MAX: usize = 512;
    const LONG: usize = TEXT_BYTES_MAX / BLOCK;
    const SHORT: usize = SHORT_BYTES_MAX / BLOCK;
    // Most results are a line or two: clearing 4 KiB would cost more than they do.
    if text.len() <= SHORT_BYTES_MAX {
        mask_in(
            &mut [[0; BLOCK]; SHORT + 1],
            &mut [0; SHORT],
            text,
            kind,
            out,
        )
    } else {
        mask_in(&mut [[0; BLOCK]; LONG + 1], &mut [0; LONG], text, kind, out)
    }
}

/// The buffer has room for the text and a block more, the bits for the text.
fn mask_in(
    buffer: &mut [[u8; BLOCK]],
    bits: &mut [u64],
    text: &str,
    kind: Mask,
    out: &mut impl FnMut(&[u8]),
) -> Seen {
    let (len, is_whole) = clean::clean(text, kind, buffer.as_flattened_mut());
    let blocks = len.div_ceil(BLOCK);
    let stops = match (kind, buffer.get(..blocks), bits.get_mut(..blocks)) {
        (Mask::Result, Some(blocks), Some(bits)) => Some(Stops::of(blocks, bits)),
        _ => None,
    };
    let mut may_have_media = true;
    if let Some(cleaned) = buffer.as_flattened_mut().get_mut(..len) {
        may_have_media = scan::scan(cleaned, stops, kind, out);
    }
    Seen {
        may_have_media: may_have_media || !is_whole,
    }
}

/// `text[start..end]`, or nothing where that is no part of it.
fn part(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end).unwrap_or_default()
}

/// Whether `word` is in `list`, which is in small letters.
fn one_of(word: &[u8], list: &[&str]) -> bool {
    // The first letter decides for most; asked of every number in an error.
    let Some(first) = word.first().map(u8::to_ascii_lowercase) else {
        return false;
    };
    list.iter()
        .any(|w| w.as_bytes().first() == Some(&first) && word.eq_ignore_ascii_case(w.as_bytes()))
}

/// Where a long text is divided: one part goes up to `end`, the next begins at
/// `resume`. What lies between, if anything, is a media payload.
struct Cut {
    end: usize,
    resume: usize,
}

impl Cut {
    /// A cut at a line's end shortly before `at`: if the time in the first line
    /// has a digit more today, the same lines are masked as yesterday.
    fn before(text: &str, at: usize) -> Cut {
        let at = text.floor_char_boundary(at);
        let from = text.floor_char_boundary(at.saturating_sub(CUT_SLACK_BYTES));
        let line = part(text, from, at).rfind('\n').map_or(at, |i| from + i);
        Cut::around_payload(text, at).unwrap_or_else(|| Cut::clean(line))
    }

    /// A cut at a line's start shortly after `at`.
    fn after(text: &str, at: usize) -> Cut {
        let at = text.ceil_char_boundary(at);
        let to = text.floor_char_boundary(at + CUT_SLACK_BYTES);
        let line = part(text, at, to).find('\n').map_or(at, |i| at + i + 1);
        Cut::around_payload(text, at).unwrap_or_else(|| Cut::clean(line))
    }

    /// A picture is far longer than the part that is masked: where a cut would
    /// fall into one, it is left out whole.
    fn around_payload(text: &str, at: usize) -> Option<Cut> {
        let run = media::run_around(text.as_bytes(), at);
        media::is_payload(text.as_bytes().get(run.clone())?).then_some(Cut {
            end: run.start,
            resume: run.end,
        })
    }

    fn clean(at: usize) -> Cut {
        Cut {
            end: at,
            resume: at,
        }
    }

    fn mark(&self, out: &mut impl FnMut(&[u8])) {
        if self.end != self.resume {
            out(MASKED);
        }
    }
}

/// Gives a hasher a stream of bytes in chunks of one size, and its length.
struct Chunks<'a, H> {
    hasher: &'a mut H,
    chunk: [u8; CHUNK_BYTES],
    filled: usize,
    total: usize,
}

impl<H: Hasher> Chunks<'_, H> {
    fn push(&mut self, mut piece: &[u8]) {
        self.total += piece.len();
        while !piece.is_empty() {
            let free = self.chunk.get_mut(self.filled..).unwrap_or_default();
            let (now, later) = piece.split_at(piece.len().min(free.len()));
            if let Some(free) = free.get_mut(..now.len()) {
                free.copy_from_slice(now);
            }
            self.filled += now.len();
            piece = later;
            if self.filled == CHUNK_BYTES {
                self.hasher.write(&self.chunk);
                self.filled = 0;
            }
        }
    }

    fn finish(self) {
        self.hasher
            .write(self.chunk.get(..self.filled).unwrap_or_default());
        self.hasher.write_usize(self.total);
    }
}
