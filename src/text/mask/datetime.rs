//! Recognises dates, times of day and durations. Each function receives the start of a
//! word and returns the end of what it recognises.
//!
//! Cost: a bounded look-ahead from each start. The `can_begin_*` checks reject most
//! words by their first two or three bytes.

use super::cursor::Cursor;

const YEARS: std::ops::RangeInclusive<u32> = 1900..=2199;

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// A date that begins with a digit, and the time after it: `2026-05-01`,
/// `2026-05-01T10:00:00.5Z`, `01/05/2026`, `20260501T100000Z`, `5 May 2026`.
pub fn date_end(c: Cursor) -> Option<usize> {
    let end = iso_date_end(c)
        .or_else(|| compact_date_end(c))
        .or_else(|| numeric_date_end(c))
        .or_else(|| day_month_year_end(c))?;
    let after_time = skip_time(c.with_offset(end));
    after_time.is_word_end().then_some(after_time.at)
}

fn iso_date_end(mut c: Cursor) -> Option<usize> {
    c.eat_number(4, 4, YEARS)?;
    let separator = c.peek(0);
    if !c.eat_any(b"-/") {
        return None;
    }
    c.eat_number(1, 2, 1..=12)?;
    (c.eat(separator) && c.eat_number(1, 2, 1..=31).is_some()).then_some(c.at)
}

/// Matches `20260501T100000Z` and `20260501-100000`. Eight digits alone are a number.
fn compact_date_end(mut c: Cursor) -> Option<usize> {
    let day = c.eat_number(8, 8, 19_000_101..=21_991_231)? % 10_000;
    let is_date = (1..=12).contains(&(day / 100)) && (1..=31).contains(&(day % 100));
    if !is_date || !c.eat_any(b"T_-") {
        return None;
    }
    let time = c.eat_number(6, 6, 0..=235_960)?;
    let is_time = time / 100 % 100 < 60 && time % 100 <= 60;
    c.eat(b'Z');
    is_time.then_some(c.at)
}

/// Matches `1/5/2026` and `01.05.2026`. The dotted form requires two digits each,
/// because `1.5.2026` is a version.
fn numeric_date_end(mut c: Cursor) -> Option<usize> {
    let dotted = c.peek(2) == b'.';
    let least = if dotted { 2 } else { 1 };
    let separator = if dotted { b'.' } else { b'/' };
    let first = c.eat_number(least, 2, 1..=31)?;
    if !c.eat(separator) {
        return None;
    }
    let second = c.eat_number(least, 2, 1..=31)?;
    let is_date = first.min(second) <= 12 && c.eat(separator);
    (is_date && c.eat_number(4, 4, YEARS).is_some()).then_some(c.at)
}

/// Matches `5 May 2026`, and `05/May/2026` as in web server logs.
fn day_month_year_end(mut c: Cursor) -> Option<usize> {
    c.eat_number(1, 2, 1..=31)?;
    let separator = c.peek(0);
    let is_date = c.eat_any(b" -/") && is_date_name(c.eat_letters(), &MONTHS) && c.eat(separator);
    (is_date && c.eat_number(4, 4, YEARS).is_some()).then_some(c.at)
}

/// A date that begins with a name: `May 26 10:10` as printed by `ls`, `May 5, 2026`,
/// `Mon May 5 10:00:00 CEST 2026`, `Tue, 05 May 2026 10:00:00 GMT`. A month and a day
/// alone are ambiguous ("in May 3 failed") and are not a date.
pub fn named_date_end(mut c: Cursor) -> Option<usize> {
    let mut name = c.eat_letters();
    if is_date_name(name, &DAYS) {
        c.eat(b',');
        c.eat(b' ');
        if let Some(end) = date_end(c) {
            return Some(end);
        }
        name = c.eat_letters();
    }
    if !is_date_name(name, &MONTHS) || !c.eat(b' ') {
        return None;
    }
    c.eat_number(1, 2, 1..=31)?;
    let day = c;
    let timed = skip_time(c);
    c = if timed.at > day.at {
        skip_zone_name(timed)
    } else {
        day
    };
    c.eat(b',');
    let has_year = c.eat(b' ') && c.eat_number(4, 4, YEARS).is_some();
    if has_year {
        c = skip_time(c);
    } else if timed.at > day.at {
        c = timed;
    } else {
        return None;
    }
    c.is_word_end().then_some(c.at)
}

