//! Times in a frozen session: seconds and nanoseconds since 1970. Unlike serde's own
//! form they may be before 1970, because a client sets the time of an event freely.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Whole seconds, rounded down, and the nanoseconds above them.
type SecsAndNanos = (i64, u32);

fn to_secs_and_nanos(time: SystemTime) -> SecsAndNanos {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (saturating_secs(since), since.subsec_nanos()),
        Err(error) => match (error.duration(), error.duration().subsec_nanos()) {
            (before, 0) => (-saturating_secs(before), 0),
            (before, nanos) => (-saturating_secs(before) - 1, 1_000_000_000 - nanos),
        },
    }
}

fn saturating_secs(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
}

/// `None`: no such time exists.
fn from_secs_and_nanos((secs, nanos): SecsAndNanos) -> Option<SystemTime> {
    let whole_secs = Duration::from_secs(secs.unsigned_abs());
    let time = if secs < 0 {
        UNIX_EPOCH.checked_sub(whole_secs)
    } else {
        UNIX_EPOCH.checked_add(whole_secs)
    };
    time?.checked_add(Duration::from_nanos(nanos.into()))
}

pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    to_secs_and_nanos(*time).serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    let encoded = SecsAndNanos::deserialize(deserializer)?;
    from_secs_and_nanos(encoded).ok_or_else(|| D::Error::custom("a time out of range"))
}

/// The same for a time that may be missing.
pub mod option {
    use super::*;

    pub fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(to_secs_and_nanos).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        let encoded = Option::<SecsAndNanos>::deserialize(deserializer)?;
        let time = encoded.map(|encoded| {
            from_secs_and_nanos(encoded).ok_or_else(|| D::Error::custom("a time out of range"))
        });
        time.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_far_away_are_read_back_unchanged() {
        for (secs, nanos) in [
            (0, 0),
            (-1, 5),
            (-62_135_596_800, 0),
            (253_402_300_799, 999_999_999),
        ] {
            let time = from_secs_and_nanos((secs, nanos)).unwrap();
            assert_eq!(to_secs_and_nanos(time), (secs, nanos));
        }
        assert_eq!(from_secs_and_nanos((i64::MAX, u32::MAX)), None);
    }
}
