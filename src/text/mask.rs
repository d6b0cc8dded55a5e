//! Masks the noise in a result or an error: the parts that change on every call and
//! carry no information. The masked text of two equivalent outputs is the same.
//!
//! An agent that sends one message twenty times gets twenty receipts, each with its own
//! id and time. A test that fails three times has a different duration each time.
//! Without masking, no two of these texts are equal and no loop is detected.
//!
//! Results are masked conservatively, because a changed number in a result is progress:
//! anything that is not certainly noise is kept. Errors are masked more aggressively,
//! because a line number that moves does not make a different error.
//!
//! A text is first cleaned into a buffer of the thread (`clean`), then scanned once from
//! left to right. A result is scanned from one noise candidate to the next
//! (`noise_candidates`, `results`, `numbers`), an error word by word (`scan`).
//! Recognisers return the end of a date, a duration or a path. There is no heap
//! allocation per text, no panic and no unbounded look-ahead. Cost: about 21 instructions per
//! byte of a result full of numbers (`benches/counts.rs`). At most 4 KiB of a text is
//! masked and the rest is passed through, so the cost is bounded.

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
use std::{cell::Cell, hash::Hasher};

/// Bytes that are masked at each end of a long text. The header and the footer contain
/// what changes on every call, and the limit bounds the cost.
const END_BYTES_MAX: usize = 2048;

/// Bytes of the longest text that is masked in one pass.
const TEXT_BYTES_MAX: usize = 2 * END_BYTES_MAX;

/// Maximum distance by which a cut moves to reach the end of a line.
const SPLIT_SLACK_BYTES: usize = 512;

/// The hasher receives chunks of this size, independent of how the masked text is
/// split.
const CHUNK_BYTES: usize = 256;

/// Replaces a masked part.
const PLACEHOLDER: &[u8] = b"#";

/// How a text is masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// The output of a tool. Numbers are kept unless they are known to be noise.
    Result,
    /// An error. Numbers are masked unless they are known to be significant, and
    /// letters are lowercased.
    Error,
}

/// What masking learns about the text as a by-product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskSummary {
    /// If false, `strip_media` removes nothing from the text.
    pub may_have_media: bool,
}

/// Calls `out` with the pieces of the masked text, in order. Their concatenation is the
/// masked text. The middle of a long text is passed through unchanged, so a change
/// there is still detected.
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

/// Streams the masked text into `hasher`. The digest depends only on the masked text,
/// not on how it is split into pieces. A hasher may distinguish one `write` of "ab"
/// from writes of "a" and "b", so the chunks always have the same boundaries.
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

/// Where a text is cleaned and classified.
struct MaskBuffer {
    /// Room for the longest text and one more block.
    blocks: [[u8; BLOCK_BYTES]; BLOCKS_MAX + 1],
    /// One word per block of the text.
    bits: [u64; BLOCKS_MAX],
}

/// Blocks of the longest text that is masked in one pass.
const BLOCKS_MAX: usize = TEXT_BYTES_MAX / BLOCK_BYTES;

impl Default for MaskBuffer {
    fn default() -> Self {
        Self {
            blocks: [[0; BLOCK_BYTES]; BLOCKS_MAX + 1],
            bits: [0; BLOCKS_MAX],
        }
    }
}

thread_local! {
    /// Used again and again: zeroing 4 KiB costs more than masking most results.
    static BUFFER: Cell<Option<Box<MaskBuffer>>> = const { Cell::new(None) };
}

/// Masks a text of at most `TEXT_BYTES_MAX` bytes.
fn mask_short(text: &str, kind: MaskKind, out: &mut impl FnMut(&[u8])) -> MaskSummary {
    let mut buffer = BUFFER.take().unwrap_or_default();
    let MaskBuffer { blocks, bits } = &mut *buffer;
    let (len, is_lossless) = clean::clean(text, kind, blocks.as_flattened_mut());
    let block_count = len.div_ceil(BLOCK_BYTES);
    let candidates = match (kind, blocks.get(..block_count), bits.get_mut(..block_count)) {
        (MaskKind::Result, Some(blocks), Some(bits)) => {
            bits.fill(0);
            Some(NoiseCandidates::find(blocks, bits))
        }
        _ => None,
    };
    let mut may_have_media = true;
    if let Some(cleaned) = blocks.as_flattened_mut().get_mut(..len) {
        may_have_media = scan::scan(cleaned, candidates, kind, out);
    }
    BUFFER.set(Some(buffer));
    MaskSummary {
        may_have_media: may_have_media || !is_lossless,
    }
}

/// `text[start..end]`, or an empty string if the range is invalid.
fn slice_or_empty(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end).unwrap_or_default()
}

/// Whether `word` is in `list`, ignoring case. `list` is in lower case.
fn is_one_of(word: &[u8], list: &[&str]) -> bool {
    // The first letter rules out most words. This runs for every number in an error.
    let Some(first) = word.first().map(u8::to_ascii_lowercase) else {
        return false;
    };
    list.iter()
        .any(|w| w.as_bytes().first() == Some(&first) && word.eq_ignore_ascii_case(w.as_bytes()))
}

/// A cut in a long text: one part ends at `end`, the next begins at `resume`. If the
/// two differ, a media payload is between them.
struct SplitPoint {
    end: usize,
    resume: usize,
}

impl SplitPoint {
    /// A cut at the end of a line shortly before `at`. If the time in the first line
    /// gains a digit, the same lines are still masked.
    fn at_line_end_before(text: &str, at: usize) -> SplitPoint {
        let at = text.floor_char_boundary(at);
        let from = text.floor_char_boundary(at.saturating_sub(SPLIT_SLACK_BYTES));
        let line = slice_or_empty(text, from, at)
            .rfind('\n')
            .map_or(at, |i| from + i);
        SplitPoint::around_payload(text, at).unwrap_or_else(|| SplitPoint::at_offset(line))
    }

    /// A cut at the start of a line shortly after `at`.
    fn at_line_start_after(text: &str, at: usize) -> SplitPoint {
        let at = text.ceil_char_boundary(at);
        let to = text.floor_char_boundary(at + SPLIT_SLACK_BYTES);
        let line = slice_or_empty(text, at, to)
            .find('\n')
            .map_or(at, |i| at + i + 1);
        SplitPoint::around_payload(text, at).unwrap_or_else(|| SplitPoint::at_offset(line))
    }

    /// A picture is much longer than the part that is masked. If a cut would fall into
    /// a payload, the whole payload is left out.
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

/// Feeds a byte stream to a hasher in chunks of one size, followed by the total length.
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
