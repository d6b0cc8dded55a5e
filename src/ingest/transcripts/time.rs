//! Times as transcripts write them.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A time as RFC 3339; without a zone, UTC.
pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    let time = jiff::Timestamp::from_str(text).or_else(|_| {
        let local = jiff::civil::DateTime::from_str(text)?;
        jiff::tz::Offset::UTC.to_timestamp(local)
    });
    time_of_millis(time.ok()?.as_millisecond())
}

/// A time in milliseconds since 1970; `None` for 0 and less, and after the year 9999.
pub(super) fn time_of_millis(millis: i64) -> Option<SystemTime> {
    const MILLIS_MAX: u64 = 253_402_300_799_999;
    let millis = u64::try_from(millis).ok()?;
    (1..=MILLIS_MAX)
        .contains(&millis)
        .then(|| UNIX_EPOCH + Duration::from_millis(millis))
}
