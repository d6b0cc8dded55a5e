//! Masks a result. The scan jumps from one noise candidate to the next, because most of
//! a result is words and separators that are never noise.
//!
//! Each candidate is dispatched on its byte to the recogniser of a number, a JSON
//! member, a path, a data URI or a uuid. Cost: proportional to the number of
//! candidates.

use super::cursor::Cursor;
use super::noise_candidates::NoiseCandidates;
use super::scan::{Scanner, TEMP_PLACEHOLDER};
use super::{PLACEHOLDER, ephemeral, ids, json, media, numbers};
use std::ops::Range;

/// A range of noise, and the placeholder that replaces it.
pub type Replacement = (Range<usize>, &'static [u8]);

/// Masks a tool's output. Returns whether the text may contain media.
pub fn mask_result<F: FnMut(&[u8])>(
    scan: &mut Scanner<'_, F>,
    mut candidates: NoiseCandidates,
) -> bool {
    let mut may_have_media = candidates.has_base64_run || candidates.has_keys;
    // Media payloads are found first: no other mask applies within them.
    let payloads = if candidates.has_base64_run {
        media::find_payloads(scan.text)
    } else {
        Default::default()
    };
    let mut payloads = payloads.as_slice();
    let mut payload_start = first_start(payloads);
    let mut line_start = 0;
    while let Some(candidate) = candidates.next() {
        while payload_start <= candidate {
            payloads = mask_first_payload(scan, payloads);
            payload_start = first_start(payloads);
        }
        // A replacement may have covered later candidates.
        if candidate < scan.at {
            continue;
        }
        // The first byte of a candidate decides which kind of noise it may start.
        let noise = match scan.text.get(candidate) {
            Some(b'0'..=b'9') if numbers::is_plain_number(scan.text, candidate) => None,
            Some(b'0'..=b'9') => {
                let since = scan.unflushed_from.max(line_start);
                let (noise, end) = numbers::find_number_noise(scan.text, since, candidate);
                scan.at = end;
                noise
            }
            Some(b'\n') => {
                if let Some(byte) = scan.text.get_mut(candidate) {
                    *byte = b' ';
                }
                // In "last attempt\n4 files" the word before the line feed does not
                // describe the number after it.
                line_start = candidate + 1;
                None
            }
            Some(b'"' | b'\'') => member_noise(scan.text, candidate),
            Some(b'/') => temp_path_noise(scan.text, candidate),
            Some(b':') => {
                may_have_media |= ends_with_data(scan.text, candidate);
                noise_after_word(scan.text, scan.at, candidate)
            }
            Some(b'-') => letter_uuid_noise(scan.text, scan.at, candidate),
            _ => None,
        };
        if let Some((range, with)) = noise {
            scan.replace(range, with);
        }
    }
    // Payloads after the last candidate.
    while !payloads.is_empty() {
        payloads = mask_first_payload(scan, payloads);
    }
    scan.at = scan.text.len();
    may_have_media
}

/// The start of the first payload, or `usize::MAX` if there is none.
fn first_start(payloads: &[Range<usize>]) -> usize {
    payloads.first().map_or(usize::MAX, |first| first.start)
}

/// Masks the first payload, unless it is part of other noise, and returns the rest.
fn mask_first_payload<'a, F: FnMut(&[u8])>(
    scan: &mut Scanner<'_, F>,
    payloads: &'a [Range<usize>],
) -> &'a [Range<usize>] {
    let Some((first, others)) = payloads.split_first() else {
        return &[];
    };
    if first.start >= scan.at {
        scan.replace(first.clone(), PLACEHOLDER);
    }
    others
}

/// Matches `"messageId": "om_1"` and `"ts": 7`.
fn member_noise(text: &[u8], quote: usize) -> Option<Replacement> {
    Some((json::find_noise_value(text, quote)?, PLACEHOLDER))
}

#[inline]
fn temp_path_noise(text: &[u8], slash: usize) -> Option<Replacement> {
    // Most paths are below other directories.
    if !matches!(text.get(slash + 1), Some(b't' | b'v' | b'p' | b'd')) {
        return None;
    }
    let end = ephemeral::temp_path_end(Cursor::new(text, slash))?;
    Some((slash..end, TEMP_PLACEHOLDER))
}

/// Whether the word before the colon is `data`, which may begin a data URI with a
/// picture. Skipping candidates within noise misses none, because only values of JSON
/// members contain colons after letters.
#[inline]
fn ends_with_data(text: &[u8], colon: usize) -> bool {
    text.get(..colon)
        .is_some_and(|before| before.ends_with(b"data"))
}

/// The noise that a word followed by a colon begins: a data URI or a Windows path. Text
/// before `from` has been processed.
#[inline]
fn noise_after_word(text: &[u8], from: usize, colon: usize) -> Option<Replacement> {
    let c = Cursor::new(text, colon);
    // Most words have a different last letter and more than one letter.
    if c.peek_back(1) != b'a' && c.peek_back(2).is_ascii_alphanumeric() {
        return None;
    }
    let is_word = |start: usize| {
        start >= from
            && !Cursor::new(text, start)
                .peek_back(1)
                .is_ascii_alphanumeric()
    };
    match text.get(..colon)? {
        [.., b'd', b'a', b't', b'a'] if is_word(colon - 4) => {
            let payload = media::data_uri_payload(text, colon - 4)?;
            Some((payload, PLACEHOLDER))
        }
        _ if is_word(colon.checked_sub(1)?) => {
            let end = ephemeral::windows_temp_path_end(Cursor::new(text, colon - 1))?;
            Some((colon - 1..end, TEMP_PLACEHOLDER))
        }
        _ => None,
    }
}

/// A uuid whose first group has no digit. All other uuids are found at a digit.
fn letter_uuid_noise(text: &[u8], from: usize, hyphen: usize) -> Option<Replacement> {
    const FIRST_GROUP_LEN: usize = 8;
    const SECOND_GROUP_LEN: usize = 4;
    if text.get(hyphen + SECOND_GROUP_LEN + 1) != Some(&b'-') {
        return None;
    }
    let word = numbers::word_around(text, hyphen.checked_sub(1)?);
    let is_first = word.len() == FIRST_GROUP_LEN && word.start >= from;
    let end = is_first.then(|| ids::uuid_end(Cursor::new(text, word.start)));
    Some((word.start..end.flatten()?, PLACEHOLDER))
}
