//! Finds numbers in results that are noise: dates, times, durations, counts of
//! attempts, process ids, labelled ids, clocks, rates and hashes.
//!
//! The bytes next to a number rule out noise for most numbers, so that check runs
//! first. Only the remaining numbers are parsed, together with the text before them.
//! Cost: a few byte comparisons per number; a parse only if the number may be noise.

use super::cursor::Cursor;
use super::preceding_word::{self, SEPARATOR_BYTES_MAX};
use super::results::Replacement;
use super::scan::{TEMP_PLACEHOLDER, is_fraction, measurement_end, noise_end, word_end};
use super::{PLACEHOLDER, datetime, ephemeral, ids, is_one_of};
use std::ops::Range;

/// Whether the bytes next to the digits at `at` rule out noise. True for most numbers,
/// which then need no further check.
#[inline]
pub fn is_plain_number(text: &[u8], at: usize) -> bool {
    let (before, rest) = text.split_at_checked(at).unwrap_or_default();
    // Too close to the start of the text: there is not enough context.
    let Some(before) = before.last_chunk::<CONTEXT_BYTES>() else {
        return false;
    };
    let last = before[CONTEXT_BYTES - 1];
    if last.is_ascii_alphabetic() {
        // A letter that is no hex digit rules out a hash.
        return !last.is_ascii_hexdigit() && !may_be_id(before);
    }
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    (last != b':' || digits != ephemeral::PORT_DIGITS)
        && !is_epoch(rest.get(..digits).unwrap_or_default())
        && !can_begin_noise(Cursor::new(text, at + digits), digits)
        && !can_end_noise_word(before)
}

/// Whether the text before a number may begin an id that is no hash: it ends with a label, or
/// it has capital letters and digits, as nanoids have.
#[inline]
fn may_be_id(before: &[u8; CONTEXT_BYTES]) -> bool {
    let mut pairs = before.windows(2);
    pairs.any(|pair| matches!(pair, [b'd' | b'D' | b's' | b'S', b':' | b'=']))
        || (before.iter().any(u8::is_ascii_uppercase) && before.iter().any(u8::is_ascii_digit))
}

/// Whether the digits are the seconds or milliseconds since 1970 of a day after 2001.
#[inline]
fn is_epoch(digits: &[u8]) -> bool {
    matches!(digits.len(), 10 | 13) && digits.first() == Some(&b'1')
}

/// Bytes before a number that are examined: more than the longest gap, plus the end of
/// a word.
const CONTEXT_BYTES: usize = 8;

/// Whether `digits` digits and the two bytes after them can begin a date, a time, an
/// address, a duration or a count.
#[inline]
fn can_begin_noise(c: Cursor, digits: usize) -> bool {
    let (next, second) = (c.peek(0), c.peek(1));
    match next {
        b'.' | b',' => second.is_ascii_digit(),
        b' ' if second.is_ascii_alphabetic() => {
            let is_name = second.is_ascii_uppercase() && digits <= 2;
            is_name
                || rate_end(c).is_some()
                || can_begin_count_word(c.with_offset(c.at + 1))
                || datetime::can_begin_unit(c.with_offset(c.at + 1))
        }
        b' ' => second >= 0x80,
        b':' => digits <= 2 && (second.is_ascii_digit() || matches!(second, b'/' | b'\\')),
        b'-' | b'/' => digits == 8 || second.is_ascii_digit() || second.is_ascii_uppercase(),
        b'_' => digits == 8,
        _ => next.is_ascii_alphabetic() || next >= 0x80,
    }
}

/// Whether the first two letters can begin a word that is counted ("times",
/// "attempts").
#[inline]
fn can_begin_count_word(c: Cursor) -> bool {
    let second = c.peek(1) | 0x20;
    match c.peek(0) | 0x20 {
        b't' => matches!(second, b'i' | b'r'),
        b'a' => second == b't',
        b'r' => second == b'e',
        _ => false,
    }
}

/// Whether a word that makes the next number a count can end with these letters.
#[inline]
fn can_end_count_word(second: u8, last: u8) -> bool {
    matches!(
        (second | 0x20, last | 0x20),
        (b'p', b't') | (b't' | b'e', b's') | (b'r', b'y') | (b'i', b'd')
    )
}

/// Whether the name of a day or a month can end with these letters, either in full or
/// abbreviated to three letters.
#[inline]
fn can_end_date_name(second: u8, last: u8) -> bool {
    let second_lower = second | 0x20;
    match last | 0x20 {
        // Days in full; January, February, May and July.
        b'y' => matches!(second_lower, b'a' | b'r' | b'l'),
        // March. The abbreviations of Thursday and Sunday are below.
        b'h' => second_lower == b'c',
        b'l' => matches!(second_lower, b'i' | b'u'),
        b'e' => matches!(second_lower, b'n' | b'u'),
        b't' => matches!(second_lower, b's' | b'a' | b'c'),
        b'r' => matches!(second_lower, b'e' | b'a' | b'p'),
        b'n' => matches!(second_lower, b'o' | b'u' | b'a'),
        b'd' | b'b' | b'c' | b'p' => second_lower == b'e',
        b'u' => second_lower == b'h',
        b'i' => second_lower == b'r',
        b'g' => second_lower == b'u',
        b'v' => second_lower == b'o',
        _ => false,
    }
}

