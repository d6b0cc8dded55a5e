//! Parsing and formatting of times and spans.

use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp, civil::DateTime, tz::TimeZone};
use pbjson_types as wire;

/// `09:15:10`, for a column that says UTC.
pub(super) fn format_time(stamp: &wire::Timestamp) -> String {
    format_timestamp(stamp, "%H:%M:%S")
}

/// `2026-03-11 09:15:10Z`: a reader elsewhere must not take it for their own time.
pub(super) fn format_date_time(stamp: &wire::Timestamp) -> String {
    format_timestamp(stamp, "%Y-%m-%d %H:%M:%SZ")
}

/// Empty for a time out of range.
fn format_timestamp(stamp: &wire::Timestamp, format: &str) -> String {
    let stamp = Timestamp::new(stamp.seconds, stamp.nanos);
    stamp.map_or_else(|_| String::new(), |at| at.strftime(format).to_string())
}

/// The age in one unit: `4s`, `12m`, `3h`, `5d`.
pub(super) fn format_age(stamp: Option<&wire::Timestamp>, now: Timestamp) -> String {
    let Some(stamp) = stamp else {
        return String::new();
    };
    // The service's clock may be ahead of this machine's.
    match now.as_second().saturating_sub(stamp.seconds).max(0) {
        secs @ ..60 => format!("{secs}s"),
        secs @ ..3_600 => format!("{}m", secs / 60),
        secs @ ..86_400 => format!("{}h", secs / 3_600),
        secs => format!("{}d", secs / 86_400),
    }
}

/// A span such as `30m`, `2h30m` or `1 day`.
pub(super) fn parse_span(text: &str) -> Result<SignedDuration, String> {
    let span: Span = text
        .parse()
        .map_err(|_| "expected a span such as 30m, 2h30m or 1day".to_owned())?;
    let duration = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "expected days, hours, minutes or seconds".to_owned())?;
    if duration <= SignedDuration::ZERO {
        return Err("must be greater than 0".to_owned());
    }
    Ok(duration)
}

/// An RFC 3339 time, a date in UTC, or a span before now.
pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    let ago = |span: SignedDuration| Timestamp::now().checked_sub(span).map_err(|_| ());
    let in_utc = |at: DateTime| at.to_zoned(TimeZone::UTC).map_err(|_| ());
    let date = || text.parse().map_err(|_| ()).and_then(in_utc);
    let parsed = text.parse().map_err(|_| ());
    parsed
        .or_else(|()| date().map(|at| at.timestamp()))
        .or_else(|()| parse_span(text).map_err(|_| ()).and_then(ago))
        .map_err(|()| {
            "expected a time such as 2026-03-11T09:15:00Z, a date, or a span before now such as 2h"
                .to_owned()
        })
}

pub(super) fn time_to_wire(at: Timestamp) -> wire::Timestamp {
    wire::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}

pub(super) fn span_to_wire(span: SignedDuration) -> wire::Duration {
    wire::Duration {
        seconds: span.as_secs(),
        nanos: span.subsec_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(seconds: i64) -> wire::Timestamp {
        wire::Timestamp { seconds, nanos: 0 }
    }

    #[test]
    fn an_age_has_one_unit() {
        let now = Timestamp::new(1_000_000, 0).unwrap();
        let check = |ago: i64, expected: &str| {
            let then = stamp(1_000_000 - ago);
            assert_eq!(format_age(Some(&then), now), expected);
        };
        check(-5, "0s");
        check(59, "59s");
        check(60, "1m");
        check(3_599, "59m");
        check(7_300, "2h");
        check(260_000, "3d");
        assert_eq!(format_age(None, now), "");
    }

    #[test]
    fn a_time_is_absolute_or_a_span_before_now() {
        let at = parse_time("2026-03-11T10:15:00+01:00").unwrap();
        assert_eq!(format_date_time(&time_to_wire(at)), "2026-03-11 09:15:00Z");
        let at = parse_time("2026-03-11").unwrap();
        assert_eq!(format_date_time(&time_to_wire(at)), "2026-03-11 00:00:00Z");
        let then = parse_time("2h").unwrap();
        assert_eq!(Timestamp::now().duration_since(then).as_hours(), 2);
        assert!(parse_time("yesterday").is_err());
        assert!(parse_time("-2h").is_err());
    }

    #[test]
    fn a_span_is_positive_and_has_no_months() {
        let check =
            |text, expected| assert_eq!(parse_span(text).ok().map(|s| s.as_secs()), expected);
        check("30m", Some(1_800));
        check("2h30m", Some(9_000));
        check("1day", Some(86_400));
        check("0s", None);
        check("-5m", None);
        check("1month", None);
        check("soon", None);
    }

    #[test]
    fn a_time_out_of_range_is_empty() {
        assert_eq!(format_time(&stamp(i64::MAX)), "");
    }
}
