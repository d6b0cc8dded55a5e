//! Results, read from stop to stop: most of a result are words and what stands
//! between them, which nobody looks at. What a number means is asked of the text
//! before it when there is a number.

use super::before::BETWEEN_BYTES_MAX;
use super::cursor::Cursor;
use super::scan::{Scan, TEMP, in_number, noise, word_end};
use super::stops::Stops;
use super::{MASKED, before, ids, json, media, one_of, place, when};
use std::ops::Range;

/// What is noise, and what stands for it.
type Noise = (Range<usize>, &'static [u8]);

/// Goes through a text that a tool returned.
pub fn read<F: FnMut(&[u8])>(scan: &mut Scan<'_, F>) {
    let mut stops = Stops::default();
    let mut payloads = media::payloads(scan.text).into_iter().peekable();
    let mut line_start = 0;
    loop {
        let stop = stops.next(scan.text, scan.at);
        while payloads
            .next_if(|payload| payload.start < scan.at)
            .is_some()
        {}
        let is_next = |payload: &Range<usize>| stop.is_none_or(|stop| payload.start <= stop);
        if let Some(payload) = payloads.next_if(is_next) {
            scan.replace(payload, MASKED);
            continue;
        }
        let Some(stop) = stop else { break };
        let (noise, end) = match scan.text.get(stop) {
            Some(b'\n') => {
                if let Some(byte) = scan.text.get_mut(stop) {
                    *byte = b' ';
                }
                // "last attempt\n4 files": the next line counts something else.
                line_start = stop + 1;
                (None, stop + 1)
            }
            Some(b'"' | b'\'') => (member(scan.text, stop), stop + 1),
            Some(b'/') => (temp_path(scan.text, stop), stop + 1),
            Some(b':') => (behind_word(scan.text, scan.at, stop), stop + 1),
            Some(b'-') => (uuid_of_letters(scan.text, scan.at, stop), stop + 1),
            _ => {
                let word = word_around(scan.text, scan.at, stop);
                let since = scan.plain.max(line_start);
                (number(scan.text, since, &word), word.end)
            }
        };
        match noise {
            Some((range, with)) => scan.replace(range, with),
            None => scan.at = end,
        }
    }
    scan.at = scan.text.len();
}

/// `"messageId": "om_1"`, `"ts": 7`.
fn member(text: &[u8], quote: usize) -> Option<Noise> {
    // Behind a word it ends a string, or is an apostrophe.
    let opens = !Cursor::new(text, quote).behind(1).is_ascii_alphanumeric();
    let value = opens.then(|| json::noise(text, quote)).flatten()?;
    Some((value, MASKED))
}

fn temp_path(text: &[u8], slash: usize) -> Option<Noise> {
    let end = place::temp_path(Cursor::new(text, slash))?;
    Some((slash..end, TEMP))
}

/// What a word with a colon behind it announces: a picture, or a path. What lies
/// before `from` is decided.
fn behind_word(text: &[u8], from: usize, colon: usize) -> Option<Noise> {
    let before = text.get(from..colon)?;
    let is_alone = |length: usize| {
        let word = before.len().checked_sub(length + 1);
        !word.is_some_and(|at| before.get(at).is_some_and(u8::is_ascii_alphanumeric))
    };
    match before {
        [.., b'd', b'a', b't', b'a'] if is_alone(4) => {
            let payload = media::data_uri(text, colon - 4)?;
            Some((payload, MASKED))
        }
        [.., b'a'..=b'z' | b'A'..=b'Z'] if is_alone(1) => {
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
    let word = word_around(text, from, hyphen.checked_sub(1)?);
    let is_first = word.len() == FIRST && word.end == hyphen;
    let end = is_first.then(|| ids::uuid(Cursor::new(text, word.start)));
    Some((word.start..end.flatten()?, MASKED))
}

/// The letters and digits around `at`, from `from` on.
fn word_around(text: &[u8], from: usize, at: usize) -> Range<usize> {
    let before = text.get(from..at).unwrap_or_default();
    let back = before
        .iter()
        .rev()
        .take_while(|b| b.is_ascii_alphanumeric());
    let start = at - back.count();
    start..word_end(text, at).0
}

/// A word with a digit in it: all but the words around a number is told by it.
/// Nothing before `since` has to do with it.
fn number(text: &[u8], since: usize, word: &Range<usize>) -> Option<Noise> {
    if let Some(date) = named_date(text, since, word.start) {
        return Some((date, MASKED));
    }
    let c = Cursor::new(text, word.start);
    if word.len() == 1
        && c.peek(1) == b':'
        && let Some(end) = place::windows_temp_path(c)
    {
        return Some((word.start..end, TEMP));
    }
    let end = noise(c, word.end, true).or_else(|| count(text, since, word))?;
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

/// The end of a number that counts tries: "attempt 4", "read 3× this session",
/// "3 times", "2nd try", "pid 12".
fn count(text: &[u8], since: usize, word: &Range<usize>) -> Option<usize> {
    const BEHIND: [&str; 7] = [
        "times", "attempt", "attempts", "try", "tries", "retry", "retries",
    ];
    const ORDERED: [&str; 4] = ["time", "attempt", "try", "retry"];
    let here = Cursor::new(text, word.start);
    let mut c = here;
    if in_number(c) || c.skip(|b| b.is_ascii_digit()) == 0 {
        return None;
    }
    let number_end = c.at;
    let mut c = c.to(word.end);
    let ordinal = matches!(c.since(number_end), b"st" | b"nd" | b"rd" | b"th");
    if !ordinal && number_end != word.end {
        return None;
    }
    c.eat(b' ');
    let spaced = usize::from(here.behind(1) == b' ');
    let counted = if ordinal { &ORDERED[..] } else { &BEHIND[..] };
    let is_count = c.rest().starts_with("×".as_bytes())
        || [here.behind(spaced + 2), here.behind(spaced + 1)] == *"×".as_bytes()
        || one_of(c.letters(), counted)
        || is_told_to_count(text, since, word.start);
    is_count.then_some(word.end)
}

/// Whether the word before a number says that it counts tries, or names a
/// process.
fn is_told_to_count(text: &[u8], since: usize, number: usize) -> bool {
    const BEFORE: [&str; 7] = [
        "attempt", "attempts", "try", "tries", "retry", "retries", "pid",
    ];
    let before = text.get(since..number).unwrap_or_default();
    if !before.last().is_some_and(|b| before::is_between(*b)) {
        return false;
    }
    let gap = before.iter().rev().take_while(|b| before::is_between(**b));
    let gap = gap.take(BETWEEN_BYTES_MAX + 1).count();
    let (before, gap) = before.split_at(before.len() - gap);
    let letters = before.iter().rev().take_while(|b| b.is_ascii_alphabetic());
    let (before, word) = before.split_at(before.len() - letters.count());
    // A comparison is nearer to the number than the word.
    let compares = gap.windows(2).any(|pair| matches!(pair, b"==" | b"<="));
    gap.len() <= BETWEEN_BYTES_MAX
        && !compares
        && !before.last().is_some_and(u8::is_ascii_digit)
        && one_of(word, &BEFORE)
}
