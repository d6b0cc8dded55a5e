//! Canonical arguments: key order, white space, and whether a caller sent an
//! object or its text do not matter. The hash is made while serde_json parses,
//! without building a tree: an object is the commutative sum of its mixed
//! entries, an array is hashed in order.

use std::{borrow::Cow, fmt, hash::Hasher};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::{
    canonical::{Caught, Name, Value, entry, object, text_bytes, text_hash},
    key::{Key, Tag},
    tools::{self, ArgRole, LineArg},
    words::Words,
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
    /// The command line among them.
    pub command: Option<Cow<'a, str>>,
    /// What is looked for.
    pub sought: Option<Cow<'a, str>>,
    /// A path is among them.
    pub has_path: bool,
    /// They ask to wait, or to look for news.
    pub waits: bool,
    /// The lines of a file they ask for, first and last.
    pub lines: Option<(u32, u32)>,
    /// Their words.
    pub words: Words,
}

impl<'a> Arguments<'a> {
    pub fn read(args: &'a Args, ignore: &[String], key: &Key) -> Self {
        match args {
            Args::Unknown => Self::default(),
            Args::Hash(hash) => Self {
                hash: Some(key.pair(Tag::Json, hash, u64::from(b'#')).get()),
                ..Self::default()
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
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Arguments {
            hash: self.hash,
            target: owned(self.target),
            command: owned(self.command),
            sought: owned(self.sought),
            has_path: self.has_path,
            waits: self.waits,
            lines: self.lines,
            words: self.words,
        }
    }

    /// JSON; also a JSON string that itself holds an object, as some providers
    /// send it.
    fn of_json(json: &'a str, ignore: &[String], key: &Key) -> Option<Self> {
        if !json.trim_start().starts_with('"') {
            return Self::of_object(json, ignore, key);
        }
        let inner: String = serde_json::from_str(json).ok()?;
        if !inner.trim_start().starts_with('{') {
            return None;
        }
        Some(Arguments::of_object(&inner, ignore, key)?.into_owned())
    }

    fn of_object(json: &'a str, ignore: &[String], key: &Key) -> Option<Self> {
        let mut found = Found::default();
        let mut parser = serde_json::Deserializer::from_str(json);
        let top = Top {
            key,
            ignore,
            found: &mut found,
        };
        let hash = top.deserialize(&mut parser).ok()?;
        parser.end().ok()?;
        Some(Self {
            hash: Some(hash),
            has_path: found
                .target
                .as_ref()
                .is_some_and(|(rank, _)| tools::is_path(*rank)),
            target: found.target.map(|(_, text)| text),
            waits: found.waits,
            command: found.command,
            sought: found.sought,
            lines: found.lines.range(),
            words: found.words,
        })
    }

    /// Not JSON: a plain command, or JSON cut short. White space is folded.
    fn of_text(text: &'a str, key: &Key) -> Self {
        let mut hasher = key.hasher(Tag::Json);
        for word in text.split_whitespace() {
            hasher.write_u64(text_hash(word, key));
        }
        let mut words = Words::default();
        words.push(text);
        Self {
            hash: Some(hasher.finish()),
            target: Some(Cow::Borrowed(text)),
            command: Some(Cow::Borrowed(text)),
            sought: None,
            has_path: false,
            waits: false,
            lines: None,
            words,
        }
    }
}

/// What was come across on the way.
#[derive(Default)]
struct Found<'a> {
    /// The most telling of the arguments that can be a target, with its rank.
    target: Option<(u8, Cow<'a, str>)>,
    command: Option<Cow<'a, str>>,
    sought: Option<Cow<'a, str>>,
    waits: bool,
    lines: Lines,
    words: Words,
}

impl<'a> Found<'a> {
    /// Takes a top-level argument in.
    fn argument(&mut self, name: &str, role: ArgRole, caught: Caught<'a>) {
        if let Some(arg) = role.lines {
            // Some agents send numbers as text.
            let as_text = caught.text.as_deref().and_then(|text| text.parse().ok());
            let as_text: SmallVec<[u64; 2]> = as_text.into_iter().collect();
            let numbers = if as_text.is_empty() {
                &caught.numbers
            } else {
                &as_text
            };
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
            && self.target.as_ref().is_none_or(|(best, _)| rank < *best)
        {
            self.target = Some((rank, text));
        }
    }
}

/// The lines of a file that arguments ask for.
#[derive(Default)]
struct Lines {
    first: Option<u32>,
    last: Option<u32>,
    count: Option<u32>,
}

impl Lines {
    fn take(&mut self, arg: LineArg, numbers: &[u64]) {
        let number = |at: usize| {
            numbers
                .get(at)
                .map(|n| u32::try_from(*n).unwrap_or(u32::MAX))
        };
        match arg {
            LineArg::First => self.first = number(0),
            LineArg::Last => self.last = number(0),
            LineArg::Count => self.count = number(0),
            LineArg::Both => (self.first, self.last) = (number(0), number(1)),
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
struct Top<'k, 'f, 'a> {
    key: &'k Key,
    ignore: &'k [String],
    found: &'f mut Found<'a>,
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
        while let Some(Name(name)) = map.next_key()? {
            if self.ignore.iter().any(|ignored| *ignored == name) {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let role = tools::arg_role(&name);
            // What nobody asks for is not kept: the texts of an edit have escapes,
            // and would be copied.
            let asked = role.is_telling() || tools::may_wait(&name);
            let mut caught = Caught::default();
            let value = map.next_value_seed(Value {
                key: self.key,
                words: &mut self.found.words,
                caught: asked.then_some(&mut caught),
            })?;
            self.found.argument(&name, role, caught);
            sum = sum.wrapping_add(entry(&name, value, self.key));
        }
        Ok(object(sum, self.key))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<u64, A::Error> {
        Value::within(self.key, &mut self.found.words).visit_seq(seq)
    }
}
