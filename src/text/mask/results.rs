//! Results, read from stop to stop: most of a result are words and what stands
//! between them, which nobody looks at.

use super::cursor::Cursor;
use super::scan::{Scan, TEMP};
use super::stops::Stops;
use super::{MASKED, ids, json, media, numbers, place};
use std::ops::Range;

/// What is noise, and what stands for it.
pub type Noise = (Range<usize>, &'static [u8]);

/// Goes through a text that a tool returned, and says whether it may have media.
pub fn read<F: FnMut(&[u8])>(scan: &mut Scan<'_, F>, mut stops: Stops) -> bool {
    let mut may_have_media = stops.has_run || stops.has_keys;
    let payloads = if stops.has_run {
        media::payloads(scan.text)
    } else {
        Default::default()
    };
    let mut payloads = payloads.as_slice();
    let mut payload_start = start_of(payloads);
    let mut line_start = 0;
    while let Some(stop) = stops.next() {
        while payload_start <= stop {
            payloads = mask_first(scan, payloads);
            payload_start = start_of(payloads);
        }
        if stop < scan.at {
            continue;
        }
        let noise = match scan.text.get(stop) {
            Some(b'0'..=b'9') if numbers::is_plain(scan.text, stop) => None,
            Some(b'0'..=b'9') => {
                let since = scan.plain.max(line_start);
                let (noise, end) = numbers::number(scan.text, since, stop);
                scan.at = end;
                noise
            }
            Some(b'\n') => {
                if let Some(byte) = scan.text.get_mut(stop) {
                    *byte = b' ';
                }
                // "last attempt\n4 files": the next line counts something else.
                line_start = stop + 1;
                None
            }
            Some(b'"' | b'\'') => member(scan.text, stop),
            Some(b'/') => temp_path(scan.text, stop),
            Some(b':') => {
                may_have_media |= names_data(scan.text, stop);
                behind_word(scan.text, scan.at, stop)
            }
            Some(b'-') => uuid_of_letters(scan.text, scan.at, stop),
            _ => None,
        };
        if let Some((range, with)) = noise {
            scan.replace(range, with);
        }
    }
    while !payloads.is_empty() {
        payloads = mask_first(scan, payloads);
    }
    scan.at = scan.text.len();
    may_have_media
}

/// Where the first payload begins; never, where there is none.
fn start_of(payloads: &[Range<usize>]) -> usize {
    payloads.first().map_or(usize::MAX, |first| first.start)
}

/// Masks the first payload, unless it is part of other noise, and returns the others.
fn mask_first<'a, F: FnMut(&[u8])>(
    scan: &mut Scan<'_, F>,
    payloads: &'a [Range<usize>],
) -> &'a [Range<usize>] {
    let Some((first, others)) = payloads.split_first() else {
        return &[];
    };
    if first.start >= scan.at {
        scan.replace(first.clone(), MASKED);
    }
    others
}

/// `"messageId": "om_1"`, `"ts": 7`.
fn member(text: &[u8], quote: usize) -> Option<Noise> {
    Some((json::noise(text, quote)?, MASKED))
}

#[inline]
fn temp_path(text: &[u8], slash: usize) -> Option<Noise> {
    // Most paths are below other directories.
    if !matches!(text.get(slash + 1), Some(b't' | b'v' | b'p' | b'd')) {
        return None;
    }
    let end = place::temp_path(Cursor::new(text, slash))?;
    Some((slash..end, TEMP))
}

/// `data:`, which may be followed by a picture. None is overlooked for what is noise:
/// only values of members hold colons behind letters.
#[inline]
fn names_data(text: &[u8], colon: usize) -> bool {
    text.get(..colon)
        .is_some_and(|before| before.ends_with(b"data"))
}

/// What a word with a colon behind it announces: a picture, or a path. What lies
/// before `from` is decided.
#[inline]
fn behind_word(text: &[u8], from: usize, colon: usize) -> Option<Noise> {
    let c = Cursor::new(text, colon);
    // Most words end otherwise and are longer.
    if c.behind(1) != b'a' && c.behind(2).is_ascii_alphanumeric() {
        return None;
    }
    let is_word =
        |start: usize| start >= from && !Cursor::new(text, start).behind(1).is_ascii_alphanumeric();
    match text.get(..colon)? {
        [.., b'd', b'a', b't', b'a'] if is_word(colon - 4) => {
            let payload = media::data_uri(text, colon - 4)?;
            Some((payload, MASKED))
        }
        _ if is_word(colon.checked_sub(1)?) => {
            let end = place::windows_temp_path(Cursor::new(text, colon - 1))?;
            Some((colon - 1..end, TEMP))
        }
        _ => None,
    }
}

/// A uuid whose first part has no digit: the others are told by one.
fn uuid_of_letters(text: &[u8], from: usize, hyphen: usize) -> Option<Noise> {
    const FIRST: usize = 8;
    const SECOND: usize = 4;
    if text.get(hyphen + SECOND + 1) != Some(&b'-') {
        return None;
    }
    let word = numbers::word_around(text, hyphen.checked_sub(1)?);
    let is_first = word.len() == FIRST && word.start >= from;
    let end = is_first.then(|| ids::uuid(Cursor::new(text, word.start)));
    Some((word.start..end.flatten()?, MASKED))
}
