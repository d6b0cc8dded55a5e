//! Events, tokens and dollars, as commands sum them up and print them.

use serde::{Serialize, Serializer};

use super::text_format::{format_usd, group_digits, pluralize};
use crate::{domain::Waste, pb::Wasted};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct WasteTotals {
    pub events: i64,
    pub tokens: i64,
    /// The part of the tokens that was read from the model's cache.
    pub cached_tokens: i64,
    #[serde(serialize_with = "serialize_usd")]
    pub cost_usd: f64,
}

/// Rounds dollars to a billionth, to hide the error of binary fractions.
pub(super) fn round_usd(usd: f64) -> f64 {
    let rounded = (usd * 1e9).round() / 1e9;
    // JSON has no infinity.
    if rounded.is_finite() {
        rounded
    } else {
        usd.min(f64::MAX)
    }
}

/// Writes a sum of dollars, rounded.
#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
pub(super) fn serialize_usd<S: Serializer>(usd: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(round_usd(*usd))
}

impl WasteTotals {
    /// `3 events, 12,300 tokens (9,000 cached), $0.41`. Tokens and dollars are omitted if
    /// they are not reported.
    pub fn format(&self) -> String {
        let mut parts = vec![pluralize(self.events.max(0).unsigned_abs(), "event")];
        if self.tokens > 0 {
            let mut tokens = pluralize(self.tokens.unsigned_abs(), "token");
            if self.cached_tokens > 0 {
                let cached = group_digits(self.cached_tokens.unsigned_abs());
                tokens += &format!(" ({cached} cached)");
            }
            parts.push(tokens);
        }
        if self.cost_usd > 0.0 {
            parts.push(format_usd(self.cost_usd));
        }
        parts.join(", ")
    }
}

impl std::ops::AddAssign for WasteTotals {
    fn add_assign(&mut self, other: Self) {
        self.events = self.events.saturating_add(other.events);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.cost_usd += other.cost_usd;
    }
}

impl From<Waste> for WasteTotals {
    fn from(waste: Waste) -> Self {
        let Waste {
            events,
            tokens,
            cached_tokens,
            usd,
        } = waste;
        Self {
            events,
            tokens,
            cached_tokens,
            cost_usd: round_usd(usd),
        }
    }
}

impl From<Wasted> for WasteTotals {
    fn from(wasted: Wasted) -> Self {
        Self {
            events: wasted.events.into(),
            tokens: wasted.tokens.into(),
            cached_tokens: wasted.cached_tokens.into(),
            cost_usd: wasted.cost_usd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_omits_what_is_not_reported() {
        let check = |tokens, cached_tokens, cost_usd, expected: &str| {
            let waste = WasteTotals {
                events: 5,
                tokens,
                cached_tokens,
                cost_usd,
            };
            assert_eq!(waste.format(), expected);
        };
        check(0, 0, 0.0, "5 events");
        check(12_300, 0, 0.41, "5 events, 12,300 tokens, $0.41");
        check(
            12_300,
            9_000,
            0.41,
            "5 events, 12,300 tokens (9,000 cached), $0.41",
        );
    }
}
