//! The body of a hook as JSON.

use std::{cell::Cell, fmt, sync::LazyLock};

use regex::bytes::Regex;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The most members and elements of a payload. An object with one member takes 700 bytes of
/// memory, and 8 bytes of the body.
const VALUES_MAX: usize = 16_384;
/// The most parts of characters that are replaced in a body. More are no cut texts.
const REPLACEMENTS_MAX: usize = 1_024;

/// Text with whole characters, or an escaped surrogate without its other half.
static PARTS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let half = |digits: &str| format!(r"\\u[dD][{digits}][0-9a-fA-F]{{2}}");
    let (high, low) = (half("89abAB"), half("c-fC-F"));
    let other_escape = r"\\[^u]|\\u[^dD]|\\u[dD][0-7]";
    let whole = format!(r"[^\\]|{other_escape}|{high}{low}");
    Regex::new(&format!(r"(?s-u)(?:{whole})+|{high}|{low}")).ok()
});

/// Agents cut texts anywhere, also within a character: what is left of it is replaced, as
/// otherwise one character would make the whole body unreadable. `None`: it is not JSON, or
/// has too many values.
pub(super) fn parse(body: &[u8]) -> Option<Value> {
    parse_json(body).or_else(|| parse_json(&replace_cut_characters(body)?))
}

/// Replaces bytes that are not UTF-8, and surrogates without their other half. `None`: there
/// is nothing to replace, or too much.
fn replace_cut_characters(body: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = Vec::with_capacity(body.len());
    let mut replacements = 0;
    // An escape has only ASCII characters, so no escape is split between two chunks.
    for chunk in body.utf8_chunks() {
        for part in PARTS.as_ref()?.find_iter(chunk.valid().as_bytes()) {
            if is_surrogate(part.as_bytes()) {
                replaced.extend_from_slice(br"\ufffd");
                replacements += 1;
            } else {
                replaced.extend_from_slice(part.as_bytes());
            }
        }
        if !chunk.invalid().is_empty() {
            replaced.extend_from_slice("\u{fffd}".as_bytes());
            replacements += 1;
        }
        if replacements > REPLACEMENTS_MAX {
            return None;
        }
    }
    (replacements > 0).then_some(replaced)
}

/// Whether a part is one surrogate. A pair is longer.
fn is_surrogate(part: &[u8]) -> bool {
    matches!(part, [b'\\', b'u', b'd' | b'D', second, _, _] if !matches!(second, b'0'..=b'7'))
}

fn parse_json(body: &[u8]) -> Option<Value> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value_count = Cell::new(0);
    let counted = CountedValue(&value_count);
    let value = counted.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(value)
}

/// Reads a value, and counts it and what it contains.
#[derive(Clone, Copy)]
struct CountedValue<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for CountedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > VALUES_MAX {
            return Err(D::Error::custom("too many values"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(element) = elements.next_element_seed(self)? {
            array.push(element);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key()? {
            object.insert(name, members.next_value_seed(self)?);
        }
        Ok(object.into())
    }
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
            (
                r#"["\ud83d\ude00\ud83d é"]"#,
                json!(["\u{1f600}\u{fffd} é"]),
            ),
            (r#"["\ud83d", "\\ud83d"]"#, json!(["\u{fffd}", "\\ud83d"])),
            (r#"["\ud83d\"\n"]"#, json!(["\u{fffd}\"\n"])),
            (r#"{"\ud83d": 1.50}"#, json!({"\u{fffd}": 1.5})),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
        assert_eq!(parse(b"[\"\xf0\x9f\"]"), Some(json!(["\u{fffd}"])));
        for text in [&b""[..], b"{", b"[\"\\ud83d\"", b"\\", b"[\"\\u\"]", b"1 2"] {
            assert_eq!(parse(text), None);
        }
    }

    #[test]
    fn every_json_value_is_read_as_it_is() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 1.5e300, "x\ny"], "b": {}}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse(text.as_bytes()), Some(expected));
    }

    #[test]
    fn the_values_and_replacements_of_a_body_are_bounded() {
        let array = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
        // The array is a value too.
        assert!(parse(array("0", VALUES_MAX - 1).as_bytes()).is_some());
        assert!(parse(array("0", VALUES_MAX).as_bytes()).is_none());
        assert!(parse(array("{\"\":0}", VALUES_MAX / 2).as_bytes()).is_none());
        let cut = |count| format!("[\"{}\"]", r"\ud83d".repeat(count));
        assert!(parse(cut(REPLACEMENTS_MAX).as_bytes()).is_some());
        assert!(parse(cut(REPLACEMENTS_MAX + 1).as_bytes()).is_none());
        let bytes = [&b"[\""[..], &[0xff; REPLACEMENTS_MAX + 1], b"\"]"].concat();
        assert!(parse(&bytes).is_none());
    }
}
