//! Parses single members of JSON objects: a key and its value, also within an escaped
//! JSON string or as printed by Python.
//!
//! The text is not parsed as JSON, because a result may contain JSON anywhere or only
//! in part. Cost: one pass over the key and the value, and at most 128 bytes on either
//! side for a media type.

use super::cursor::Cursor;
use super::is_one_of;
use super::media::is_media_type;
use std::ops::Range;

const KEY_BYTES_MAX: usize = 64;
/// Maximum length of an id. A longer string is text.
const VALUE_BYTES_MAX: usize = 256;
/// Maximum distance between a payload and the member that names its type.
const SIBLING_BYTES_MAX: usize = 128;

/// The ranges of a key and its value, without the quotes of a string.
pub struct JsonMember {
    pub key: Range<usize>,
    pub value: Range<usize>,
    pub is_string: bool,
}

/// The member whose key has its opening quote at `at`.
pub fn parse_member(text: &[u8], at: usize) -> Option<JsonMember> {
    let (key, value) = parse_key(text, at)?;
    parse_value(key, value)
}

/// The value of the member at `at`, if it changes on every call (an id, a time, a
/// duration) or is a media payload.
pub fn find_noise_value(text: &[u8], at: usize) -> Option<Range<usize>> {
    let member = parse_member(text, at)?;
    let is_short = member.value.len() <= VALUE_BYTES_MAX;
    let is_noise = is_short && is_volatile_key(text.get(member.key.clone())?);
    (is_noise || is_media(text, &member)).then_some(member.value)
}

/// The text before a closing quote and a colon. It is a key if it has an opening quote.
pub struct QuotedKey<'a> {
    before: &'a [u8],
    quote: u8,
}

pub fn find_key_before(text: &[u8], colon: usize) -> Option<QuotedKey<'_>> {
    let before = match text.get(..colon)? {
        [before @ .., b' ' | b'\n'] => before,
        before => before,
    };
    match before {
        [before @ .., quote @ (b'"' | b'\'')] => Some(QuotedKey {
            before,
            quote: *quote,
        }),
        _ => None,
    }
}

impl QuotedKey<'_> {
    /// The offset of the key's opening quote, if the key suggests that the value may be
    /// noise. Most keys do not, and their values are not parsed.
    pub fn noise_key_start(&self) -> Option<usize> {
        let before = match self.before {
            [before @ .., b'\\'] => before,
            before => before,
        };
        let len = before.iter().rev().take_while(|b| is_key_byte(**b)).count();
        let (before, key) = before.split_at(before.len() - len);
        // After a letter or digit, a quote closes a string or is an apostrophe.
        let opens = match before {
            [.., beside, opening] => *opening == self.quote && !beside.is_ascii_alphanumeric(),
            [opening] => *opening == self.quote,
            [] => false,
        };
        (opens && is_key_length(len) && (is_volatile_key(key) || may_hold_media(key)))
            .then(|| before.len() - 1)
    }
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'$' | b'@')
}

fn is_key_length(key: usize) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key)
}

/// The key whose opening quote is at `at`, and the start of its value.
fn parse_key(text: &[u8], at: usize) -> Option<(Range<usize>, Cursor<'_>)> {
    let mut c = Cursor::new(text, at);
    let quote = c.peek(0);
    c.at += 1;
    let start = c.at;
    let len = c.skip_while(is_key_byte);
    let key = start..c.at;
    c.eat(b'\\');
    if !is_key_length(len) || !c.eat(quote) {
        return None;
    }
    c.skip_while(|b| matches!(b, b' ' | b'\n'));
    if !c.eat(b':') {
        return None;
    }
    c.skip_while(|b| matches!(b, b' ' | b'\n'));
    Some((key, c))
}

fn parse_value(key: Range<usize>, c: Cursor) -> Option<JsonMember> {
    let is_string = matches!(c.peek(0), b'"' | b'\'' | b'\\');
    let value = if is_string {
        parse_string(c)?
    } else {
        parse_number(c)?
    };
    Some(JsonMember {
        key,
        value,
        is_string,
    })
}

