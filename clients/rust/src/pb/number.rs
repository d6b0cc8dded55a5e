//! Numbers in proto3 JSON.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A number in proto3 JSON: plain or in quotes, a whole one also as `3.0`.
///
/// Replaces pbjson's number type, which first tries the quoted form and builds an
/// error for every unquoted number: a quarter of the time of a replay. Its errors do
/// not contain the number.
pub(super) struct Number<T>(pub T);

/// The numbers that the messages have.
pub(super) trait Numeric: FromStr {
    const EXPECTED: &'static str;
    fn from_whole(whole: i64) -> Option<Self>;
    fn from_fraction(fraction: f64) -> Option<Self>;
}

impl Numeric for i32 {
    const EXPECTED: &'static str = "a whole number of 32 bits";

    fn from_whole(whole: i64) -> Option<Self> {
        whole.try_into().ok()
    }

    fn from_fraction(fraction: f64) -> Option<Self> {
        let whole = fraction as Self;
        (f64::from(whole) == fraction).then_some(whole)
    }
}

impl Numeric for f64 {
    const EXPECTED: &'static str = "a number";

    fn from_whole(whole: i64) -> Option<Self> {
        Some(whole as Self)
    }

    fn from_fraction(fraction: f64) -> Option<Self> {
        Some(fraction)
    }
}

impl<'de, T: Numeric> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = NumberVisitor(PhantomData);
        deserializer.deserialize_any(visitor).map(Self)
    }
}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: Numeric> Visitor<'_> for NumberVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_i64<E: Error>(self, whole: i64) -> Result<T, E> {
        T::from_whole(whole).ok_or_else(|| E::invalid_value(Unexpected::Signed(whole), &self))
    }

    fn visit_u64<E: Error>(self, whole: u64) -> Result<T, E> {
        match i64::try_from(whole) {
            Ok(whole) => self.visit_i64(whole),
            Err(_) => self.visit_f64(whole as f64),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        T::from_fraction(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse()
            .map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Numeric + PartialEq + fmt::Debug>(json: &str, expected: Option<T>) {
        let read = serde_json::from_str::<Number<T>>(json);
        assert_eq!(read.map(|number| number.0).ok(), expected, "{json}");
    }

    #[test]
    fn whole_numbers_are_accepted_plain_or_quoted() {
        check("7", Some(7));
        check("-7", Some(-7));
        check("\"7\"", Some(7));
        check("7.0", Some(7));
        check("7e1", Some(70));
        check::<i32>("7.5", None);
        check::<i32>("2147483648", None);
        check::<i32>("18446744073709551615", None);
        check::<i32>("\"x\"", None);
        check::<i32>("true", None);
    }

    #[test]
    fn fractions_are_accepted_plain_or_quoted() {
        check("0.5", Some(0.5));
        check("7", Some(7.0));
        check("18446744073709551615", Some(18_446_744_073_709_551_615.0));
        check("\"0.5\"", Some(0.5));
        check("\"Infinity\"", Some(f64::INFINITY));
        check::<f64>("\"x\"", None);
        check::<f64>("{}", None);
    }

    #[test]
    fn a_wrong_number_is_named() {
        let error = serde_json::from_str::<Number<i32>>("7.5").err().unwrap();
        let expected = "invalid value: floating point `7.5`, expected a whole number of 32 bits";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
