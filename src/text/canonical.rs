//! A JSON value as one hash, made while serde_json parses, without a tree: an
//! object is the commutative sum of its mixed entries, an array is hashed in
//! order, white space and the spelling of numbers do not matter.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{
    key::{Key, Tag},
    words::Words,
};
use crate::domain::text;

/// What a value held that somebody may want to know.
#[derive(Default)]
pub(crate) struct Caught<'a> {
    pub text: Option<Cow<'a, str>>,
    /// The first two: nobody asks for more.
    pub numbers: [Option<u64>; 2],
}

impl<'a> Caught<'a> {
    /// The words of a list are one text: `["ls", "-l"]` is a command line.
    fn push(&mut self, text: Cow<'a, str>) {
        self.text = Some(match self.text.take() {
            Some(before) => Cow::Owned(format!("{before} {text}")),
            None => text,
        });
    }

    fn number(&mut self, number: u64) {
        if let Some(free) = self.numbers.iter_mut().find(|place| place.is_none()) {
            *free = Some(number);
        }
    }
}

/// A key, borrowed where it has no escapes.
pub(crate) struct Name<'de>(pub Cow<'de, str>);

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

/// How all values of some arguments are read.
pub(crate) struct Reading<'k> {
    pub key: &'k Key,
    /// Nothing unseen stands in the JSON itself: only its escapes can hold some.
    pub is_seen: bool,
    pub words: Words,
}

impl Reading<'_> {
    /// Text with and without unseen characters is the same text.
    fn borrowed(&self, text: &str) -> u64 {
        if self.is_seen {
            self.key.text(Tag::JsonText, text)
        } else {
            self.unfolded(text)
        }
    }

    /// JSON can hold unseen characters as escapes.
    fn unfolded(&self, text: &str) -> u64 {
        self.key.text(Tag::JsonText, &text::seen(text))
    }

    /// An entry of an object.
    pub fn entry(&self, name: &Name<'_>, value: u64) -> u64 {
        let name = match &name.0 {
            Cow::Borrowed(name) => self.borrowed(name),
            Cow::Owned(name) => self.unfolded(name),
        };
        self.key.both(Tag::JsonEntry, name, value)
    }

    /// An object, of the sum of its entries.
    pub fn object(&self, sum: u64) -> u64 {
        self.key.both(Tag::JsonObject, sum, 0)
    }

    fn scalar(&self, kind: u8, bits: u64) -> u64 {
        self.key.both(Tag::JsonNumber, u64::from(kind), bits)
    }
}

/// Any value; tells what it held where somebody asks.
pub(crate) struct Value<'r, 'k, 'a> {
    pub reading: &'r mut Reading<'k>,
    pub caught: Option<&'r mut Caught<'a>>,
}

impl<'r, 'k> Value<'r, 'k, '_> {
    pub fn within(reading: &'r mut Reading<'k>) -> Self {
        Self {
            reading,
            caught: None,
        }
    }

    /// 1, 1.0 and the 1 of a protobuf Struct are one number. Integers that a
    /// double cannot hold stay themselves.
    fn number(self, value: f64) -> u64 {
        let value = if value == 0.0 { 0.0 } else { value };
        if let Some(caught) = self.caught {
            caught.number(value as u64);
        }
        self.reading.scalar(b'n', value.to_bits())
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
        Ok(self.reading.scalar(b'0', 0))
    }

    fn visit_bool<E>(self, value: bool) -> Result<u64, E> {
        Ok(self.reading.scalar(b'b', u64::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        if value < 1 << 53 {
            Ok(self.number(value as f64))
        } else {
            Ok(self.reading.scalar(b'u', value))
        }
    }

    fn visit_i64<E>(self, value: i64) -> Result<u64, E> {
        if value.unsigned_abs() < 1 << 53 {
            Ok(self.number(value as f64))
        } else {
            Ok(self.reading.scalar(b'i', value.cast_unsigned()))
        }
    }

    fn visit_f64<E>(self, value: f64) -> Result<u64, E> {
        Ok(self.number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<u64, E> {
        self.reading.words.push(value);
        if let Some(caught) = self.caught {
            caught.push(Cow::Borrowed(value));
        }
        Ok(self.reading.borrowed(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<u64, E> {
        self.reading.words.push(value);
        if let Some(caught) = self.caught {
            caught.push(Cow::Owned(value.to_owned()));
        }
        Ok(self.reading.unfolded(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut list = 0;
        let mut caught = self.caught;
        loop {
            let item = Value {
                reading: self.reading,
                caught: caught.as_deref_mut(),
            };
            match seq.next_element_seed(item)? {
                Some(value) => list = self.reading.key.both(Tag::JsonList, list, value),
                None => return Ok(self.reading.key.both(Tag::JsonList, list, 0)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0u64;
        while let Some(name) = map.next_key()? {
            let value = map.next_value_seed(Value::within(self.reading))?;
            sum = sum.wrapping_add(self.reading.entry(&name, value));
        }
        Ok(self.reading.object(sum))
    }
}
