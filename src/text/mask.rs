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

mod clean;
mod cursor;
mod datetime;
mod ephemeral;
mod error_numbers;
mod ids;
mod json;
mod media;
mod noise_candidates;
mod numbers;
mod preceding_word;
mod results;
mod scan;

#[cfg(test)]
mod tests;

use super::simd::BLOCK_BYTES;
pub use media::{is_only_media, strip_media};
use noise_candidates::NoiseCandidates;
use preceding_word::PrecedingWord;
use std::hash::Hasher;

/// As much of each end of a long text is masked; a header and a footer hold
/// what changes with every call, and the cost of a text has a bound.
const END_BYTES_MAX: usize = 2048;

/// As much of a text as is masked at once.
const TEXT_BYTES_MAX: usize = 2 * END_BYTES_MAX;

/// How far a cut may move to fall on a line's end.
const SPLIT_SLACK_BYTES: usize = 512;

/// The hasher is fed in pieces of this size, however the masked text comes.
const CHUNK_BYTES: usize = 256;

/// Stands for what was masked.
const PLACEHOLDER: &[u8] = b"#";

/// What a text is masked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// What a tool returned: numbers stay, unless they are known to be noise.
    Result,
    /// What went wrong: numbers go, unless they are known to matter. Case too.
    Error,
}

/// What is learned of a text by the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskSummary {
    /// If not, [`without_media`] takes nothing out of it.
    pub may_have_media: bool,
}

/// Calls `out` with the pieces of the masked text, in order. Concatenated they
/// are the masked text. Between the ends of a long text it is passed on as it
/// is, so that a change there is still seen. Says what of the text was learned.
pub fn mask(text: &str, kind: MaskKind, out: &mut impl FnMut(&[u8])) -> MaskSummary {
    if text.len() <= TEXT_BYTES_MAX {
        return mask_short(text, kind, out);
    }
    let head = SplitPoint::at_line_end_before(text, END_BYTES_MAX);
    mask_short(slice_or_empty(text, 0, head.end), kind, out);
    head.emit_placeholder(out);
    let rest = slice_or_empty(text, head.resume, text.len());
    let summary = MaskSummary {
        may_have_media: true,
    };
    if rest.len() <= END_BYTES_MAX {
        mask_short(rest, kind, out);
        return summary;
    }
    let tail = SplitPoint::at_line_start_after(rest, rest.len() - END_BYTES_MAX);
    out(slice_or_empty(rest, 0, tail.end).as_bytes());
    tail.emit_placeholder(out);
    mask_short(slice_or_empty(rest, tail.resume, rest.len()), kind, out);
    summary
}

/// Streams the masked text into `hasher`. The digest depends on the masked text
/// only, not on how its pieces fall: a hasher may tell one `write` of "ab" from
/// a "a" and a "b", so what it gets is always cut at the same places.
pub fn hash_masked(text: &str, kind: MaskKind, hasher: &mut impl Hasher) -> MaskSummary {
    let mut chunks = HashChunker {
        hasher,
        chunk: [0; CHUNK_BYTES],
        filled: 0,
        total: 0,
    };
    let summary = mask(text, kind, &mut |piece| chunks.push(piece));
    chunks.finish();
    summary
}

/// Masks a text of at most [`TEXT_BYTES_MAX`] bytes.
fn mask_short(text: &str, kind: MaskKind, out: &mut impl FnMut(&[u8])) -> MaskSummary {
    const SHORT_BYTES_MAX: usize = 512;
    const LONG: usize = TEXT_BYTES_MAX / BLOCK_BYTES;
    const SHORT: usize = SHORT_BYTES_MAX / BLOCK_BYTES;
    // Most results are a line or two: clearing 4 KiB would cost more than they do.
    if text.len() <= SHORT_BYTES_MAX {
        mask_in_buffer(
            &mut [[0; BLOCK_BYTES]; SHORT + 1],
            &mut [0; SHORT],
            text,
            kind,
            out,
        )
    } else {
        mask_in_buffer(
            &mut [[0; BLOCK_BYTES]; LONG + 1],
            &mut [0; LONG],
            text,
            kind,
            out,
        )
    }
}