/// Whether the text before a number can make it a count or the last part of a date.
#[inline]
fn can_end_noise_word(before: &[u8; CONTEXT_BYTES]) -> bool {
    let mut gap = 0;
    while let Some(byte) = before.get(CONTEXT_BYTES - 1 - gap)
        && (preceding_word::is_separator(*byte) || *byte == b',')
        && gap < CONTEXT_BYTES - 1
    {
        gap += 1;
    }
    // A gap of this length separates the number from the word.
    let Some([.., second, last]) = before.get(..CONTEXT_BYTES - gap) else {
        return false;
    };
    match *last {
        b'a'..=b'z' | b'A'..=b'Z' => {
            can_end_count_word(*second, *last) || can_end_date_name(*second, *last)
        }
        TIMES_SIGN_LAST => true,
        _ => false,
    }
}

/// The run of letters and digits around `at`.
pub fn word_around(text: &[u8], at: usize) -> Range<usize> {
    let before = text.get(..at).unwrap_or_default();
    let back = before
        .iter()
        .rev()
        .take_while(|b| b.is_ascii_alphanumeric());
    let start = at - back.count();
    start..word_end(text, at).0
}

/// Finds the noise that contains the digits at `at`, and returns it with the offset up
/// to which the text has been examined. A date may begin with words before the digits
/// and extend past them. Text before `since` is not considered.
#[inline(never)]
pub fn find_number_noise(text: &[u8], since: usize, at: usize) -> (Option<Replacement>, usize) {
    let c = Cursor::new(text, at);
    if c.peek_back(1).is_ascii_alphabetic() {
        let word = word_around(text, at);
        return (find_hash_noise(text, since, &word), word.end);
    }
    let mut end = at + 1;
    while let Some(b'0'..=b'9') = text.get(end) {
        end += 1;
    }
    if c.with_offset(end).peek(0).is_ascii_alphabetic() {
        let word = at..word_end(text, end).0;
        return (find_quantity_noise(text, since, &word), word.end);
    }
    (find_digits_noise(text, since, &(at..end)), end)
}

/// Noise in a word that begins with a letter and contains a digit.
fn find_hash_noise(text: &[u8], since: usize, word: &Range<usize>) -> Option<Replacement> {
    // Most words are too short for a hash.
    if word.len() < ids::HEX_HASH_LEN_MIN {
        return find_labelled_id(text, word).or_else(|| find_nanoid(text, since, word));
    }
    if let Some(end) = noise_end(Cursor::new(text, word.start), word.end, true) {
        return Some((word.start..end, PLACEHOLDER));
    }
    find_generated_id(text, since, word)
}

/// Noise in a word that begins with a digit and contains a letter.
fn find_quantity_noise(text: &[u8], since: usize, word: &Range<usize>) -> Option<Replacement> {
    if let Some(date) = find_named_date(text, since, word.start) {
        return Some((date, PLACEHOLDER));
    }
    let c = Cursor::new(text, word.start);
    let end = noise_end(c, word.end, true)
        .or_else(|| is_ordinal_attempt(text, since, word).then_some(word.end));
    match end {
        Some(end) => Some((word.start..end, PLACEHOLDER)),
        None => find_generated_id(text, since, word),
    }
}

/// An id that a machine made: a long word with digits in several places, a word after a
/// prefix that ids have (`req_`), or one after a label (`ID: 44d4c0`).
fn find_generated_id(text: &[u8], since: usize, word: &Range<usize>) -> Option<Replacement> {
    /// Shorter words with digits are names: `postgres16alpine`.
    const LONG_LEN_MIN: usize = 18;
    #[rustfmt::skip]
    const PREFIXES: [&str; 12] = [
        "req", "call", "msg", "resp", "evt", "trace", "span", "sess", "toolu", "chatcmpl", "corr",
        "txn",
    ];
    let id = text.get(word.clone())?;
    if word.len() >= LONG_LEN_MIN && ids::is_long_id(id) {
        return Some((word.clone(), PLACEHOLDER));
    }
    let before = text.get(..word.start)?;
    if let [rest @ .., b'_'] = before {
        let letters = rest.iter().rev().take_while(|b| b.is_ascii_alphabetic());
        let prefix = rest.get(rest.len() - letters.count()..)?;
        if word.len() >= 6 && is_one_of(prefix, &PREFIXES) {
            return Some((word.clone(), PLACEHOLDER));
        }
    }
    find_labelled_id(text, word).or_else(|| find_nanoid(text, since, word))
}

