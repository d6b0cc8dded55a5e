//! The figures of an error: counts and measurements that say how far the work is, such as
//! "34 problems", "coverage: 71.2 %", "p(99)=1.82s". Numbers that only identify or locate
//! something, and times that passed, are none: a pid, a port, a line, a version, "in 3.2s".
//!
//! Cost: linear, at most 2 KiB of a text.

use smallvec::SmallVec;

use crate::domain::sanitize;

/// The figures of a text, in its order.
pub type Figures = SmallVec<[f32; 4]>;

/// Results come first or last.
const END_BYTES_MAX: usize = 1_024;
/// More figures are a table. The first name what failed, the last sum it up.
const FIRST_FIGURES_MAX: usize = 4;
const LAST_FIGURES_MAX: usize = 4;
/// The end of a table in which its last figures are looked for.
const LAST_FIGURES_BYTES_MAX: usize = 320;
/// Longer numbers are ids.
const DIGITS_MAX: usize = 9;

/// Words before a number that locates or identifies something, or only counts tries.
#[rustfmt::skip]
const LABELS_OF_IDS: &[&str] = &[
    "line", "column", "col", "pid", "port", "attempt", "try", "retry", "code", "status", "exit",
    "errno", "version", "process", "thread", "job", "run", "build", "signal", "index", "row",
    "offset", "seed", "time", "duration", "elapsed", "took", "after", "count",
];
/// Units of time, with their length in seconds.
#[rustfmt::skip]
const TIME_UNITS: &[(&str, f32)] = &[
    ("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("sec", 1.0),
    ("secs", 1.0), ("second", 1.0), ("seconds", 1.0), ("m", 60.0), ("min", 60.0),
    ("minutes", 60.0), ("h", 3600.0),
];
/// Words before a time that is measured because it is to become shorter.
const LATENCY_LABELS: &[&str] = &[
    "latency", "avg", "mean", "median", "lcp", "fcp", "ttfb", "p50", "p75", "p90", "p95", "p99",
];
/// Letters that may follow a number directly.
const UNITS: &[&str] = &[
    "", "b", "kb", "mb", "gb", "kib", "mib", "gib", "px", "pt", "x", "k",
];

/// The figures of a text: all of a few, else the first and the last.
pub fn extract_figures(text: &str) -> Figures {
    const FIGURES_MAX: usize = FIRST_FIGURES_MAX + LAST_FIGURES_MAX;
    let mut figures = Figures::new();
    let is_whole = text.len() <= 2 * END_BYTES_MAX;
    let head = if is_whole {
        text
    } else {
        sanitize::prefix(text, END_BYTES_MAX)
    };
    let read_to = push_figures(head, FIGURES_MAX, &mut figures);
    if is_whole && read_to == text.len() {
        return figures;
    }
    let rest = text.get(read_to..).unwrap_or_default();
    let rest = if figures.len() < FIGURES_MAX {
        sanitize::suffix(rest, END_BYTES_MAX)
    } else {
        sanitize::suffix(rest, LAST_FIGURES_BYTES_MAX)
    };
    let mut last = Figures::new();
    push_figures(rest, usize::MAX, &mut last);
    if last.len() + figures.len() > FIGURES_MAX {
        // What is not among the last of both is in the middle.
        figures.extend_from_slice(&last);
        let middle = FIRST_FIGURES_MAX..figures.len() - LAST_FIGURES_MAX;
        figures.drain(middle);
    } else {
        figures.extend_from_slice(&last);
    }
    figures
}

/// Adds the figures of a text until there are `most`. Returns how far it was read.
fn push_figures(text: &str, most: usize, figures: &mut Figures) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while figures.len() < most {
        let Some(from) = bytes
            .get(at..)
            .unwrap_or_default()
            .iter()
            .position(u8::is_ascii_digit)
        else {
            return text.len();
        };
        let start = at + from;
        let end = number_end(bytes, start);
        at = end;
        if let Some(figure) = parse_figure(text, start, end) {
            figures.push(figure);
        }
    }
    at
}

/// Where the number ends that begins at `start`: digits, groups of thousands, a fraction,
/// an exponent. A date, a clock or a version ends with its last part.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = start;
    loop {
        while is_digit(end) {
            end += 1;
        }
        let joins = match bytes.get(end) {
            Some(b'.' | b',' | b':') => is_digit(end + 1),
            Some(b'e' | b'E') if is_digit(end + 1) => true,
            Some(b'e' | b'E') => {
                matches!(bytes.get(end + 1), Some(b'-' | b'+')) && is_digit(end + 2)
            }
            _ => false,
        };
        if !joins {
            return end;
        }
        end += if is_digit(end + 1) { 1 } else { 2 };
    }
}

