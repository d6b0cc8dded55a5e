//! Finds pictures and sounds encoded in base64.
//!
//! The same picture may have different bytes each time it is loaded, and the text
//! around it carries the information, so payloads are masked. A payload is recognised
//! by its data URI, its JSON member, its format prefix or its length. Cost: one
//! vectorised pass over a text without a long run; each run is examined once.

use super::cursor::Cursor;
use super::noise_candidates::contains_base64_run;
use super::{PLACEHOLDER, json};
use memchr::memmem::Finder;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::LazyLock;

/// Minimum length of a run of base64 that is media if it begins like a known format.
const KNOWN_FORMAT_LEN_MIN: usize = 64;
/// Maximum number of padding characters in a run.
const PADDING_LEN_MAX: usize = 2;
/// Length of the shortest run without its padding.
pub const RUN_LEN_MIN: usize = KNOWN_FORMAT_LEN_MIN - PADDING_LEN_MAX;
/// Minimum length of a run that is a payload in any format. Keys and signatures are
/// shorter.
const ANY_FORMAT_LEN_MIN: usize = 256;

/// The base64 prefixes of PNG, JPEG, GIF, RIFF (WebP, WAV), BMP, MP3, Ogg, FLAC and
/// SVG. A leading slash of a JPEG or an MP3 is not part of a run.
const FORMAT_PREFIXES: [&[u8]; 10] = [
    b"iVBORw0KGgo",
    b"9j/",
    b"R0lGOD",
    b"UklGR",
    b"Qk0",
    b"SUQz",
    b"uQ",
    b"T2dnUw",
    b"ZkxhQ",
    b"PHN2Zy",
];

/// Finds payloads from left to right.
#[derive(Default)]
pub struct MediaScanner {
    /// The text up to here has no payload. A rejected run is not examined again,
    /// because a long path would otherwise take quadratic time.
    scanned_to: usize,
}

impl MediaScanner {
    /// A shorter run of letters alone is not a payload.
    pub const RUN_LEN_MIN: usize = KNOWN_FORMAT_LEN_MIN;

    /// The payload that begins with `word`, or the payload of the data URI that begins
    /// with it.
    pub fn find_payload(&mut self, text: &[u8], word: Range<usize>) -> Option<Range<usize>> {
        let next = text.get(word.end).copied();
        if next == Some(b':')
            && let Some(payload) = data_uri_payload(text, word.start)
        {
            return Some(payload);
        }
        self.find_run(text, word)
    }

    /// The payload that begins with `word` and is recognised without a data URI.
    fn find_run(&mut self, text: &[u8], word: Range<usize>) -> Option<Range<usize>> {
        let next = text.get(word.end).copied();
        let is_long = word.len() >= KNOWN_FORMAT_LEN_MIN || matches!(next, Some(b'/' | b'+'));
        if !is_long || word.start < self.scanned_to {
            return None;
        }
        // A run that is long enough reaches at least this byte.
        let min_end_byte = text.get(word.start + KNOWN_FORMAT_LEN_MIN - PADDING_LEN_MAX - 1);
        if !min_end_byte.is_some_and(|byte| is_base64(*byte)) {
            return None;
        }
        let run = base64_run_at(text, word.start);
        self.scanned_to = run.end;
        is_payload(text.get(run.clone())?).then_some(run)
    }
}

/// The payloads of a text that are recognised without a data URI or a JSON member.
pub fn find_payloads(text: &[u8]) -> SmallVec<[Range<usize>; 2]> {
    let mut payloads = SmallVec::new();
    if !contains_base64_run(text, RUN_LEN_MIN) {
        return payloads;
    }
    let mut media = MediaScanner::default();
    let mut c = Cursor::new(text, 0);
    while !c.rest().is_empty() {
        c.skip_while(|b| !b.is_ascii_alphanumeric());
        let start = c.at;
        c.skip_while(|b| b.is_ascii_alphanumeric());
        if let Some(payload) = media.find_run(text, start..c.at) {
            c.at = payload.end;
            payloads.push(payload);
        }
    }
    payloads
}

