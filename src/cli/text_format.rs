//! Formatting of numbers, amounts and untrusted text for people.

use std::collections::HashMap;

use unicode_width::UnicodeWidthChar;

use crate::domain::sanitize;

/// `12300` as `12,300`.
pub(super) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 event`, `12 events`, `no events`.
pub(super) fn pluralize(number: u64, what: &str) -> String {
    match number {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{} {what}s", group_digits(number)),
    }
}

/// Dollars with cents, or with more digits for amounts below ten cents.
pub(super) fn format_usd(usd: f64) -> String {
    if usd < 0.000_1 {
        return "under $0.0001".to_owned();
    }
    if usd < 0.1 {
        return format!("${usd:.4}");
    }
    if usd >= 1e15 {
        return format!("${usd:.1e}");
    }
    let cents = (usd * 100.0).round() as u64;
    format!("${}.{:02}", group_digits(cents / 100), cents % 100)
}

/// `key=value` for each label, sorted.
pub(super) fn format_labels(labels: &HashMap<String, String>) -> Vec<String> {
    let mut texts: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    texts.sort_unstable();
    texts
}

/// Sanitizes text and breaks it into lines of at most `width` columns, at white
/// space if possible.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    let mut columns = 0;
    for word in sanitize(text).split(' ') {
        if columns > 0 && columns + 1 + display_width(word) > width {
            lines.push(std::mem::take(&mut line));
            columns = 0;
        } else if columns > 0 {
            line.push(' ');
            columns += 1;
        }
        for c in word.chars() {
            if columns > 0 && columns + char_width(c) > width {
                lines.push(std::mem::take(&mut line));
                columns = 0;
            }
            line.push(c);
            columns += char_width(c);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Untrusted text on one line, without control and other invisible characters.
/// All text from a service, an agent or a file passes through here.
pub(super) fn sanitize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let word_start = out.len();
        out.extend(word.chars().filter(|c| !sanitize::is_invisible(*c)));
        if word_start > 0 && out.len() > word_start {
            out.insert(word_start, ' ');
        }
    }
    out
}

/// The start of a line in at most `width_max` columns, with `…` if it is cut.
pub(super) fn truncate(text: &str, width_max: usize) -> String {
    if display_width(text) <= width_max {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut columns = 0;
    for c in text.chars() {
        // One column is reserved for the `…`.
        if columns + char_width(c) + 1 > width_max {
            break;
        }
        out.push(c);
        columns += char_width(c);
    }
    if width_max > 0 {
        out.push('…');
    }
    out
}

/// The end of a line in at most `width_max` columns.
pub(super) fn truncate_start(text: &str, width_max: usize) -> String {
    let mut remaining = width_max;
    let fits = |c: &char| {
        let fits = char_width(*c) <= remaining;
        remaining = remaining.saturating_sub(char_width(*c));
        fits
    };
    let last: Vec<char> = text.chars().rev().take_while(fits).collect();
    last.into_iter().rev().collect()
}

/// The width of a line in terminal columns.
pub(super) fn display_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// `12,300` as `12.3k`, for narrow columns. A negative number is 0.
pub(super) fn abbreviate_number(number: i32) -> String {
    match number {
        ..10_000 => group_digits(number.max(0).unsigned_abs().into()),
        10_000..1_000_000 => format!("{:.1}k", f64::from(number) / 1e3),
        _ => format!("{:.1}M", f64::from(number) / 1e6),
    }
}

/// Values from 0 to 1 as bars.
pub(super) fn sparkline(values: impl IntoIterator<Item = f64>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |value: f64| {
        let height = (value.clamp(0.0, 1.0) * 7.0).ceil() as usize;
        BARS.get(height).copied().unwrap_or(' ')
    };
    values.into_iter().map(bar).collect()
}

fn char_width(c: char) -> usize {
    c.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let check = |number, expected: &str| assert_eq!(group_digits(number), expected);
        check(0, "0");
        check(999, "999");
        check(1_000, "1,000");
        check(12_300, "12,300");
        check(1_234_567, "1,234,567");
    }

    #[test]
    fn small_amounts_are_not_rounded_to_zero() {
        let check = |usd, expected: &str| assert_eq!(format_usd(usd), expected);
        check(0.000_01, "under $0.0001");
        check(0.006_9, "$0.0069");
        check(0.41, "$0.41");
        check(0.999, "$1.00");
        check(1_234.5, "$1,234.50");
        check(1e300, "$1.0e300");
    }

    #[test]
    fn counts_are_pluralized() {
        assert_eq!(pluralize(0, "event"), "no events");
        assert_eq!(pluralize(1, "event"), "1 event");
        assert_eq!(pluralize(1_200, "event"), "1,200 events");
    }

    #[test]
    fn text_is_wrapped_without_control_characters() {
        let check = |text: &str, expected: &[&str]| assert_eq!(wrap(text, 8), expected);
        check("", &[]);
        check(" \u{200b} ", &[]);
        check("one two three", &["one two", "three"]);
        check("abcdefghijkl m", &["abcdefgh", "ijkl m"]);
        check("a\u{200b} \u{202e} b", &["a b"]);
        check("\x1b[31mred\x07\r\nx", &["[31mred", "x"]);
        check("漢字漢字漢字", &["漢字漢字", "漢字"]);
    }

    #[test]
    fn untrusted_text_stays_on_one_line() {
        assert_eq!(sanitize(" a\r\n\tb "), "a b");
        assert_eq!(sanitize("\x1b[31mred\u{9b}0m\u{202e}"), "[31mred0m");
        assert_eq!(sanitize("\u{200b} a \u{200b} b"), "a b");
        assert_eq!(sanitize("line\u{2028}line\u{85}line"), "line line line");
    }

    #[test]
    fn a_line_is_truncated_to_its_width() {
        let check = |text, width, expected: &str| assert_eq!(truncate(text, width), expected);
        check("abc", 3, "abc");
        check("abcd", 3, "ab…");
        check("漢字漢字", 5, "漢字…");
        check("漢字漢字", 4, "漢…");
        check("abc", 0, "");
        assert_eq!(truncate_start("▁▂▃▄", 3), "▂▃▄");
        assert_eq!(truncate_start("▁▂▃▄", 9), "▁▂▃▄");
    }

    #[test]
    fn a_trend_is_rendered_as_a_sparkline() {
        assert_eq!(
            sparkline([0.0, 0.3, 0.51, 0.66, 1.0, 7.0, f64::NAN]),
            "▁▄▅▆██▁"
        );
    }

    #[test]
    fn large_numbers_are_abbreviated() {
        assert_eq!(abbreviate_number(9_714), "9,714");
        assert_eq!(abbreviate_number(47_631), "47.6k");
        assert_eq!(abbreviate_number(2_500_000), "2.5M");
        assert_eq!(abbreviate_number(-1), "0");
    }
}