/// The word after `ID:`, `id=` and the like, with what `_` or `-` joins to it.
fn find_labelled_id(text: &[u8], word: &Range<usize>) -> Option<Replacement> {
    is_after_label(text, word.start, &ID_LABELS)
        .then(|| (word.start..joined_end(text, word.end), PLACEHOLDER))
}

/// Matches `V1StGXR8_Z5jdHi6B-myT`: 21 letters, digits, `_` and `-`.
fn find_nanoid(text: &[u8], since: usize, word: &Range<usize>) -> Option<Replacement> {
    let before = text.get(since..word.start)?;
    let joined = before.iter().rev().take(ids::NANOID_LEN);
    let start = word.start - joined.take_while(|b| is_joined(**b)).count();
    let id = start..joined_end(text, word.end);
    ids::is_nanoid(text.get(id.clone())?).then_some((id, PLACEHOLDER))
}

fn is_joined(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// The end of what is joined to the word that ends at `end`; bounded, since more is no id.
fn joined_end(text: &[u8], end: usize) -> usize {
    const JOINED_BYTES_MAX: usize = 40;
    let rest = text.get(end..).unwrap_or_default();
    let joined = rest.iter().take(JOINED_BYTES_MAX);
    end + joined.take_while(|b| is_joined(**b)).count()
}

/// Labels of ids, and of clocks.
const ID_LABELS: [&str; 5] = ["id", "ids", "ts", "pgid", "epoch"];
const CLOCK_LABELS: [&str; 6] = ["ts", "time", "timestamp", "epoch", "at", "date"];

/// Whether seconds since 1970 are a clock's. A number that stands alone is the result.
fn is_clock(text: &[u8], at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    matches!(before.last(), Some(b'[' | b'(')) || is_after_label(text, at, &CLOCK_LABELS)
}

/// Whether one of the labels stands before `at`: "Request ID: ", "ts=".
fn is_after_label(text: &[u8], at: usize, labels: &[&str]) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let gap = before
        .iter()
        .rev()
        .take_while(|b| matches!(b, b' ' | b':' | b'=' | b'#'))
        .count();
    let (label, gap) = before.split_at(before.len() - gap);
    if !gap.iter().any(|b| matches!(b, b':' | b'=')) || gap.len() > 3 {
        return false;
    }
    let letters = label.iter().rev().take_while(|b| b.is_ascii_alphabetic());
    let word = label.get(label.len() - letters.count()..);
    word.is_some_and(|word| is_one_of(word, labels))
}

/// The end of a rate that begins with a number which ends here: " MB/s".
fn rate_end(mut c: Cursor) -> Option<usize> {
    c.eat(b' ');
    c.eat_any(b"kKMGT");
    c.eat(b'i');
    (c.eat_any(b"Bb") && c.eat(b'/') && c.eat(b's') && c.is_word_end()).then_some(c.at)
}

/// Noise in a word that consists of digits.
fn find_digits_noise(text: &[u8], since: usize, word: &Range<usize>) -> Option<Replacement> {
    let c = Cursor::new(text, word.start);
    let next = c.with_offset(word.end).peek(0);
    let may_be_day = match word.len() {
        1 | 2 => true,
        4 | 8 => matches!(next, b'-' | b'/' | b'_'),
        _ => false,
    };
    if may_be_day && let Some(date) = find_named_date(text, since, word.start) {
        return Some((date, PLACEHOLDER));
    }
    if word.len() == 1
        && next == b':'
        && let Some(end) = ephemeral::windows_temp_path_end(c)
    {
        return Some((word.start..end, TEMP_PLACEHOLDER));
    }
    if word.len() == 8
        && next == b'-'
        && let Some(end) = ids::uuid_end(c)
    {
        return Some((word.start..end, PLACEHOLDER));
    }
    if is_fraction(c) {
        return None;
    }
    if word.len() == ephemeral::PORT_DIGITS && ephemeral::is_port(c) {
        return Some((word.clone(), PLACEHOLDER));
    }
    let digits = text.get(word.clone()).unwrap_or_default();
    let end = measurement_end(c, word.end)
        .or_else(|| rate_end(c.with_offset(datetime::decimal_end(c))))
        .or_else(|| is_attempt_count(text, since, word).then_some(word.end))
        .or_else(|| {
            (is_epoch(digits) && is_clock(text, word.start)).then(|| datetime::decimal_end(c))
        })
        .or_else(|| is_after_label(text, word.start, &ID_LABELS).then_some(word.end))?;
    Some((word.start..end, PLACEHOLDER))
}

