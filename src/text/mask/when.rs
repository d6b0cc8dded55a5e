//! Dates, times of day and durations. Each function gets a place where a word
//! begins and says where what it knows ends.

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

/// A date that begins with a digit, and the time behind it: `2026-05-01`,
/// `2026-05-01T10:00:00.5Z`, `01/05/2026`, `20260501T100000Z`, `5 May 2026`.
pub fn date(c: Cursor) -> Option<usize> {
    let end = iso(c).or_else(|| compact(c)).or_else(|| day_first(c));
    let end = end.or_else(|| day_month_year(c))?;
    let c = with_time(c.to(end));
    c.word_ends().then_some(c.at)
}

fn iso(mut c: Cursor) -> Option<usize> {
    c.number(4, 4, YEARS)?;
    let separator = c.peek(0);
    if !c.eat_any(b"-/") {
        return None;
    }
    c.number(1, 2, 1..=12)?;
    (c.eat(separator) && c.number(1, 2, 1..=31).is_some()).then_some(c.at)
}

/// `20260501T100000Z`, `20260501-100000`: eight digits alone are a number.
fn compact(mut c: Cursor) -> Option<usize> {
    let day = c.number(8, 8, 19_000_101..=21_991_231)? % 10_000;
    let is_date = (1..=12).contains(&(day / 100)) && (1..=31).contains(&(day % 100));
    if !is_date || !c.eat_any(b"T_-") {
        return None;
    }
    let time = c.number(6, 6, 0..=235_960)?;
    let is_time = time / 100 % 100 < 60 && time % 100 <= 60;
    c.eat(b'Z');
    is_time.then_some(c.at)
}

/// `1/5/2026`; `01.05.2026`, with two digits each, since `1.5.2026` is a version.
fn day_first(mut c: Cursor) -> Option<usize> {
    let dotted = c.peek(2) == b'.';
    let least = if dotted { 2 } else { 1 };
    let separator = if dotted { b'.' } else { b'/' };
    let first = c.number(least, 2, 1..=31)?;
    if !c.eat(separator) {
        return None;
    }
    let second = c.number(least, 2, 1..=31)?;
    let is_date = first.min(second) <= 12 && c.eat(separator);
    (is_date && c.number(4, 4, YEARS).is_some()).then_some(c.at)
}

/// `5 May 2026`, `05/May/2026` as a web server logs it.
fn day_month_year(mut c: Cursor) -> Option<usize> {
    c.number(1, 2, 1..=31)?;
    let separator = c.peek(0);
    let is_date = c.eat_any(b" -/") && named(c.letters(), &MONTHS) && c.eat(separator);
    (is_date && c.number(4, 4, YEARS).is_some()).then_some(c.at)
}

/// A date that begins with a name: `May 26 10:10` as `ls` has it, `May 5, 2026`,
/// `Mon May 5 10:00:00 CEST 2026`, `Tue, 05 May 2026 10:00:00 GMT`. A month and
/// a day alone may be anything ("in May 3 failed").
pub fn named_date(mut c: Cursor) -> Option<usize> {
    let mut name = c.letters();
    if named(name, &DAYS) {
        c.eat(b',');
        c.eat(b' ');
        if let Some(end) = date(c) {
            return Some(end);
        }
        name = c.letters();
    }
    if !named(name, &MONTHS) || !c.eat(b' ') {
        return None;
    }
    c.number(1, 2, 1..=31)?;
    let day = c;
    let timed = with_time(c);
    c = if timed.at > day.at {
        zone_name(timed)
    } else {
        day
    };
    c.eat(b',');
    let has_year = c.eat(b' ') && c.number(4, 4, YEARS).is_some();
    if has_year {
        c = with_time(c);
    } else if timed.at > day.at {
        c = timed;
    } else {
        return None;
    }
    c.word_ends().then_some(c.at)
}

