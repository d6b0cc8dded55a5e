//! The body of a hook as JSON.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// An escaped pair of surrogates, one without its other half, or another escape.
static ESCAPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let half = |digits: &str| format!(r"\\u[dD][{digits}][0-9a-fA-F]{{2}}");
    let (high, low) = (half("89abAB"), half("c-fC-F"));
    Regex::new(&format!(r"(?s){high}{low}|(?<lone>{high}|{low})|\\.")).ok()
});

/// Agents cut texts anywhere, also within a character: what is left of it is replaced, as
/// otherwise one character would make the whole body unreadable. `None`: it is not JSON.
pub(super) fn parse(body: &[u8]) -> Option<Value> {
    serde_json::from_slice(body).ok().or_else(|| {
        let text = String::from_utf8_lossy(body);
        let replaced = ESCAPE.as_ref()?.replace_all(&text, |escape: &Captures| {
            let is_lone = escape.name("lone").is_some();
            let whole = escape.get(0).map_or("", |escape| escape.as_str());
            if is_lone { r"\ufffd" } else { whole }.to_owned()
        });
        serde_json::from_str(&replaced).ok()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn half_a_character_is_replaced_and_the_rest_is_read() {
        for (text, expected) in [
            (r#"["\ud83d"]"#, json!(["\u{fffd}"])),
            (r#"["\uDE00 x"]"#, json!(["\u{fffd} x"])),
            (r#"["\ud83d\ud83d\ude00"]"#, json!(["\u{fffd}\u{1f600}"])),
            (r#"["\ud83d", "\\ud83d"]"#, json!(["\u{fffd}", "\\ud83d"])),
            (r#"["\ud83d\"\n"]"#, json!(["\u{fffd}\"\n"])),
            (r#"{"\ud83d": 1.50}"#, json!({"\u{fffd}": 1.5})),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
        assert_eq!(parse(b"[\"\xf0\x9f\"]"), Some(json!(["\u{fffd}"])));
        for text in [&b""[..], b"{", b"[\"\\ud83d\"", b"\\"] {
            assert_eq!(parse(text), None);
        }
    }
}
