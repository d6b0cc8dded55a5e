//! Hashes a JSON value while serde_json parses it, without building a tree.
//!
//! An object's hash is the commutative sum of its mixed entries, so the order of keys
//! does not matter. An array is hashed in order. White space and the spelling of
//! numbers do not change the hash. Cost: one keyed hash per value and per key. Keys and
//! captured texts are copied only if they have escapes or are joined from a list.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{
    key::{HashKey, SignatureKind},
    tokens::ArgumentWords,
};
use crate::domain::sanitize;

/// The text and the numbers of a value, captured while it is hashed.
#[derive(Default)]
pub(crate) struct CapturedValue<'a> {
    pub text: Option<Cow<'a, str>>,
    /// The first two numbers; no caller needs more.
    pub numbers: [Option<u64>; 2],
}

impl<'a> CapturedValue<'a> {
    /// The strings of a list are joined to one text: `["ls", "-l"]` is a command line.
    fn append_text(&mut self, text: Cow<'a, str>) {
        // Appends in place: copying what is there would make a long list quadratic.
        match &mut self.text {
            Some(before) => {
                let joined = before.to_mut();
                joined.push(' ');
                joined.push_str(&text);
            }
            None => self.text = Some(text),
        }
    }

    fn push_number(&mut self, number: u64) {
        if let Some(free) = self.numbers.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(number);
        }
    }
}

/// A key, borrowed from the input if it has no escapes.
pub(crate) struct JsonKey<'de>(pub Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for JsonKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonKeyVisitor;
        impl<'de> Visitor<'de> for JsonKeyVisitor {
            type Value = JsonKey<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, word: &'de str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey(Cow::Borrowed(word)))
            }
            fn visit_str<E>(self, word: &str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey(Cow::Owned(word.to_owned())))
            }
        }
        deserializer.deserialize_str(JsonKeyVisitor)
    }
}

/// The state shared by all values of a call's arguments.
pub(crate) struct JsonHasher<'k> {
    pub key: &'k HashKey,
    /// The raw JSON has no invisible characters. Only its escapes can produce some.
    pub is_visible_only: bool,
    pub words: ArgumentWords,
}

impl JsonHasher<'_> {
    /// Hashes text that is borrowed from the JSON. Invisible characters do not change
    /// the hash.
    fn hash_raw_text(&self, text: &str) -> u64 {
        if self.is_visible_only {
            self.key.hash_text(SignatureKind::JsonText, text)
        } else {
            self.hash_unescaped_text(text)
        }
    }

    /// Hashes text that had escapes, which can produce invisible characters.
    fn hash_unescaped_text(&self, text: &str) -> u64 {
        self.key
            .hash_text(SignatureKind::JsonText, &sanitize::strip_invisible(text))
    }

    /// Hashes an entry of an object.
    pub fn hash_entry(&self, name: &JsonKey<'_>, value: u64) -> u64 {
        let name = match &name.0 {
            Cow::Borrowed(name) => self.hash_raw_text(name),
            Cow::Owned(name) => self.hash_unescaped_text(name),
        };
        self.key.hash_pair(SignatureKind::JsonEntry, name, value)
    }

    /// Hashes an object from the sum of its entries' hashes.
    pub fn hash_object(&self, sum: u64) -> u64 {
        self.key.hash_pair(SignatureKind::JsonObject, sum, 0)
    }

    fn hash_scalar(&self, kind: u8, bits: u64) -> u64 {
        self.key
            .hash_pair(SignatureKind::JsonNumber, u64::from(kind), bits)
    }
}

/// Hashes any value, and stores its text and numbers in `capture` if that is set.
pub(crate) struct JsonValueVisitor<'r, 'k, 'a> {
    pub hasher: &'r mut JsonHasher<'k>,
    pub capture: Option<&'r mut CapturedValue<'a>>,
}

impl<'r, 'k> JsonValueVisitor<'r, 'k, '_> {
    pub fn nested(hasher: &'r mut JsonHasher<'k>) -> Self {
        Self {
            hasher,
            capture: None,
        }
    }

    /// Hashes a number as a double: 1, 1.0 and the 1 of a protobuf Struct are equal.
    /// Integers that a double cannot represent are hashed as integers by the caller.
    fn hash_number(self, value: f64) -> u64 {
        let value = if value == 0.0 { 0.0 } else { value };
        if let Some(capture) = self.capture {
            capture.push_number(value as u64);
        }
        self.hasher.words.push_number(value.to_bits());
        self.hasher.hash_scalar(b'n', value.to_bits())
    }
}

impl<'de> DeserializeSeed<'de> for JsonValueVisitor<'_, '_, 'de> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonValueVisitor<'_, '_, 'de> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(self.hasher.hash_scalar(b'0', 0))
    }

    fn visit_bool<E>(self, value: bool) -> Result<u64, E> {
        Ok(self.hasher.hash_scalar(b'b', u64::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        if value < 1 << 53 {
            Ok(self.hash_number(value as f64))
        } else {
            Ok(self.hasher.hash_scalar(b'u', value))
        }
    }

    fn visit_i64<E>(self, value: i64) -> Result<u64, E> {
        if value.unsigned_abs() < 1 << 53 {
            Ok(self.hash_number(value as f64))
        } else {
            Ok(self.hasher.hash_scalar(b'i', value.cast_unsigned()))
        }
    }

    fn visit_f64<E>(self, value: f64) -> Result<u64, E> {
        Ok(self.hash_number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<u64, E> {
        self.hasher.words.push_text(value);
        if let Some(capture) = self.capture {
            capture.append_text(Cow::Borrowed(value));
        }
        Ok(self.hasher.hash_raw_text(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<u64, E> {
        self.hasher.words.push_text(value);
        if let Some(capture) = self.capture {
            capture.append_text(Cow::Owned(value.to_owned()));
        }
        Ok(self.hasher.hash_unescaped_text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut list_hash = 0;
        let mut capture = self.capture;
        loop {
            let item = JsonValueVisitor {
                hasher: self.hasher,
                capture: capture.as_deref_mut(),
            };
            match seq.next_element_seed(item)? {
                Some(value) => {
                    list_hash = self
                        .hasher
                        .key
                        .hash_pair(SignatureKind::JsonList, list_hash, value)
                }
                None => {
                    return Ok(self
                        .hasher
                        .key
                        .hash_pair(SignatureKind::JsonList, list_hash, 0));
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut entry_sum = 0u64;
        while let Some(name) = map.next_key()? {
            let value = map.next_value_seed(JsonValueVisitor::nested(self.hasher))?;
            entry_sum = entry_sum.wrapping_add(self.hasher.hash_entry(&name, value));
        }
        Ok(self.hasher.hash_object(entry_sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_a_list_seldom_copies_what_is_there() {
        const WORDS: usize = 8_000;
        let mut captured = CapturedValue::default();
        let (mut capacity, mut copies) = (0, 0);
        for _ in 0..WORDS {
            captured.append_text(Cow::Borrowed("word"));
            if let Some(Cow::Owned(joined)) = &captured.text
                && joined.capacity() != capacity
            {
                capacity = joined.capacity();
                copies += 1;
            }
        }
        assert_eq!(captured.text.map(|text| text.len()), Some(WORDS * 5 - 1));
        // The capacity doubles each time.
        assert!((2..=20).contains(&copies), "{copies}");
    }
}
