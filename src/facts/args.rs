//! Canonical arguments: key order, white space, and whether a caller sent an
//! object or its text do not matter. The hash is made while serde_json parses,
//! without building a tree: an object is the commutative sum of its mixed
//! entries, an array is hashed in order.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::tools::{self, ArgRole, LineArg};
use crate::{
    domain::{Args, sanitize},
    text::{
        json_hash::{CapturedValue, JsonHasher, JsonKey, JsonValueVisitor},
        key::{HashKey, SignatureKind},
        tokens::ArgumentWords,
    },
};

/// Beyond this unseen characters and white space outside JSON count: a call must
/// not cost milliseconds.
const NORMALIZED_BYTES_MAX: usize = 64 * 1024;

/// What is known of a call's arguments.
#[derive(Debug, Default)]
pub(super) struct ParsedArguments<'a> {
    /// `None`: unknown, equal to nothing.
    pub hash: Option<u64>,
    /// What was come across in them.
    pub notable: NotableArguments<'a>,
    /// Their words.
    pub words: ArgumentWords,
}

impl<'a> ParsedArguments<'a> {
    pub fn parse(args: &'a Args, ignore: &[String], key: &HashKey) -> Self {
        match args {
            Args::Unknown => Self::default(),
            Args::Hash(hash) => Self {
                hash: Some(key.signature(SignatureKind::Json, hash, 0).get()),
                ..Self::default()
            },
            // Too long to be looked at closely: equal only as it is.
            Args::Text(text) if text.len() > NORMALIZED_BYTES_MAX => {
                Self::parse_object(text, false, ignore, key).unwrap_or_else(|| Self {
                    hash: Some(key.hash_text(SignatureKind::JsonText, text)),
                    ..Self::default()
                })
            }
            Args::Text(text) => match sanitize::strip_invisible(text) {
                Cow::Borrowed(text) => Self::parse_visible(text, ignore, key),
                Cow::Owned(text) => ParsedArguments::parse_visible(&text, ignore, key).into_owned(),
            },
        }
    }

    /// Unseen characters are taken out before: between the tokens of JSON they
    /// would make other text of it.
    fn parse_visible(text: &'a str, ignore: &[String], key: &HashKey) -> Self {
        Self::parse_json(text, ignore, key).unwrap_or_else(|| Self::parse_plain_text(text, key))
    }

    fn into_owned<'b>(self) -> ParsedArguments<'b> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        ParsedArguments {
            hash: self.hash,
            notable: NotableArguments {
                target: owned(self.notable.target),
                command: owned(self.notable.command),
                search_term: owned(self.notable.search_term),
                ..self.notable
            },
            words: self.words,
        }
    }

    /// JSON; also a JSON string that itself holds an object, as some providers
    /// send it.
    fn parse_json(json: &'a str, ignore: &[String], key: &HashKey) -> Option<Self> {
        if !json.trim_start().starts_with('"') {
            return Self::parse_object(json, true, ignore, key);
        }
        let inner: String = serde_json::from_str(json).ok()?;
        if !inner.trim_start().starts_with('{') {
            return None;
        }
        Some(ParsedArguments::parse_object(&inner, false, ignore, key)?.into_owned())
    }

    /// `is_seen`: nothing unseen stands in the JSON itself.
    fn parse_object(
        json: &'a str,
        is_visible_only: bool,
        ignore: &[String],
        key: &HashKey,
    ) -> Option<Self> {
        // An error of serde_json's is an allocation, and a plain command has no
        // need of it.
        let first_byte = json.trim_ascii_start().as_bytes().first();
        if !matches!(first_byte, Some(b'{' | b'[')) {
            return None;
        }
        let mut notable = NotableArguments::default();
        let mut hasher = JsonHasher {
            key,
            is_visible_only,
            words: ArgumentWords::default(),
        };
        let mut parser = serde_json::Deserializer::from_str(json);
        let top = TopLevelVisitor {
            hasher: &mut hasher,
            ignore,
            notable: &mut notable,
        };
        let hash = top.deserialize(&mut parser).ok()?;
        parser.end().ok()?;
        Some(Self {
            hash: Some(hash),
            notable,
            words: hasher.words,
        })
    }

    /// Not JSON: a plain command, or JSON cut short. White space is folded.
    fn parse_plain_text(text: &'a str, key: &HashKey) -> Self {
        let words = text.split_whitespace();
        let hash = words.fold(0, |hash, word| {
            key.hash_pair(
                SignatureKind::Json,
                hash,
                key.hash_text(SignatureKind::JsonText, word),
            )
        });
        let mut words = ArgumentWords::default();
        words.push_text(text);
        Self {
            hash: Some(hash),
            notable: NotableArguments {
                target: Some(Cow::Borrowed(text)),
                command: Some(Cow::Borrowed(text)),
                ..NotableArguments::default()
            },
            words,
        }
    }
}