/// Whether the first three letters of a word can begin the name of a day or a month.
/// This runs for every capitalised word, so it is cheap.
pub fn can_begin_date_name(word: &[u8]) -> bool {
    let [b'A'..=b'Z', second, third, ..] = word else {
        return false;
    };
    let first = word.first().copied().unwrap_or_default();
    let letters = [first, *second, *third].map(|letter| letter.to_ascii_lowercase());
    matches!(
        &letters,
        b"mon"
            | b"tue"
            | b"wed"
            | b"thu"
            | b"fri"
            | b"sat"
            | b"sun"
            | b"jan"
            | b"feb"
            | b"mar"
            | b"apr"
            | b"may"
            | b"jun"
            | b"jul"
            | b"aug"
            | b"sep"
            | b"oct"
            | b"nov"
            | b"dec"
    )
}

/// A full name or its first three letters, capitalised, because "may" is not a month.
fn is_date_name(word: &[u8], list: &[&str]) -> bool {
    let [b'A'..=b'Z', ..] = word else {
        return false;
    };
    let is_long = word.len() > 3;
    let first = word.first().map(u8::to_ascii_lowercase);
    for name in list {
        let name = name.as_bytes();
        let name = if is_long { Some(name) } else { name.get(..3) };
        if let Some(name) = name
            && name.first().copied() == first
            && name.eq_ignore_ascii_case(word)
        {
            return true;
        }
    }
    false
}

/// Skips a time of day after a date.
fn skip_time(date: Cursor) -> Cursor {
    let mut c = date;
    c.eat(b',');
    if !c.eat_any(b" T:t_-") {
        return date;
    }
    parse_time_of_day(c).map_or(date, |clock| c.with_offset(clock.end))
}

/// Skips a zone name like ` CEST`, which `date` prints before the year.
fn skip_zone_name(time: Cursor) -> Cursor {
    let mut c = time;
    let is_zone = c.eat(b' ') && (2..=5).contains(&c.skip_while(|b| b.is_ascii_uppercase()));
    if is_zone { c } else { time }
}

/// A time of day without a date. `12:34` requires two digits each, or AM or PM. After a
/// colon (`main.rs:12:34`) it is a line and a column.
pub fn time_end(c: Cursor) -> Option<usize> {
    let clock = parse_time_of_day(c)?;
    let alone = c.peek_back(1) != b':' && (clock.is_unambiguous || c.peek(2) == b':');
    alone.then_some(clock.end)
}

struct TimeOfDay {
    end: usize,
    /// The time has seconds, or AM or PM.
    is_unambiguous: bool,
}

/// Matches `10:00`, `0:01:12`, `10:00:00.123`, `10:00:00,123 +0200` and `9:30 PM`.
fn parse_time_of_day(mut c: Cursor) -> Option<TimeOfDay> {
    let hours = c.eat_number(1, 2, 0..=99)?;
    if !c.eat(b':') {
        return None;
    }
    c.eat_number(2, 2, 0..=59)?;
    let mut is_sure = false;
    if c.peek(0) == b':' && c.peek(1).is_ascii_digit() {
        c.eat(b':');
        c.eat_number(2, 2, 0..=60)?;
        is_sure = true;
        if matches!(c.peek(0), b'.' | b',') && c.peek(1).is_ascii_digit() {
            c.at += 1;
            c.skip_while(|b| b.is_ascii_digit());
        }
    } else if hours > 23 {
        return None;
    }
    is_sure |= eat_am_pm(&mut c);
    eat_zone(&mut c);
    let goes_on = c.peek(0) == b':' && c.peek(1).is_ascii_digit();
    (c.is_word_end() && !goes_on).then_some(TimeOfDay {
        end: c.at,
        is_unambiguous: is_sure,
    })
}

fn eat_am_pm(c: &mut Cursor) -> bool {
    let mut half = *c;
    half.eat(b' ');
    let word = half.eat_letters();
    let is_half = word.eq_ignore_ascii_case(b"am") || word.eq_ignore_ascii_case(b"pm");
    if is_half {
        *c = half;
    }
    is_half
}

/// Skips `Z`, `+02:00`, ` +0200` or ` UTC`.
fn eat_zone(c: &mut Cursor) {
    let mut zone = *c;
    let spaced = zone.eat(b' ');
    if zone.eat_bytes(b"UTC") || zone.eat_bytes(b"GMT") || !spaced && zone.eat(b'Z') {
        *c = zone;
        return;
    }
    if !zone.eat_any(b"+-") {
        return;
    }
    let is_offset = zone.eat_number(4, 4, 0..=1400).is_some() || {
        !spaced
            && zone.eat_number(2, 2, 0..=14).is_some()
            && zone.eat(b':')
            && zone.eat_number(2, 2, 0..=59).is_some()
    };
    if is_offset && zone.is_word_end() {
        *c = zone;
    }
}

