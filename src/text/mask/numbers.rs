//! Numbers in results. What one means is said by the bytes beside it, and asked of
//! the text before it when it may be noise.

use super::before::{self, BETWEEN_BYTES_MAX};
use super::cursor::Cursor;
use super::results::Noise;
use super::scan::{TEMP, in_number, measure, noise, word_end};
use super::{MASKED, ids, one_of, place, when};
use std::ops::Range;

/// Whether the digits at `at` can be nothing but a number, by the bytes beside them.
/// That is so for most, and nobody need ask further.
#[inline]
pub fn is_plain(text: &[u8], at: usize) -> bool {
    let (before, rest) = text.split_at_checked(at).unwrap_or_default();
    // At the beginning nothing stands before.
    let Some(before) = before.last_chunk::<BEFORE>() else {
        return false;
    };
    let last = before[BEFORE - 1];
    if last.is_ascii_alphabetic() {
        // Then the word is no hash.
        return !last.is_ascii_hexdigit();
    }
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    !begins_noise(Cursor::new(text, at + digits), digits) && !may_end_noise(before)
}

/// So many bytes before a number are looked at: more than the longest gap, and the
/// end of a word.
const BEFORE: usize = 8;

/// Whether so many digits and what follows them can be a date, a time, an address, a
/// duration or a count, by the next two bytes.
#[inline]
fn begins_noise(c: Cursor, digits: usize) -> bool {
    let (next, second) = (c.peek(0), c.peek(1));
    match next {
        b'.' | b',' => second.is_ascii_digit(),
        b' ' if second.is_ascii_alphabetic() => {
            let is_name = second.is_ascii_uppercase() && digits <= 2;
            is_name || begins_count(c.to(c.at + 1)) || when::begins_unit(c.to(c.at + 1))
        }
        b' ' => second >= 0x80,
        b':' => digits <= 2 && (second.is_ascii_digit() || matches!(second, b'/' | b'\\')),
        b'-' | b'/' => digits == 8 || second.is_ascii_digit() || second.is_ascii_uppercase(),
        b'_' => digits == 8,
        _ => next.is_ascii_alphabetic() || next >= 0x80,
    }
}

/// Whether this can be a word that is counted, by its first two letters.
#[inline]
fn begins_count(c: Cursor) -> bool {
    let second = c.peek(1) | 0x20;
    match c.peek(0) | 0x20 {
        b't' => matches!(second, b'i' | b'r'),
        b'a' => second == b't',
        b'r' => second == b'e',
        _ => false,
    }
}

/// Whether a word that counts can end with these letters.
#[inline]
fn ends_count(second: u8, last: u8) -> bool {
    matches!(
        (second | 0x20, last | 0x20),
        (b'p', b't') | (b't' | b'e', b's') | (b'r', b'y') | (b'i', b'd')
    )
}

/// Whether the name of a day or a month can end with these letters: in full, or its
/// first three.
#[inline]
fn ends_name(second: u8, last: u8) -> bool {
    let second = second | 0x20;
    match last | 0x20 {
        // Days in full; January and February, May and July.
        b'y' => matches!(second, b'a' | b'r' | b'l'),
        // March; Thursday and Sunday in short are below.
        b'h' => second == b'c',
        b'l' => matches!(second, b'i' | b'u'),
        b'e' => matches!(second, b'n' | b'u'),
        b't' => matches!(second, b's' | b'a' | b'c'),
        b'r' => matches!(second, b'e' | b'a' | b'p'),
        b'n' => matches!(second, b'o' | b'u' | b'a'),
        b'd' | b'b' | b'c' | b'p' => second == b'e',
        b'u' => second == b'h',
        b'i' => second == b'r',
        b'g' => second == b'u',
        b'v' => second == b'o',
        _ => false,
    }
}

/// Whether what stands before a number can make it a count, or the last of a date.
#[inline]
fn may_end_noise(before: &[u8; BEFORE]) -> bool {
    let mut gap = 0;
    while let Some(byte) = before.get(BEFORE - 1 - gap)
        && (before::is_between(*byte) || *byte == b',')
        && gap < BEFORE - 1
    {
        gap += 1;
    }
    // A gap of that length belongs to no word.
    let Some([.., second, last]) = before.get(..BEFORE - gap) else {
        return false;
    };
    match *last {
        b'a'..=b'z' | b'A'..=b'Z' => ends_count(*second, *last) || ends_name(*second, *last),
        TIMES_LAST => true,
        _ => false,
    }
}

/// The letters and digits around `at`.
pub fn word_around(text: &[u8], at: usize) -> Range<usize> {
    let before = text.get(..at).unwrap_or_default();
    let back = before
        .iter()
        .rev()
        .take_while(|b| b.is_ascii_alphanumeric());
    let start = at - back.count();
    start..word_end(text, at).0
}

/// The digits at `at` and the word around them: all but the words around a number
/// is told by it. Nothing before `since` has to do with it. Says how far it looked.
#[inline(never)]
pub fn number(text: &[u8], since: usize, at: usize) -> (Option<Noise>, usize) {
    let c = Cursor::new(text, at);
    if c.behind(1).is_ascii_alphabetic() {
        let word = word_around(text, at);
        return (machine_made(text, &word), word.end);
    }
    let mut end = at + 1;
    while let Some(b'0'..=b'9') = text.get(end) {
        end += 1;
    }
    if c.to(end).peek(0).is_ascii_alphabetic() {
        let word = at..word_end(text, end).0;
        return (quantity(text, since, &word), word.end);
    }
    (digits(text, since, &(at..end)), end)
}