/// The value of the number at this place, if it is a figure.
fn parse_figure(text: &str, start: usize, end: usize) -> Option<f32> {
    let (before, number, after) = (text.get(..start)?, text.get(start..end)?, text.get(end..)?);
    let value = parse_number(number)?;
    let last = before.as_bytes().last().copied().unwrap_or(b' ');
    let next = after.as_bytes().first().copied().unwrap_or(b' ');
    let is_part_of_name = last.is_ascii_alphanumeric() || b"_.#/-@$".contains(&last);
    let is_enclosed = last == b'[' || (last, next) == (b'=', b'=') || (last, next) == (b'(', b')');
    // `a.ts(3,14)` and `host:80`, but not `(34 errors)` and `"count":34`.
    let is_place = b":(".contains(&last)
        && before
            .as_bytes()
            .iter()
            .nth_back(1)
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || b":])/".contains(byte));
    let is_range =
        b"-/:".contains(&next) && after.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let is_share_of = next == b'/';
    if is_part_of_name || is_enclosed || is_place || (is_range && !is_share_of) {
        return None;
    }
    let label = label_before(before);
    let attached = after
        .find(|c: char| !c.is_alphabetic())
        .and_then(|end| after.get(..end))
        .unwrap_or(after);
    let spaced = after.strip_prefix(' ').unwrap_or_default();
    let spaced = spaced
        .find(|c: char| !c.is_alphabetic())
        .and_then(|end| spaced.get(..end))
        .unwrap_or(spaced);
    let time_unit = |unit: &str| {
        TIME_UNITS
            .iter()
            .find(|(known, _)| *known == unit)
            .map(|(_, seconds)| *seconds)
    };
    if let Some(seconds) = time_unit(attached).or_else(|| time_unit(spaced)) {
        let is_figure = is_latency(label) || is_beside_limit(before, after);
        return is_figure.then_some(value * seconds);
    }
    let is_known_unit = UNITS.iter().any(|unit| unit.eq_ignore_ascii_case(attached));
    (is_known_unit && !is_id_label(label)).then_some(value)
}

/// The number, with its groups of thousands; `None` for dates, clocks, versions and ids.
fn parse_number(number: &str) -> Option<f32> {
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    let dots = number.bytes().filter(|byte| *byte == b'.').count();
    let has_bad_group = number
        .split(['.', 'e', 'E'])
        .next()?
        .split(',')
        .skip(1)
        .any(|group| group.len() != 3);
    if digits > DIGITS_MAX || dots > 1 || number.contains(':') || has_bad_group {
        return None;
    }
    let plain: String = number.chars().filter(|c| *c != ',').collect();
    plain.parse().ok().filter(|value: &f32| value.is_finite())
}

/// The last word before a number, with the sign between them left out: `pid` of
/// "pid 12", `p(99)` of "p(99)=1.8".
fn label_before(before: &str) -> &str {
    let label = before.trim_end_matches([' ', ':', '=', '"', '\t', '~', '<', '>', '(']);
    let start = label
        .rfind(|c: char| c.is_whitespace() || "\"{},;".contains(c))
        .map_or(0, |at| at + 1);
    label.get(start..).unwrap_or_default()
}

fn is_latency(label: &str) -> bool {
    let plain: String = label
        .chars()
        .filter(|c| c.is_alphanumeric())
        .map(|c| c.to_ascii_lowercase())
        .take(32)
        .collect();
    LATENCY_LABELS.iter().any(|known| plain.ends_with(known))
}

