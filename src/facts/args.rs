//! Canonical arguments of a call, and what is notable in them: target, command, lines.
//!
//! Key order, white space, and whether a caller sent an object or its text do not affect
//! the hash. It is computed while serde_json parses, without building a tree: an object is
//! the commutative sum of its mixed entries, an array is hashed in order.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::same_call::ArgumentFilter;
use crate::{
    domain::{Args, sanitize},
    text::{
        json_hash::{CapturedValue, JsonHasher, JsonKey, JsonValueVisitor},
        key::{HashKey, SignatureKind},
        tokens::ArgumentWords,
    },
    tools::{
        arguments::{self, ArgumentRole, LineArgument},
        tool_traits,
    },
};

/// Longer arguments are hashed without removing invisible characters and white space
/// outside JSON, because a call must not cost milliseconds.
const NORMALIZED_BYTES_MAX: usize = 64 * 1024;

/// A call's arguments.
#[derive(Debug, Default)]
pub(super) struct ParsedArguments<'a> {
    /// `None`: unknown, and equal to no other.
    pub hash: Option<u64>,
    pub notable: NotableArguments<'a>,
    pub words: ArgumentWords,
}

impl<'a> ParsedArguments<'a> {
    pub fn parse(args: &'a Args, filter: ArgumentFilter<'_>, key: &HashKey) -> Self {
        match args {
            Args::Unknown => Self::default(),
            Args::Hash(hash) => Self {
                hash: Some(key.signature(SignatureKind::Json, hash, 0).get()),
                ..Self::default()
            },
            // Too long to normalize: compared as it is.
            Args::Text(text) if text.len() > NORMALIZED_BYTES_MAX => {
                Self::parse_object(text, false, filter, key).unwrap_or_else(|| Self {
                    hash: Some(key.hash_text(SignatureKind::JsonText, text)),
                    ..Self::default()
                })
            }
            Args::Text(text) => match sanitize::strip_invisible(text) {
                Cow::Borrowed(text) => Self::parse_visible(text, filter, key),
                Cow::Owned(text) => ParsedArguments::parse_visible(&text, filter, key).into_owned(),
            },
        }
    }

    /// Parses text without invisible characters: between the tokens of JSON they would
    /// make it invalid.
    fn parse_visible(text: &'a str, filter: ArgumentFilter<'_>, key: &HashKey) -> Self {
        Self::parse_json(text, filter, key)
            .unwrap_or_else(|| Self::parse_plain_text(text, filter, key))
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

    /// Parses JSON, or a JSON string that itself contains an object, as some providers
    /// send it.
    fn parse_json(json: &'a str, filter: ArgumentFilter<'_>, key: &HashKey) -> Option<Self> {
        if !json.trim_start().starts_with('"') {
            return Self::parse_object(json, true, filter, key);
        }
        let inner: String = serde_json::from_str(json).ok()?;
        if !inner.trim_start().starts_with('{') {
            return None;
        }
        Some(ParsedArguments::parse_object(&inner, false, filter, key)?.into_owned())
    }

    /// Parses an object or array. `is_visible_only`: no invisible character is in the JSON
    /// outside of escapes.
    fn parse_object(
        json: &'a str,
        is_visible_only: bool,
        filter: ArgumentFilter<'_>,
        key: &HashKey,
    ) -> Option<Self> {
        // An error of serde_json allocates; a plain command is recognised without it.
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
            filter,
            notable: &mut notable,
        };
        let hash = top.deserialize(&mut parser).ok()?;
        parser.end().ok()?;
        // Without other arguments the explanation is what the call is about.
        if notable.is_only_explained && !filter.keeps_explanations {
            let filter = ArgumentFilter {
                keeps_explanations: true,
                ..filter
            };
            return Self::parse_object(json, is_visible_only, filter, key);
        }
        Some(Self {
            hash: Some(hash),
            notable,
            words: hasher.words,
        })
    }