/// The buffer has room for the text and a block more, the bits for the text.
fn mask_in_buffer(
    buffer: &mut [[u8; BLOCK_BYTES]],
    bits: &mut [u64],
    text: &str,
    kind: MaskKind,
    out: &mut impl FnMut(&[u8]),
) -> MaskSummary {
    let (len, is_lossless) = clean::clean(text, kind, buffer.as_flattened_mut());
    let blocks = len.div_ceil(BLOCK_BYTES);
    let candidates = match (kind, buffer.get(..blocks), bits.get_mut(..blocks)) {
        (MaskKind::Result, Some(blocks), Some(bits)) => Some(NoiseCandidates::find(blocks, bits)),
        _ => None,
    };
    let mut may_have_media = true;
    if let Some(cleaned) = buffer.as_flattened_mut().get_mut(..len) {
        may_have_media = scan::scan(cleaned, candidates, kind, out);
    }
    MaskSummary {
        may_have_media: may_have_media || !is_lossless,
    }
}

/// `text[start..end]`, or nothing where that is no part of it.
fn slice_or_empty(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end).unwrap_or_default()
}

/// Whether `word` is in `list`, which is in small letters.
fn is_one_of(word: &[u8], list: &[&str]) -> bool {
    // The first letter decides for most; asked of every number in an error.
    let Some(first) = word.first().map(u8::to_ascii_lowercase) else {
        return false;
    };
    list.iter()
        .any(|w| w.as_bytes().first() == Some(&first) && word.eq_ignore_ascii_case(w.as_bytes()))
}

/// Where a long text is divided: one part goes up to `end`, the next begins at
/// `resume`. What lies between, if anything, is a media payload.
struct SplitPoint {
    end: usize,
    resume: usize,
}

impl SplitPoint {
    /// A cut at a line's end shortly before `at`: if the time in the first line
    /// has a digit more today, the same lines are masked as yesterday.
    fn at_line_end_before(text: &str, at: usize) -> SplitPoint {
        let at = text.floor_char_boundary(at);
        let from = text.floor_char_boundary(at.saturating_sub(SPLIT_SLACK_BYTES));
        let line = slice_or_empty(text, from, at)
            .rfind('\n')
            .map_or(at, |i| from + i);
        SplitPoint::around_payload(text, at).unwrap_or_else(|| SplitPoint::at_offset(line))
    }

    /// A cut at a line's start shortly after `at`.
    fn at_line_start_after(text: &str, at: usize) -> SplitPoint {
        let at = text.ceil_char_boundary(at);
        let to = text.floor_char_boundary(at + SPLIT_SLACK_BYTES);
        let line = slice_or_empty(text, at, to)
            .find('\n')
            .map_or(at, |i| at + i + 1);
        SplitPoint::around_payload(text, at).unwrap_or_else(|| SplitPoint::at_offset(line))
    }

    /// A picture is far longer than the part that is masked: where a cut would
    /// fall into one, it is left out whole.
    fn around_payload(text: &str, at: usize) -> Option<SplitPoint> {
        let run = media::base64_run_around(text.as_bytes(), at);
        media::is_payload(text.as_bytes().get(run.clone())?).then_some(SplitPoint {
            end: run.start,
            resume: run.end,
        })
    }

    fn at_offset(at: usize) -> SplitPoint {
        SplitPoint {
            end: at,
            resume: at,
        }
    }

    fn emit_placeholder(&self, out: &mut impl FnMut(&[u8])) {
        if self.end != self.resume {
            out(PLACEHOLDER);
        }
    }
}

/// Gives a hasher a stream of bytes in chunks of one size, and its length.
struct HashChunker<'a, H> {
    hasher: &'a mut H,
    chunk: [u8; CHUNK_BYTES],
    filled: usize,
    total: usize,
}

impl<H: Hasher> HashChunker<'_, H> {
    fn push(&mut self, mut piece: &[u8]) {
        self.total += piece.len();
        while !piece.is_empty() {
            let free = self.chunk.get_mut(self.filled..).unwrap_or_default();
            let (head, rest) = piece.split_at(piece.len().min(free.len()));
            if let Some(free) = free.get_mut(..head.len()) {
                free.copy_from_slice(head);
            }
            self.filled += head.len();
            piece = rest;
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
