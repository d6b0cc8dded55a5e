//! A JSON value as one hash, made while serde_json parses, without a tree: an
//! object is the commutative sum of its mixed entries, an array is hashed in
//! order, white space and the spelling of numbers do not matter.

use std::{borrow::Cow, fmt, hash::Hasher};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::{
    key::{Key, Tag},
    words::Words,
};
use crate::domain::text;

/// What a value held that somebody may want to know.
#[derive(Default)]
pub(super) struct Caught<'a> {
    pub text: Option<Cow<'a, str>>,
    pub numbers: SmallVec<[u64; 2]>,
}

impl<'a> Caught<'a> {
    /// The words of a list are one text: `["ls", "-l"]` is a command line.
    fn push(&mut self, text: Cow<'a, str>) {
        self.text = Some(match self.text.take() {
            Some(before) => Cow::Owned(format!("{before} {text}")),
            None => text,
        });
    }
}

/// A key, borrowed where it has no escapes.
pub(super) struct Name<'de>(pub Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, word: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(word)))
            }
            fn visit_str<E>(self, word: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(word.to_owned())))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

/// Any value; tells what it held where somebody asks.
pub(super) struct Value<'k, 'f, 'a> {
    pub key: &'k Key,
    pub words: &'f mut Words,
    pub caught: Option<&'f mut Caught<'a>>,
}

impl<'k, 'f> Value<'k, 'f, '_> {
    pub fn within(key: &'k Key, words: &'f mut Words) -> Self {
        Self {
            key,
            words,
            caught: None,
        }
    }

    fn scalar(&self, kind: u8, bits: u64) -> u64 {
        let mut hasher = self.key.hasher(Tag::Json);
        hasher.write_u8(kind);
        hasher.write_u64(bits);
        hasher.finish()
    }

    /// 1, 1.0 and the 1 of a protobuf Struct are one number. Integers that a
    /// double cannot hold stay themselves.
    fn number(self, value: f64) -> u64 {
        let value = if value == 0.0 { 0.0 } else { value };
        let hash = self.scalar(b'n', value.to_bits());
        if let Some(caught) = self.caught {
            caught.numbers.push(value as u64);
        }
        hash
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_, 'de> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_, 'de> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(self.scalar(b'0', 0))
    }

    fn visit_bool<E>(self, value: bool) -> Result<u64, E> {
        Ok(self.scalar(b'b', u64::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        if value < 1 << 53 {
            Ok(self.number(value as f64))
        } else {
            Ok(self.scalar(b'u', value))
        }
    }

    fn visit_i64<E>(self, value: i64) -> Result<u64, E> {
        if value.unsigned_abs() < 1 << 53 {
            Ok(self.number(value as f64))
        } else {
            Ok(self.scalar(b'i', value.cast_unsigned()))
        }
    }

    fn visit_f64<E>(self, value: f64) -> Result<u64, E> {
        Ok(self.number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<u64, E> {
        self.words.push(value);
        if let Some(caught) = self.caught {
            caught.push(Cow::Borrowed(value));
        }
        Ok(text_hash(value, self.key))
    }

    fn visit_str<E>(self, value: &str) -> Result<u64, E> {
        self.words.push(value);
        if let Some(caught) = self.caught {
            caught.push(Cow::Owned(value.to_owned()));
        }
        Ok(text_hash(value, self.key))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut hasher = self.key.hasher(Tag::Json);
        hasher.write_u8(b'[');
        let mut caught = self.caught;
        loop {
            let item = Value {
                key: self.key,
                words: self.words,
                caught: caught.as_deref_mut(),
            };
            match seq.next_element_seed(item)? {
                Some(value) => hasher.write_u64(value),
                None => return Ok(hasher.finish()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0u64;
        while let Some(Name(name)) = map.next_key()? {
            let value = map.next_value_seed(Value::within(self.key, self.words))?;
            sum = sum.wrapping_add(entry(&name, value, self.key));
        }
        Ok(object(sum, self.key))
    }
}

pub(super) fn text_bytes(text: &str, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write(text.as_bytes());
    hasher.finish()
}

pub(super) fn entry(name: &str, value: u64, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write_u8(b':');
    hasher.write_u64(text_hash(name, key));
    hasher.write_u64(value);
    hasher.finish()
}

pub(super) fn object(sum: u64, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write_u8(b'{');
    hasher.write_u64(sum);
    hasher.finish()
}

/// Text with and without unseen characters is the same text; JSON can hold them
/// as escapes.
pub(super) fn text_hash(value: &str, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write_u8(b'"');
    hasher.write(text::seen(value).as_bytes());
    hasher.finish()
}