/// What was come across in arguments.
#[derive(Debug, Default)]
pub(super) struct NotableArguments<'a> {
    /// The file, URL or command: the most telling of what can be one.
    pub target: Option<Cow<'a, str>>,
    /// How telling.
    target_rank: Option<u8>,
    /// The command line.
    pub command: Option<Cow<'a, str>>,
    /// What is looked for.
    pub search_term: Option<Cow<'a, str>>,
    /// They ask to wait, or to look for news.
    pub asks_to_wait: bool,
    lines: LineArguments,
}

impl<'a> NotableArguments<'a> {
    /// A path is among them.
    pub fn has_path(&self) -> bool {
        self.target_rank.is_some_and(tools::is_path_rank)
    }

    /// The lines of a file they ask for, first and last.
    pub fn line_range(&self) -> Option<(u32, u32)> {
        self.lines.range()
    }

    /// Takes a top-level argument in.
    fn record_argument(&mut self, name: &str, role: ArgRole, captured: CapturedValue<'a>) {
        if let Some(arg) = role.lines {
            // Some agents send numbers as text.
            let as_text = captured.text.as_deref().and_then(|text| text.parse().ok());
            let numbers = as_text.map_or(captured.numbers, |number| [Some(number), None]);
            self.lines.set(arg, numbers);
        }
        let Some(text) = captured.text else { return };
        self.asks_to_wait |= tools::is_wait_argument(name, &text);
        if self.command.is_none() && role.is_command {
            self.command = Some(text.clone());
        }
        if self.search_term.is_none() && role.is_search_term {
            self.search_term = Some(text.clone());
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
struct LineArguments {
    first: Option<u32>,
    last: Option<u32>,
    count: Option<u32>,
}

impl LineArguments {
    fn set(&mut self, arg: LineArg, numbers: [Option<u64>; 2]) {
        let [first, second] = numbers.map(|n| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
        match arg {
            LineArg::First => self.first = first,
            LineArg::Last => self.last = first,
            LineArg::Count => self.count = first,
            LineArg::Range => (self.first, self.last) = (first, second),
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
struct TopLevelVisitor<'r, 'k, 'a> {
    hasher: &'r mut JsonHasher<'k>,
    ignore: &'k [String],
    notable: &'r mut NotableArguments<'a>,
}

impl<'de> DeserializeSeed<'de> for TopLevelVisitor<'_, '_, 'de> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TopLevelVisitor<'_, '_, 'de> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut entry_sum = 0u64;
        while let Some(name) = map.next_key::<JsonKey<'de>>()? {
            if self.ignore.iter().any(|ignored| *ignored == name.0) {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let role = tools::classify_argument(&name.0);
            // What nobody asks for is not kept: the texts of an edit have escapes,
            // and would be copied.
            let is_wanted = role.is_relevant() || tools::is_action_argument(&name.0);
            let mut captured = CapturedValue::default();
            let value = map.next_value_seed(JsonValueVisitor {
                hasher: self.hasher,
                capture: is_wanted.then_some(&mut captured),
            })?;
            if is_wanted {
                self.notable.record_argument(&name.0, role, captured);
            }
            entry_sum = entry_sum.wrapping_add(self.hasher.hash_entry(&name, value));
        }
        Ok(self.hasher.hash_object(entry_sum))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<u64, A::Error> {
        JsonValueVisitor::nested(self.hasher).visit_seq(seq)
    }
}