/// The text between the quotes. The closing quote is escaped if the opening one is.
/// Without a closing quote the string extends to the end of the text.
fn parse_string(mut c: Cursor) -> Option<Range<usize>> {
    let escaped = c.eat(b'\\');
    let quote = c.peek(0);
    if !matches!(quote, b'"' | b'\'') {
        return None;
    }
    c.at += 1;
    let start = c.at;
    loop {
        c.skip_while(|b| b != quote && b != b'\\');
        match c.peek(0) {
            b'\\' if escaped && c.peek(1) == quote => break,
            b'\\' => c.at += 2,
            _ => break,
        }
    }
    Some(start..c.at)
}

fn parse_number(mut c: Cursor) -> Option<Range<usize>> {
    let start = c.at;
    c.eat(b'-');
    let digits =
        c.skip_while(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    (digits > 0 && c.is_word_end()).then_some(start..c.at)
}

/// Whether the value of a key changes on every call. The last word of the key decides:
/// `createdAt`, `message_id`. A duration may be followed by its unit: `elapsed_ms`,
/// `durationInSeconds`.
fn is_volatile_key(key: &[u8]) -> bool {
    let mut words = KeyWords(key);
    let Some(last) = words.next() else {
        return false;
    };
    const VOLATILE_WORDS: [&str; 12] = [
        "id",
        "ts",
        "time",
        "timestamp",
        "at",
        "uuid",
        "nonce",
        "pid",
        "uptime",
        "runtime",
        "took",
        "datetime",
    ];
    const UNITS: [&str; 12] = [
        "ns", "us", "ms", "s", "sec", "secs", "seconds", "millis", "micros", "nanos", "minutes",
        "min",
    ];
    const DURATION_WORDS: [&str; 4] = ["duration", "elapsed", "latency", "took"];
    is_one_of(last, &VOLATILE_WORDS)
        || is_one_of(last, &UNITS)
            && KeyWords(words.0)
                .next()
                .is_some_and(|w| is_one_of(w, &["time", "uptime", "runtime"]))
        || KeyWords(key).any(|w| is_one_of(w, &DURATION_WORDS))
}

/// Whether the value is a media payload, according to its key or to a type next to it.
pub fn is_media(text: &[u8], member: &JsonMember) -> bool {
    let key = text.get(member.key.clone()).unwrap_or_default();
    member.is_string && (is_base64_key(key) || is_data_key(key) && has_media_sibling(text, member))
}

fn may_hold_media(key: &[u8]) -> bool {
    is_base64_key(key) || is_data_key(key)
}

fn is_base64_key(key: &[u8]) -> bool {
    KeyWords(key).any(|w| is_one_of(w, &["base64", "b64"]))
}

fn is_data_key(key: &[u8]) -> bool {
    KeyWords(key)
        .next()
        .is_some_and(|w| is_one_of(w, &["data"]))
}

/// Whether the object that contains the member names a media type: `"type": "image"`.
fn has_media_sibling(text: &[u8], member: &JsonMember) -> bool {
    let before = text.get(..member.key.start).unwrap_or_default();
    let before = before.iter().rev().take(SIBLING_BYTES_MAX);
    let start = member.key.start - before.take_while(|b| **b != b'{').count();
    let mut c = Cursor::new(text, member.value.end);
    let after = c.rest().iter().take(SIBLING_BYTES_MAX);
    c.at += after.take_while(|b| **b != b'}').count();
    let siblings = [start..member.key.start, member.value.end..c.at];
    siblings.into_iter().any(|range| {
        let object = text.get(range).unwrap_or_default();
        let mut quoted = object.split(|b| matches!(b, b'"' | b'\''));
        quoted.any(is_media_type)
    })
}

/// Iterates over the words of a key in snake, kebab or camel case, last word first.
struct KeyWords<'a>(&'a [u8]);

impl<'a> Iterator for KeyWords<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while let [rest @ .., last] = self.0
            && !last.is_ascii_alphanumeric()
        {
            self.0 = rest;
        }
        let key = self.0;
        let tail = |is: fn(&u8) -> bool, from: usize| {
            key.iter().rev().skip(from).take_while(|b| is(b)).count()
        };
        let small = tail(|b| b.is_ascii_lowercase() || b.is_ascii_digit(), 0);
        // `Id` has one capital; `ID` and `ID2` have more.
        let capitals = tail(u8::is_ascii_uppercase, small);
        let len = small + if small > 0 { capitals.min(1) } else { capitals };
        let (rest, word) = key.split_at_checked(key.len() - len)?;
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}