/// A word that begins with a letter and has a digit.
fn machine_made(text: &[u8], word: &Range<usize>) -> Option<Noise> {
    // Most are too short for a hash.
    if word.len() < ids::HEX_WORD_LEN_MIN {
        return None;
    }
    let end = noise(Cursor::new(text, word.start), word.end, true)?;
    Some((word.start..end, MASKED))
}

/// A word that begins with a digit and has a letter.
fn quantity(text: &[u8], since: usize, word: &Range<usize>) -> Option<Noise> {
    if let Some(date) = named_date(text, since, word.start) {
        return Some((date, MASKED));
    }
    let c = Cursor::new(text, word.start);
    let end = noise(c, word.end, true);
    let end = end.or_else(|| is_ordinal_count(text, since, word).then_some(word.end))?;
    Some((word.start..end, MASKED))
}

/// A word of digits.
fn digits(text: &[u8], since: usize, word: &Range<usize>) -> Option<Noise> {
    let c = Cursor::new(text, word.start);
    let next = c.to(word.end).peek(0);
    let may_be_day = match word.len() {
        1 | 2 => true,
        4 | 8 => matches!(next, b'-' | b'/' | b'_'),
        _ => false,
    };
    if may_be_day && let Some(date) = named_date(text, since, word.start) {
        return Some((date, MASKED));
    }
    if word.len() == 1
        && next == b':'
        && let Some(end) = place::windows_temp_path(c)
    {
        return Some((word.start..end, TEMP));
    }
    if word.len() == 8
        && next == b'-'
        && let Some(end) = ids::uuid(c)
    {
        return Some((word.start..end, MASKED));
    }
    if in_number(c) {
        return None;
    }
    let end = measure(c, word.end).or_else(|| is_count(text, since, word).then_some(word.end))?;
    Some((word.start..end, MASKED))
}

/// The date that ends with this number and what follows, and begins with a name.
fn named_date(text: &[u8], since: usize, number: usize) -> Option<Range<usize>> {
    let last = name_before(text, since, number)?;
    let first = name_before(text, since, last);
    let mut starts = first.into_iter().chain([last]);
    starts.find_map(|start| Some(start..when::named_date(Cursor::new(text, start))?))
}

/// Where the name of a day or a month begins that stands before `at`.
fn name_before(text: &[u8], since: usize, at: usize) -> Option<usize> {
    let mut before = text.get(since..at)?;
    // Most numbers stand behind something else.
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
    (is_word && when::begins_name(name)).then_some(start)
}

/// Whether a number of digits alone counts tries: "attempt 4", "read 3× this
/// session", "3 times", "pid 12".
#[inline]
fn is_count(text: &[u8], since: usize, word: &Range<usize>) -> bool {
    const BEHIND: [&str; 7] = [
        "times", "attempt", "attempts", "try", "tries", "retry", "retries",
    ];
    let mut c = Cursor::new(text, word.end);
    c.eat(b' ');
    let is_told = match c.peek(0) {
        TIMES_FIRST => c.peek(1) == TIMES_LAST,
        _ => begins_count(c) && one_of(c.letters(), &BEHIND),
    };
    is_told || counts_before(text, since, word.start)
}

/// Whether a number with an ending counts tries: "2nd try".
fn is_ordinal_count(text: &[u8], since: usize, word: &Range<usize>) -> bool {
    const ORDERED: [&str; 4] = ["time", "attempt", "try", "retry"];
    let mut c = Cursor::new(text, word.start);
    if in_number(c) {
        return false;
    }
    c.skip(|b| b.is_ascii_digit());
    let ending = c.to(word.end).since(c.at);
    if !matches!(ending, b"st" | b"nd" | b"rd" | b"th") {
        return false;
    }
    c.at = word.end;
    c.eat(b' ');
    c.rest().starts_with("×".as_bytes())
        || one_of(c.letters(), &ORDERED)
        || counts_before(text, since, word.start)
}

/// The two bytes of ×.
const TIMES_FIRST: u8 = 0xc3;
const TIMES_LAST: u8 = 0x97;

/// Whether what stands before a number says that it counts tries, or names a
/// process.
fn counts_before(text: &[u8], since: usize, number: usize) -> bool {
    let here = Cursor::new(text, number);
    let spaced = usize::from(here.behind(1) == b' ');
    if here.behind(spaced + 1) == TIMES_LAST && here.behind(spaced + 2) == TIMES_FIRST {
        return true;
    }
    let word_end = gap_start(text, number).max(since);
    let gap = here.since(word_end);
    (1..=BETWEEN_BYTES_MAX).contains(&gap.len()) && is_told_to_count(text, since, word_end, gap)
}

/// Where the gap before a number begins, or it has become too long.
#[inline]
fn gap_start(text: &[u8], number: usize) -> usize {
    let mut at = number;
    while number - at <= BETWEEN_BYTES_MAX
        && let Some(byte) = at.checked_sub(1).and_then(|at| text.get(at))
        && before::is_between(*byte)
    {
        at -= 1;
    }
    at
}

/// Whether the word that ends at `end` tells the number behind the `gap` to count.
fn is_told_to_count(text: &[u8], since: usize, end: usize, gap: &[u8]) -> bool {
    const BEFORE: [&str; 7] = [
        "attempt", "attempts", "try", "tries", "retry", "retries", "pid",
    ];
    let before = text.get(since..end).unwrap_or_default();
    let letters = before.iter().rev().take_while(|b| b.is_ascii_alphabetic());
    let (before, word) = before.split_at(before.len() - letters.count());
    // A comparison is nearer to the number than the word.
    let compares = gap.windows(2).any(|pair| matches!(pair, b"==" | b"<="));
    !compares && !before.last().is_some_and(u8::is_ascii_digit) && one_of(word, &BEFORE)
}