/// Whether a word can be the name of a day or a month, by its first letters: asked
/// of every word with a capital.
pub fn begins_name(word: &[u8]) -> bool {
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

/// A name in full or its first three letters, with a capital: "may" is no month.
fn named(word: &[u8], list: &[&str]) -> bool {
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

/// Goes past a time of day that follows a date.
fn with_time(date: Cursor) -> Cursor {
    let mut c = date;
    c.eat(b',');
    if !c.eat_any(b" T:t_-") {
        return date;
    }
    clock(c).map_or(date, |clock| c.to(clock.end))
}

/// ` CEST`, as `date` puts it before the year.
fn zone_name(time: Cursor) -> Cursor {
    let mut c = time;
    let is_zone = c.eat(b' ') && (2..=5).contains(&c.skip(|b| b.is_ascii_uppercase()));
    if is_zone { c } else { time }
}

/// A time of day on its own. `12:34` is one only with two digits each, or with
/// AM or PM; behind a colon (`main.rs:12:34`) it is a line and a column.
pub fn time(c: Cursor) -> Option<usize> {
    let clock = clock(c)?;
    let alone = c.behind(1) != b':' && (clock.is_sure || c.peek(2) == b':');
    alone.then_some(clock.end)
}

struct Clock {
    end: usize,
    /// It has seconds, or AM or PM.
    is_sure: bool,
}

/// `10:00`, `0:01:12`, `10:00:00.123`, `10:00:00,123 +0200`, `9:30 PM`.
fn clock(mut c: Cursor) -> Option<Clock> {
    let hours = c.number(1, 2, 0..=99)?;
    if !c.eat(b':') {
        return None;
    }
    c.number(2, 2, 0..=59)?;
    let mut is_sure = false;
    if c.peek(0) == b':' && c.peek(1).is_ascii_digit() {
        c.eat(b':');
        c.number(2, 2, 0..=60)?;
        is_sure = true;
        if matches!(c.peek(0), b'.' | b',') && c.peek(1).is_ascii_digit() {
            c.at += 1;
            c.skip(|b| b.is_ascii_digit());
        }
    } else if hours > 23 {
        return None;
    }
    is_sure |= half_of_day(&mut c);
    zone(&mut c);
    let goes_on = c.peek(0) == b':' && c.peek(1).is_ascii_digit();
    (c.word_ends() && !goes_on).then_some(Clock { end: c.at, is_sure })
}

fn half_of_day(c: &mut Cursor) -> bool {
    let mut half = *c;
    half.eat(b' ');
    let word = half.letters();
    let is_half = word.eq_ignore_ascii_case(b"am") || word.eq_ignore_ascii_case(b"pm");
    if is_half {
        *c = half;
    }
    is_half
}

/// `Z`, `+02:00`, ` +0200`, ` UTC`.
fn zone(c: &mut Cursor) {
    let mut zone = *c;
    let spaced = zone.eat(b' ');
    if zone.eat_all(b"UTC") || zone.eat_all(b"GMT") || !spaced && zone.eat(b'Z') {
        *c = zone;
        return;
    }
    if !zone.eat_any(b"+-") {
        return;
    }
    let is_offset = zone.number(4, 4, 0..=1400).is_some() || {
        !spaced
            && zone.number(2, 2, 0..=14).is_some()
            && zone.eat(b':')
            && zone.number(2, 2, 0..=59).is_some()
    };
    if is_offset && zone.word_ends() {
        *c = zone;
    }
}

/// A duration with its unit, in as many parts as it has: `0.12s`, `12 ms`,
/// `1m30s`, `1 min 5 s`, `3 minutes`.
pub fn duration(c: Cursor) -> Option<usize> {
    /// Weeks to nanoseconds. What comes behind is another one: else a row of them
    /// would cost its square.
    const PARTS_MAX: usize = 8;
    let mut end = span(c)?;
    for _ in 1..PARTS_MAX {
        let mut next = c.to(end);
        let spaced = next.eat(b' ');
        if !next.peek(0).is_ascii_digit() {
            break;
        }
        match span(next) {
            Some(further) => end = further,
            // `12 min 3` may well be a maximum and a minimum.
            None if spaced && c.to(end).since(c.at).ends_with(b" min") => return None,
            None => break,
        }
    }
    let c = c.to(end);
    let hyphenated = c.peek(0) == b'-' && c.peek(1).is_ascii_alphabetic();
    (c.word_ends() && !hyphenated).then_some(end)
}

/// One number and one unit.
fn span(mut c: Cursor) -> Option<usize> {
    c.at = decimal(c);
    let spaced = c.eat(b' ');
    let start = c.at;
    // The sign for micro, and the Greek letter.
    let _ = c.eat_all("µ".as_bytes()) || c.eat_all("μ".as_bytes());
    c.letters();
    let unit = c.since(start);
    let is_unit = match unit {
        b"ns" | b"us" | b"ms" | b"s" | b"h" | [0xc2, 0xb5, b's'] | [0xce, 0xbc, b's'] => true,
        // Five metres, three dimensions: only where it is written together.
        b"m" | b"d" => !spaced,
        b"min" => !matches!(c.peek(0), b':' | b'=' | b'/'),
        // Of these a result is made ("valid for 2 years").
        b"month" | b"months" | b"year" | b"years" => c.rest().starts_with(b" ago"),
        _ => is_long_unit(unit),
    };
    is_unit.then_some(c.at)
}

/// Whether this can be a unit of time, by its first two bytes: asked of every word
/// behind a number.
#[inline]
pub fn begins_unit(c: Cursor) -> bool {
    let (first, second) = (c.peek(0), c.peek(1));
    match first | 0x20 {
        b'n' | b'u' => second == b's',
        b's' => !second.is_ascii_alphabetic() || second | 0x20 == b'e',
        b'm' => !second.is_ascii_alphabetic() || matches!(second | 0x20, b's' | b'i' | b'o'),
        b'h' => !second.is_ascii_alphabetic() || matches!(second | 0x20, b'r' | b'o'),
        b'd' => !second.is_ascii_alphabetic() || second | 0x20 == b'a',
        b'w' | b'y' => second | 0x20 == b'e',
        // The sign for micro, and the Greek letter.
        _ => matches!(first, 0xc2 | 0xce),
    }
}

fn is_long_unit(unit: &[u8]) -> bool {
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

/// Where a number ends: `12`, `0.12`, `1,234.5`.
pub fn decimal(mut c: Cursor) -> usize {
    /// As many as the largest number of 64 bits has. A longer row is a list, and
    /// would cost its square.
    const GROUPS_MAX: usize = 6;
    c.skip(|b| b.is_ascii_digit());
    for _ in 0..GROUPS_MAX {
        let mut group = c;
        let grouped = group.eat(b',') && group.number(3, 3, 0..=999).is_some();
        if !grouped {
            break;
        }
        c = group;
    }
    if c.peek(0) == b'.' && c.peek(1).is_ascii_digit() {
        c.at += 1;
        c.skip(|b| b.is_ascii_digit());
    }
    c.at
}
