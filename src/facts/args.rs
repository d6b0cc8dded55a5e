//! Canonical arguments: key order, white space, and whether a caller sent an
//! object or its text do not matter. The hash is made while serde_json parses,
//! without building a tree: an object is the commutative sum of its mixed
//! entries, an array is hashed in order.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::tools::{self, ArgRole, LineArg};
use crate::{
    domain::{Args, text},
    text::{
        canonical::{Caught, Name, Reading, Value},
        key::{Key, Tag},
        words::Words,
    },
};

/// Beyond this unseen characters and white space outside JSON count: a call must
/// not cost milliseconds.
const LOOKED_AT_BYTES_MAX: usize = 64 * 1024;

/// What is known of a call's arguments.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    /// `None`: unknown, equal to nothing.
    pub hash: Option<u64>,
    /// What was come across in them.
    pub found: Found<'a>,
    /// Their words.
    pub words: Words,
}

impl<'a> Arguments<'a> {
    pub fn read(args: &'a Args, ignore: &[String], key: &Key) -> Self {
        match args {
            Args::Unknown => Self::default(),
            Args::Hash(hash) => Self {
                hash: Some(key.pair(Tag::Json, hash, 0).get()),
                ..Self::default()
            },
            // Too long to be looked at closely: equal only as it is.
            Args::Text(text) if text.len() > LOOKED_AT_BYTES_MAX => {
                Self::of_object(text, false, ignore, key).unwrap_or_else(|| Self {
                    hash: Some(key.text(Tag::JsonText, text)),
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
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Arguments {
            hash: self.hash,
            found: Found {
                target: owned(self.found.target),
                command: owned(self.found.command),
                sought: owned(self.found.sought),
                ..self.found
            },
            words: self.words,
        }
    }

    /// JSON; also a JSON string that itself holds an object, as some providers
    /// send it.
    fn of_json(json: &'a str, ignore: &[String], key: &Key) -> Option<Self> {
        if !json.trim_start().starts_with('"') {
            return Self::of_object(json, true, ignore, key);
        }
        let inner: String = serde_json::from_str(json).ok()?;
        if !inner.trim_start().starts_with('{') {
            return None;
        }
        Some(Arguments::of_object(&inner, false, ignore, key)?.into_owned())
    }

    /// `is_seen`: nothing unseen stands in the JSON itself.
    fn of_object(json: &'a str, is_seen: bool, ignore: &[String], key: &Key) -> Option<Self> {
        // An error of serde_json's is an allocation, and a plain command has no
        // need of it.
        let begins = json.trim_ascii_start().as_bytes().first();
        if !matches!(begins, Some(b'{' | b'[')) {
            return None;
        }
        let mut found = Found::default();
        let mut reading = Reading {
            key,
            is_seen,
            words: Words::default(),
        };
        let mut parser = serde_json::Deserializer::from_str(json);
        let top = Top {
            reading: &mut reading,
            ignore,
            found: &mut found,
        };
        let hash = top.deserialize(&mut parser).ok()?;
        parser.end().ok()?;
        Some(Self {
            hash: Some(hash),
            found,
            words: reading.words,
        })
    }

    /// Not JSON: a plain command, or JSON cut short. White space is folded.
    fn of_text(text: &'a str, key: &Key) -> Self {
        let words = text.split_whitespace();
        let hash = words.fold(0, |hash, word| {
            key.both(Tag::Json, hash, key.text(Tag::JsonText, word))
        });
        let mut words = Words::default();
        words.push(text);
        Self {
            hash: Some(hash),
            found: Found {
                target: Some(Cow::Borrowed(text)),
                command: Some(Cow::Borrowed(text)),
                ..Found::default()
            },
            words,
        }
    }
}

/// What was come across in arguments.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    /// The file, URL or command: the most telling of what can be one.
    pub target: Option<Cow<'a, str>>,
    /// How telling.
    target_rank: Option<u8>,
    /// The command line.
    pub command: Option<Cow<'a, str>>,
    /// What is looked for.
    pub sought: Option<Cow<'a, str>>,
    /// They ask to wait, or to look for news.
    pub waits: bool,
    lines: Lines,
}

impl<'a> Found<'a> {
    /// A path is among them.
    pub fn has_path(&self) -> bool {
        self.target_rank.is_some_and(tools::is_path)
    }

    /// The lines of a file they ask for, first and last.
    pub fn lines(&self) -> Option<(u32, u32)> {
        self.lines.range()
    }

    /// Takes a top-level argument in.
    fn argument(&mut self, name: &str, role: ArgRole, caught: Caught<'a>) {
        if let Some(arg) = role.lines {
            // Some agents send numbers as text.
            let as_text = caught.text.as_deref().and_then(|text| text.parse().ok());
            let numbers = as_text.map_or(caught.numbers, |number| [Some(number), None]);
            self.lines.take(arg, numbers);
        }
        let Some(text) = caught.text else { return };
        self.waits |= tools::is_wait(name, &text);
        if self.command.is_none() && role.is_command {
            self.command = Some(text.clone());
        }
        if self.sought.is_none() && role.is_sought {
            self.sought = Some(text.clone());
        }
        if let Some(rank) = role.target_rank
            && self.target_rank.is_none_or(|best| rank < best)
        {
            self.target_rank = Some(rank);
            self.target = Some(text);
        }
    }
}

/// The lines of a file that arguments ask for.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    first: Option<u32>,
    last: Option<u32>,
    count: Option<u32>,
}

impl Lines {
    fn take(&mut self, arg: LineArg, numbers: [Option<u64>; 2]) {
        let [first, second] = numbers.map(|n| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
        match arg {
            LineArg::First => self.first = first,
            LineArg::Last => self.last = first,
            LineArg::Count => self.count = first,
            LineArg::Both => (self.first, self.last) = (first, second),
        }
    }

    fn range(&self) -> Option<(u32, u32)> {
        let first = self.first.unwrap_or(1);
        match (self.first, self.last, self.count) {
            (None, None, None) => None,
            (_, Some(last), _) => Some((first, last.max(first))),
            (_, None, Some(count)) => Some((first, first.saturating_add(count).saturating_sub(1))),
            (Some(_), None, None) => Some((first, u32::MAX)),
        }
    }
}

/// The outermost value: the only one with ignored keys and a target.
struct Top<'r, 'k, 'a> {
    reading: &'r mut Reading<'k>,
    ignore: &'k [String],
    found: &'r mut Found<'a>,
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
            if self.ignore.iter().any(|ignored| *ignored == name.0) {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let role = tools::arg_role(&name.0);
            // What nobody asks for is not kept: the texts of an edit have escapes,
            // and would be copied.
            let asked = role.is_telling() || tools::may_wait(&name.0);
            let mut caught = Caught::default();
            let value = map.next_value_seed(Value {
                reading: self.reading,
                caught: asked.then_some(&mut caught),
            })?;
            if asked {
                self.found.argument(&name.0, role, caught);
            }
            sum = sum.wrapping_add(self.reading.entry(&name, value));
        }
        Ok(self.reading.object(sum))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<u64, A::Error> {
        Value::within(self.reading).visit_seq(seq)
    }
}