/// The date that begins with a name and includes this number and the text after it.
fn find_named_date(text: &[u8], since: usize, number: usize) -> Option<Range<usize>> {
    let last = date_name_before(text, since, number)?;
    let first = date_name_before(text, since, last);
    let mut starts = first.into_iter().chain([last]);
    starts.find_map(|start| Some(start..datetime::named_date_end(Cursor::new(text, start))?))
}

/// The start of the name of a day or a month directly before `at`.
fn date_name_before(text: &[u8], since: usize, at: usize) -> Option<usize> {
    let mut before = text.get(since..at)?;
    // Most numbers follow a different byte.
    if !matches!(before, [.., b' ' | b',']) {
        return None;
    }
    for separator in [b' ', b','] {
        if let [rest @ .., last] = before
            && *last == separator
        {
            before = rest;
        }
    }
    let end = since + before.len();
    let letters = before.iter().rev().take_while(|b| b.is_ascii_alphabetic());
    let name = before.get(before.len() - letters.count()..)?;
    let start = end - name.len();
    let is_word = start == since || !text.get(start - 1)?.is_ascii_digit();
    (is_word && datetime::can_begin_date_name(name)).then_some(start)
}

/// Whether a number counts attempts or is a process id: "attempt 4", "read 3× this
/// session", "3 times", "pid 12".
#[inline]
fn is_attempt_count(text: &[u8], since: usize, word: &Range<usize>) -> bool {
    const COUNT_WORDS_AFTER: [&str; 7] = [
        "times", "attempt", "attempts", "try", "tries", "retry", "retries",
    ];
    let mut c = Cursor::new(text, word.end);
    c.eat(b' ');
    let has_count_word = match c.peek(0) {
        TIMES_SIGN_FIRST => c.peek(1) == TIMES_SIGN_LAST,
        _ => can_begin_count_word(c) && is_one_of(c.eat_letters(), &COUNT_WORDS_AFTER),
    };
    has_count_word || has_count_word_before(text, since, word.start)
}

/// Whether an ordinal counts attempts: "2nd try".
fn is_ordinal_attempt(text: &[u8], since: usize, word: &Range<usize>) -> bool {
    const ORDINAL_NOUNS: [&str; 4] = ["time", "attempt", "try", "retry"];
    let mut c = Cursor::new(text, word.start);
    if is_fraction(c) {
        return false;
    }
    c.skip_while(|b| b.is_ascii_digit());
    let ending = c.with_offset(word.end).slice_from(c.at);
    if !matches!(ending, b"st" | b"nd" | b"rd" | b"th") {
        return false;
    }
    c.at = word.end;
    c.eat(b' ');
    c.rest().starts_with("×".as_bytes())
        || is_one_of(c.eat_letters(), &ORDINAL_NOUNS)
        || has_count_word_before(text, since, word.start)
}

/// The two UTF-8 bytes of ×.
const TIMES_SIGN_FIRST: u8 = 0xc3;
const TIMES_SIGN_LAST: u8 = 0x97;

/// Whether the text before a number makes it a count of attempts or a process id.
fn has_count_word_before(text: &[u8], since: usize, number: usize) -> bool {
    let here = Cursor::new(text, number);
    let spaced = usize::from(here.peek_back(1) == b' ');
    if here.peek_back(spaced + 1) == TIMES_SIGN_LAST
        && here.peek_back(spaced + 2) == TIMES_SIGN_FIRST
    {
        return true;
    }
    let word_end = gap_start(text, number).max(since);
    let gap = here.slice_from(word_end);
    (1..=SEPARATOR_BYTES_MAX).contains(&gap.len())
        && ends_with_count_word(text, since, word_end, gap)
}

/// The start of the gap before a number. The search stops once the gap is too long.
#[inline]
fn gap_start(text: &[u8], number: usize) -> usize {
    let mut at = number;
    while number - at <= SEPARATOR_BYTES_MAX
        && let Some(byte) = at.checked_sub(1).and_then(|at| text.get(at))
        && preceding_word::is_separator(*byte)
    {
        at -= 1;
    }
    at
}

/// Whether the word that ends at `end` makes the number after `gap` a count.
fn ends_with_count_word(text: &[u8], since: usize, end: usize, gap: &[u8]) -> bool {
    const COUNT_WORDS_BEFORE: [&str; 7] = [
        "attempt", "attempts", "try", "tries", "retry", "retries", "pid",
    ];
    let before = text.get(since..end).unwrap_or_default();
    let letters = before.iter().rev().take_while(|b| b.is_ascii_alphabetic());
    let (before, word) = before.split_at(before.len() - letters.count());
    // A comparison in the gap is closer to the number than the word is.
    let compares = gap.windows(2).any(|pair| matches!(pair, b"==" | b"<="));
    !compares
        && !before.last().is_some_and(u8::is_ascii_digit)
        && is_one_of(word, &COUNT_WORDS_BEFORE)
}