    /// Parses a plain command or truncated JSON. Runs of white space count as one.
    fn parse_plain_text(text: &'a str, filter: ArgumentFilter<'_>, key: &HashKey) -> Self {
        let compared = if filter.is_shell { "" } else { text };
        let hash = compared.split_whitespace().fold(0, |hash, word| {
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

/// What is notable in a call's arguments.
#[derive(Debug, Default)]
pub(super) struct NotableArguments<'a> {
    /// The file, URL or command that the call acts on.
    pub target: Option<Cow<'a, str>>,
    target_rank: Option<u8>,
    pub command: Option<Cow<'a, str>>,
    pub search_term: Option<Cow<'a, str>>,
    /// The arguments ask to wait or to poll.
    pub asks_to_wait: bool,
    /// An argument selects a change: `action: "update"`, `method: "POST"`.
    pub asks_to_change: bool,
    /// There are arguments whose names say nothing: they may choose a part of the target.
    pub has_others: bool,
    /// All arguments explain the call or limit it.
    is_only_explained: bool,
    lines: LineArguments,
}

impl<'a> NotableArguments<'a> {
    pub fn has_path(&self) -> bool {
        self.target_rank.is_some_and(arguments::is_path_rank)
    }

    /// The first and last line of a file that is asked for.
    pub fn line_range(&self) -> Option<(u32, u32)> {
        self.lines.range()
    }

    /// Records a top-level argument.
    fn record_argument(&mut self, name: &str, role: ArgumentRole, captured: CapturedValue<'a>) {
        if let Some(arg) = role.lines {
            // Some agents send numbers as text.
            let as_text = captured.text.as_deref().and_then(|text| text.parse().ok());
            let numbers = as_text.map_or(captured.numbers, |number| [Some(number), None]);
            self.lines.set(arg, numbers);
        }
        let Some(text) = captured.text else { return };
        self.asks_to_wait |= arguments::is_wait_argument(name, &text);
        self.asks_to_change |= arguments::is_selector(name) && tool_traits::selects_change(&text);
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

/// The line arguments of a call.
#[derive(Clone, Copy, Debug, Default)]
struct LineArguments {
    first: Option<u32>,
    last: Option<u32>,
    count: Option<u32>,
}

impl LineArguments {
    fn set(&mut self, arg: LineArgument, numbers: [Option<u64>; 2]) {
        let [first, second] = numbers.map(|n| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
        match arg {
            LineArgument::First => self.first = first,
            LineArgument::Last => self.last = first,
            LineArgument::Count => self.count = first,
            LineArgument::Range => (self.first, self.last) = (first, second),
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

/// Visits the outermost value, the only one with ignored keys and a target.
struct TopLevelVisitor<'r, 'k, 'a> {
    hasher: &'r mut JsonHasher<'k>,
    filter: ArgumentFilter<'r>,
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
        let (mut kept, mut ignored) = (false, false);
        while let Some(name) = map.next_key::<JsonKey<'de>>()? {
            if self.filter.is_ignored(&name.0) {
                map.next_value::<serde::de::IgnoredAny>()?;
                ignored = true;
                continue;
            }
            kept = true;
            let role = arguments::classify_argument(&name.0);
            self.notable.has_others |= !role.is_relevant();
            // Values without a role are not captured: the texts of an edit have escapes and
            // would be copied.
            let is_wanted = role.is_relevant()
                || arguments::is_action_argument(&name.0)
                || arguments::is_selector(&name.0);
            let mut captured = CapturedValue::default();
            let numbers = self.hasher.words.numbers();
            let value = map.next_value_seed(JsonValueVisitor {
                hasher: self.hasher,
                capture: is_wanted.then_some(&mut captured),
            })?;
            if self.hasher.words.numbers() != numbers && arguments::is_view_argument(&name.0) {
                self.hasher.words.restore_numbers(numbers);
            }
            // A shell's command is compared by its meaning, not by its spelling.
            let is_shell_command =
                self.filter.is_shell && role.is_command && self.notable.command.is_none();
            if is_wanted {
                self.notable.record_argument(&name.0, role, captured);
            }
            if is_shell_command && self.notable.command.is_some() {
                continue;
            }
            entry_sum = entry_sum.wrapping_add(self.hasher.hash_entry(&name, value));
        }
        self.notable.is_only_explained = ignored && !kept;
        Ok(self.hasher.hash_object(entry_sum))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<u64, A::Error> {
        JsonValueVisitor::nested(self.hasher).visit_seq(seq)
    }
}