/// Calls `out` with the pieces of `text` in which media payloads are replaced by a
/// placeholder. The rest is unchanged and of any length. Results of different calls are
/// compared in this form.
pub fn strip_media(text: &str, out: &mut impl FnMut(&[u8])) {
    let text = text.as_bytes();
    if !may_have_media(text) {
        return out(text);
    }
    let mut media = MediaScanner::default();
    let mut c = Cursor::new(text, 0);
    let mut unmasked_from = 0;
    while !c.rest().is_empty() {
        c.skip_while(|b| !b.is_ascii_alphanumeric() && b != b'"');
        let start = c.at;
        let payload = if c.eat(b'"') {
            json::parse_member(text, start)
                .filter(|member| json::is_media(text, member))
                .map(|member| member.value)
        } else {
            c.skip_while(|b| b.is_ascii_alphanumeric());
            media.find_payload(text, start..c.at)
        };
        if let Some(payload) = payload {
            out(text.get(unmasked_from..payload.start).unwrap_or_default());
            out(PLACEHOLDER);
            unmasked_from = payload.end;
            c.at = c.at.max(payload.end);
        }
    }
    out(text.get(unmasked_from..).unwrap_or_default());
}

/// Whether a text may contain media: it has `data`, `64` or a run of base64 that is
/// long enough. Most texts have none of these and need no scan by words.
fn may_have_media(text: &[u8]) -> bool {
    /// Matches `data`, `Data` and `DATA`. Other mixed-case spellings are several words.
    static NAMES: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["ata", "ATA", "64"].map(Finder::new));
    NAMES.iter().any(|name| name.find(text).is_some()) || contains_base64_run(text, RUN_LEN_MIN)
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')
}

/// The run of base64 that begins at `at`, including its padding.
fn base64_run_at(text: &[u8], at: usize) -> Range<usize> {
    let mut c = Cursor::new(text, at);
    c.skip_while(is_base64);
    // At most two padding characters, and only after a non-empty run.
    let _ = c.at > at && c.eat(b'=') && c.eat(b'=');
    at..c.at
}

/// The run of base64 around `at`, in text that is not cleaned.
pub fn base64_run_around(text: &[u8], at: usize) -> Range<usize> {
    let before = text.get(..at).unwrap_or_default();
    let back = before.iter().rev().take_while(|b| is_base64(**b)).count();
    let mut start = at - back.min(at);
    start += text
        .get(start..at)
        .unwrap_or_default()
        .iter()
        .take_while(|b| **b == b'/')
        .count();
    start..base64_run_at(text, start).end.max(at)
}

/// Whether a run is a payload and not a path or a long name. Base64 has one slash in 64
/// characters and mixes upper case, lower case and digits; a path has about one slash
/// in 15.
pub fn is_payload(run: &[u8]) -> bool {
    if run.len() < KNOWN_FORMAT_LEN_MIN {
        return false;
    }
    let slashes = run.iter().filter(|b| **b == b'/').count();
    let any = |is: fn(&u8) -> bool| run.iter().any(is);
    let mixed = any(u8::is_ascii_lowercase) && any(u8::is_ascii_uppercase);
    let is_known_format = FORMAT_PREFIXES.iter().any(|b| run.starts_with(b));
    mixed
        && any(u8::is_ascii_digit)
        && slashes * 20 <= run.len()
        && (is_known_format || run.len() >= ANY_FORMAT_LEN_MIN)
}

/// The payload of the data URI (`data:image/png;base64,…`) at `at`. Data of other types
/// may be text and is kept.
pub fn data_uri_payload(text: &[u8], at: usize) -> Option<Range<usize>> {
    let mut c = Cursor::new(text, at);
    if !c.eat_bytes(b"data:") || !is_media_type(c.rest()) {
        return None;
    }
    c.skip_while(|b| {
        b.is_ascii_alphanumeric() || matches!(b, b'/' | b'+' | b'.' | b'-' | b'=' | b';')
    });
    (c.slice_from(at).ends_with(b";base64") && c.eat(b',')).then(|| base64_run_at(text, c.at))
}

/// Whether a type, as in `image/png` or `"type": "image"`, is a media type.
pub fn is_media_type(name: &[u8]) -> bool {
    [b"image", b"audio", b"video"]
        .iter()
        .any(|m| name.starts_with(*m))
}

/// Minimum length of a picture.
const MEDIA_BYTES_MIN: usize = 64;

/// Whether a result is one payload and nothing else. Masked, all such results would be
/// equal.
pub fn is_only_media(text: &str) -> bool {
    let payload = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=:;,-_".contains(&byte);
    text.len() > MEDIA_BYTES_MIN && text.starts_with("data:") && text.bytes().all(payload)
}