/// Whether a time is compared with a limit: "1510 ms exceeds the limit of 800 ms", "took 5.1 s,
/// must be under 2 s", "27.5 ms > 16.6 ms".
fn is_beside_limit(before: &str, after: &str) -> bool {
    /// Words on either side that are looked at.
    const WORDS_MAX: usize = 6;
    /// From a number to the sign, with a unit.
    const SIGN_BYTES_MAX: usize = 8;
    #[rustfmt::skip]
    const LIMITS: &[&str] = &[
        "exceeds", "exceeded", "exceeding", "limit", "under", "below", "above", "budget", "threshold",
        "slower", "maximum",
    ];
    /// The tool gave up; nothing was measured.
    const TIMEOUTS: &[&str] = &["timeout", "timed", "deadline"];
    let is_one_of =
        |word: &str, list: &[&str]| list.iter().any(|known| known.eq_ignore_ascii_case(word));
    // A sign on its own: no arrow and no tag.
    const SIGNS: &[&str] = &[" < ", " > ", " <= ", " >= ", " \u{2264} ", " \u{2265} "];
    let has_sign = |text: &str| SIGNS.iter().any(|sign| text.contains(sign));
    let before = before.rsplit('\n').next().unwrap_or_default();
    let after = after.split('\n').next().unwrap_or_default();
    let last_words = before
        .rsplit(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(WORDS_MAX);
    let next_words = after
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(WORDS_MAX);
    let words = last_words.chain(next_words);
    let is_compared = words.clone().any(|word| is_one_of(word, LIMITS))
        || has_sign(sanitize::prefix(after, SIGN_BYTES_MAX))
        || has_sign(sanitize::suffix(before, SIGN_BYTES_MAX));
    is_compared && !words.clone().any(|word| is_one_of(word, TIMEOUTS))
}

fn is_id_label(label: &str) -> bool {
    let last_word = label
        .rsplit(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or_default();
    let ends_with_id = last_word
        .len()
        .checked_sub(2)
        .and_then(|at| last_word.get(at..))
        .is_some_and(|end| end.eq_ignore_ascii_case("id"));
    let is_elapsed = ["duration", "elapsed"]
        .iter()
        .any(|word| label.to_ascii_lowercase().contains(word));
    ends_with_id
        || is_elapsed
        || LABELS_OF_IDS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(last_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[f32]) {
        assert_eq!(extract_figures(text).as_slice(), expected, "{text}");
    }

    #[test]
    fn counts_and_measurements_are_figures() {
        check("✖ 34 problems (34 errors, 0 warnings)", &[34.0, 34.0, 0.0]);
        check("Total coverage: 71.20%", &[71.2]);
        check("noch 41 Verstöße gegen Regel PLZ-Ort", &[41.0]);
        check("definitely lost: 4,096 bytes in 8 blocks", &[4096.0, 8.0]);
        check("rated at 6.12/10 (previous run: 5.90/10)", &[6.12]);
        check("max abs error 3.1e-05", &[3.1e-5]);
        check("exceeded by 48.21 kB", &[48.21]);
        check("{\"violations\":18}", &[18.0]);
        check("http_req_duration: p(99)=740.0ms", &[0.74]);
    }

    #[test]
    fn a_time_beside_a_limit_is_a_figure() {
        check(
            "response time 1.5 s exceeds the limit of 0.8 s",
            &[1.5, 0.8],
        );
        check("import took 5.5 s, must be under 2 s", &[5.5, 2.0]);
        check("frame time 27.5 s > 16.5 s", &[27.5, 16.5]);
        check("Timeout of 5000ms exceeded", &[]);
        check("timed out after 30.2s (limit 30s)", &[]);
        check("12 passed in 3.2s\nlimit reached", &[12.0]);
    }

    #[test]
    fn of_a_table_the_first_and_the_last_figures_count() {
        let rows = |last: u32| {
            let row = |n: u32| format!("src/{n}x.ts | 91.5 | 88 |\n");
            let rows: String = (0..last).map(row).collect();
            format!("{rows}lines {last}.5% below 80%")
        };
        check(&rows(3), &[91.5, 88.0, 91.5, 88.0, 91.5, 88.0, 3.5, 80.0]);
        check(&rows(9), &[91.5, 88.0, 91.5, 88.0, 91.5, 88.0, 9.5, 80.0]);
        check(
            &rows(400),
            &[91.5, 88.0, 91.5, 88.0, 91.5, 88.0, 400.5, 80.0],
        );
    }

    #[test]
    fn ids_places_and_elapsed_times_are_none() {
        for text in [
            "[41200] Error: listen EADDRINUSE: address already in use :::3000",
            "==19696== Invalid read",
            "    at Server.listen (node:net:1817:16)",
            "a.ts(3,14): error TS2339: no such property",
            "linted in 3.2s",
            "ran for 3 seconds",
            "Time: 41.2 ms",
            "{\"durationMs\": 812, \"elapsed_ms\": 4}",
            "time=\"2026-04-01T10:10:00Z\"",
            "pid 4711, port 8080, line 12, Exit code 1, attempt 3",
            "request_id: 91 at 10:11:12, v20.11.1, 127.0.0.1:5432",
            "order 1763371211",
            "x86_64",
        ] {
            check(text, &[]);
        }
    }
}
