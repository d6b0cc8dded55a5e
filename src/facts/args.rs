//! Canonical arguments: key order, white space, and whether a caller sent an
//! object or its text do not matter. The hash is made while serde_json parses,
//! without building a tree: an object is the commutative sum of its mixed
//! entries, an array is hashed in order.

use std::{borrow::Cow, fmt, hash::Hasher};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{
    key::{Key, Tag},
    tools,
};
use crate::domain::{Args, text};

/// Beyond this unseen characters and white space outside JSON count: a call must
/// not cost milliseconds.
const LOOKED_AT_BYTES_MAX: usize = 64 * 1024;

/// What is known of a call's arguments.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    /// `None`: unknown, equal to nothing.
    pub hash: Option<u64>,
    /// The file, URL or command among them.
    pub target: Option<Cow<'a, str>>,
}

impl<'a> Arguments<'a> {
    pub fn read(args: &'a Args, ignore: &[String], key: &Key) -> Self {
        match args {
            Args::Unknown => Self::default(),
            Args::Hash(hash) => Self {
                hash: Some(key.pair(Tag::Json, hash, u64::from(b'#')).get()),
                target: None,
            },
            // Too long to be looked at closely: equal only as it is.
            Args::Text(text) if text.len() > LOOKED_AT_BYTES_MAX => {
                Self::of_object(text, ignore, key).unwrap_or_else(|| Self {
                    hash: Some(text_bytes(text, key)),
                    ..Self::default()
                })
            }
            Args::Text(text) => match text::seen(text) {
                Cow::Borrowed(text) => Self::of_seen(text, ignore, key),
                Cow::Owned(text) => Arguments::of_seen(&text, ignore, key).into_owned(),
            },
        }
    }

    /// Unseen characters are taken out before: between the tokens of JSON they
    /// would make other text of it.
    fn of_seen(text: &'a str, ignore: &[String], key: &Key) -> Self {
        Self::of_json(text, ignore, key).unwrap_or_else(|| Self::of_text(text, key))
    }

    fn into_owned<'b>(self) -> Arguments<'b> {
        Arguments {
            hash: self.hash,
            target: self.target.map(|target| Cow::Owned(target.into_owned())),
        }
    }

    /// JSON; also a JSON string that itself holds an object, as some providers
    /// send it.
    fn of_json(json: &'a str, ignore: &[String], key: &Key) -> Option<Self> {
        if json.trim_start().starts_with('"') {
            let inner: String = serde_json::from_str(json).ok()?;
            if !inner.trim_start().starts_with('{') {
                return None;
            }
            return Some(Arguments::of_object(&inner, ignore, key)?.into_owned());
        }
        Self::of_object(json, ignore, key)
    }

    fn of_object(json: &'a str, ignore: &[String], key: &Key) -> Option<Self> {
        let mut target = Target::default();
        let mut parser = serde_json::Deserializer::from_str(json);
        let top = Top {
            key,
            ignore,
            target: &mut target,
        };
        let hash = top.deserialize(&mut parser).ok()?;
        parser.end().ok()?;
        Some(Self {
            hash: Some(hash),
            target: target.text,
        })
    }

    /// Not JSON: a plain command, or JSON cut short. White space is folded.
    fn of_text(text: &'a str, key: &Key) -> Self {
        let mut hasher = key.hasher(Tag::Json);
        for word in text.split_whitespace() {
            hasher.write_u64(text_hash(word, key));
        }
        Self {
            hash: Some(hasher.finish()),
            target: Some(Cow::Borrowed(text)),
        }
    }
}

/// The most telling of the arguments that can be a target.
#[derive(Default)]
struct Target<'a> {
    text: Option<Cow<'a, str>>,
    rank: usize,
}

impl<'a> Target<'a> {
    fn offer(&mut self, rank: usize, value: Cow<'a, str>) {
        if self.text.is_none() || rank < self.rank {
            self.text = Some(value);
            self.rank = rank;
        }
    }
}

/// The outermost value: the only one with ignored keys and a target.
struct Top<'k, 't, 'a> {
    key: &'k Key,
    ignore: &'k [String],
    target: &'t mut Target<'a>,
}

impl<'de> DeserializeSeed<'de> for Top<'_, '_, 'de> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_, '_, 'de> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0u64;
        while let Some(name) = map.next_key::<Name<'de>>()? {
            let name = name.0;
            if self.ignore.iter().any(|ignored| *ignored == name) {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let mut word = None;
            let value = map.next_value_seed(Value {
                key: self.key,
                word: Some(&mut word),
            })?;
            if let (Some(rank), Some(word)) = (tools::target_rank(&name), word) {
                self.target.offer(rank, word);
            }
            sum = sum.wrapping_add(entry(&name, value, self.key));
        }
        Ok(object(sum, self.key))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<u64, A::Error> {
        Value::inner(self.key).visit_seq(seq)
    }
}

/// A key, borrowed where it has no escapes.
struct Name<'de>(Cow<'de, str>);

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

/// Any value within; keeps the text of a string where somebody asks for it.
struct Value<'k, 'w, 'a> {
    key: &'k Key,
    word: Option<&'w mut Option<Cow<'a, str>>>,
}

impl<'k> Value<'k, '_, '_> {
    fn inner(key: &'k Key) -> Self {
        Self { key, word: None }
    }

    fn scalar(&self, kind: u8, bits: u64) -> u64 {
        let mut hasher = self.key.hasher(Tag::Json);
        hasher.write_u8(kind);
        hasher.write_u64(bits);
        hasher.finish()
    }

    /// 1, 1.0 and the 1 of a protobuf Struct are one number. Integers that a
    /// double cannot hold stay themselves.
    fn number(&self, value: f64) -> u64 {
        let value = if value == 0.0 { 0.0 } else { value };
        self.scalar(b'n', value.to_bits())
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
        let hash = text_hash(value, self.key);
        if let Some(word) = self.word {
            *word = Some(Cow::Borrowed(value));
        }
        Ok(hash)
    }

    fn visit_str<E>(self, value: &str) -> Result<u64, E> {
        let hash = text_hash(value, self.key);
        if let Some(word) = self.word {
            *word = Some(Cow::Owned(value.to_owned()));
        }
        Ok(hash)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut hasher = self.key.hasher(Tag::Json);
        hasher.write_u8(b'[');
        while let Some(value) = seq.next_element_seed(Value::inner(self.key))? {
            hasher.write_u64(value);
        }
        Ok(hasher.finish())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0u64;
        while let Some(name) = map.next_key::<Name<'de>>()? {
            let value = map.next_value_seed(Value::inner(self.key))?;
            sum = sum.wrapping_add(entry(&name.0, value, self.key));
        }
        Ok(object(sum, self.key))
    }
}

fn text_bytes(text: &str, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write(text.as_bytes());
    hasher.finish()
}

fn entry(name: &str, value: u64, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write_u8(b':');
    hasher.write_u64(text_hash(name, key));
    hasher.write_u64(value);
    hasher.finish()
}

fn object(sum: u64, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write_u8(b'{');
    hasher.write_u64(sum);
    hasher.finish()
}

/// Text with and without unseen characters is the same text; JSON can hold them
/// as escapes.
fn text_hash(value: &str, key: &Key) -> u64 {
    let mut hasher = key.hasher(Tag::Json);
    hasher.write_u8(b'"');
    hasher.write(text::seen(value).as_bytes());
    hasher.finish()
}