/// A duration of one or more parts, each with its unit: `0.12s`, `12 ms`, `1m30s`, `1
/// min 5 s`, `3 minutes`.
pub fn duration_end(c: Cursor) -> Option<usize> {
    /// Weeks to nanoseconds. Further parts belong to the next duration, because a long
    /// sequence would otherwise take quadratic time.
    const PARTS_MAX: usize = 8;
    let mut end = duration_part_end(c)?;
    for _ in 1..PARTS_MAX {
        let mut next = c.with_offset(end);
        let spaced = next.eat(b' ');
        if !next.peek(0).is_ascii_digit() {
            break;
        }
        match duration_part_end(next) {
            Some(further) => end = further,
            // In `max 12 min 3` the `min` may label the minimum instead of being a
            // unit.
            None if spaced && c.with_offset(end).slice_from(c.at).ends_with(b" min") => {
                return None;
            }
            None => break,
        }
    }
    let after = c.with_offset(end);
    let hyphenated = after.peek(0) == b'-' && after.peek(1).is_ascii_alphabetic();
    (after.is_word_end() && !hyphenated).then_some(end)
}

/// One number and its unit.
fn duration_part_end(mut c: Cursor) -> Option<usize> {
    c.at = decimal_end(c);
    let spaced = c.eat(b' ');
    let start = c.at;
    // The micro sign and the Greek letter mu.
    let _ = c.eat_bytes("µ".as_bytes()) || c.eat_bytes("μ".as_bytes());
    c.eat_letters();
    let unit = c.slice_from(start);
    let is_unit = match unit {
        b"ns" | b"us" | b"ms" | b"s" | b"h" | [0xc2, 0xb5, b's'] | [0xce, 0xbc, b's'] => true,
        // "5 m" may be metres and "3 d" dimensions, so these units must follow without
        // a space.
        b"m" | b"d" => !spaced,
        b"min" => !matches!(c.peek(0), b':' | b'=' | b'/'),
        // These units are usually part of a result ("valid for 2 years").
        b"month" | b"months" | b"year" | b"years" => c.rest().starts_with(b" ago"),
        _ => is_unit_word(unit),
    };
    is_unit.then_some(c.at)
}

/// Whether the first two bytes can begin a unit of time. This runs for every word after
/// a number, so it is cheap.
#[inline]
pub fn can_begin_unit(c: Cursor) -> bool {
    let (first, second) = (c.peek(0), c.peek(1));
    match first | 0x20 {
        b'n' | b'u' => second == b's',
        b's' => !second.is_ascii_alphabetic() || second | 0x20 == b'e',
        b'm' => !second.is_ascii_alphabetic() || matches!(second | 0x20, b's' | b'i' | b'o'),
        b'h' => !second.is_ascii_alphabetic() || matches!(second | 0x20, b'r' | b'o'),
        b'd' => !second.is_ascii_alphabetic() || second | 0x20 == b'a',
        b'w' | b'y' => second | 0x20 == b'e',
        // The micro sign and the Greek letter mu.
        _ => matches!(first, 0xc2 | 0xce),
    }
}

fn is_unit_word(unit: &[u8]) -> bool {
    const UNITS: [&str; 17] = [
        "sec",
        "secs",
        "second",
        "seconds",
        "mins",
        "minute",
        "minutes",
        "hr",
        "hrs",
        "hour",
        "hours",
        "day",
        "days",
        "week",
        "weeks",
        "millisecond",
        "milliseconds",
    ];
    let begins =
        |first: &u8| matches!(first.to_ascii_lowercase(), b's' | b'm' | b'h' | b'd' | b'w');
    (2..=12).contains(&unit.len())
        && unit.first().is_some_and(begins)
        && UNITS
            .iter()
            .any(|name| unit.eq_ignore_ascii_case(name.as_bytes()))
}

/// The end of a number: `12`, `0.12`, `1,234.5`.
pub fn decimal_end(mut c: Cursor) -> usize {
    /// The number of groups in the largest 64-bit number. A longer sequence is a list,
    /// and would take quadratic time.
    const GROUPS_MAX: usize = 6;
    c.skip_while(|b| b.is_ascii_digit());
    for _ in 0..GROUPS_MAX {
        let mut group = c;
        let grouped = group.eat(b',') && group.eat_number(3, 3, 0..=999).is_some();
        if !grouped {
            break;
        }
        c = group;
    }
    if c.peek(0) == b'.' && c.peek(1).is_ascii_digit() {
        c.at += 1;
        c.skip_while(|b| b.is_ascii_digit());
    }
    c.at
}
