//! Which keys there are and what type each has, read off the defaults: a key
//! is added by giving it a default, and cannot be forgotten here.

use std::collections::BTreeMap;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::join;

/// The keys allowed in each `[[name]]`, which an empty default cannot show:
/// `("tools", &["name", "class"])`.
pub type Tables = &'static [(&'static str, &'static [&'static str])];

/// What may stand in one place of a configuration.
#[derive(Clone)]
pub(super) enum Known {
    Value(Kind),
    List(Kind),
    /// A table with these keys and no others.
    Section(BTreeMap<String, Self>),
    /// A table whose keys the user names: profiles, and a default of `{}`.
    Named(Box<Self>),
    /// `[[name]]`: an array of such tables.
    Tables(Box<Self>),
    /// Left to the type that is read from it.
    Any,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Boolean,
    Integer,
    /// An integer will do as well.
    Float,
    Text,
}

impl Known {
    /// `text` is what `root` was parsed from. It tells `x = {}`, where any key
    /// may stand, from a section `[x]` whose keys are all commented out.
    pub(super) fn from_defaults(root: &DeTable<'_>, text: &str, tables: Tables) -> Self {
        let defaults = Defaults { text, tables };
        let mut keys = defaults.keys("", root);
        let profile = ["detect", "policy"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), keys.get(name)?.clone())))
            .chain([("mode".to_owned(), Self::Value(Kind::Text))])
            .collect();
        keys.insert(
            "profiles".to_owned(),
            Self::Named(Box::new(Self::Section(profile))),
        );
        Self::Section(keys)
    }

    pub(super) fn child(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Section(keys) => keys.get(key),
            Self::Named(inner) => Some(inner),
            Self::Any => Some(self),
            Self::Value(_) | Self::List(_) | Self::Tables(_) => None,
        }
    }

    /// The key that a misspelt one was most likely meant to be.
    pub(super) fn nearest(&self, key: &str) -> Option<String> {
        match self {
            Self::Section(keys) => nearest(key, keys.keys()),
            _ => None,
        }
    }

    pub(super) fn expected(&self) -> &'static str {
        match self {
            Self::Value(kind) => kind.expected(),
            Self::List(_) => "an array",
            Self::Section(_) | Self::Named(_) => "a table",
            Self::Tables(_) => "an array of tables",
            Self::Any => "any value",
        }
    }
}

impl Kind {
    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a 64-bit integer",
            Self::Float => "a finite number",
            Self::Text => "a string",
        }
    }

    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Boolean(_) => Self::Boolean,
            DeValue::Integer(_) => Self::Integer,
            DeValue::Float(_) => Self::Float,
            _ => Self::Text,
        }
    }
}

struct Defaults<'a> {
    text: &'a str,
    tables: Tables,
}

impl Defaults<'_> {
    fn keys(&self, path: &str, table: &DeTable<'_>) -> BTreeMap<String, Known> {
        table
            .iter()
            .map(|(key, value)| {
                let key = key.get_ref().to_string();
                let known = self.known(&join(path, &key), value);
                (key, known)
            })
            .collect()
    }

    fn known(&self, path: &str, value: &Spanned<DeValue<'_>>) -> Known {
        match value.get_ref() {
            DeValue::Table(table) if table.is_empty() && self.is_inline(value) => {
                Known::Named(Box::new(Known::Any))
            }
            DeValue::Table(table) => Known::Section(self.keys(path, table)),
            DeValue::Array(items) => match self.columns(path) {
                Some(columns) => Known::Tables(Box::new(columns)),
                None => Known::List(items.first().map_or(Kind::Text, |i| Kind::of(i.get_ref()))),
            },
            scalar => Known::Value(Kind::of(scalar)),
        }
    }

    fn is_inline(&self, value: &Spanned<DeValue<'_>>) -> bool {
        self.text
            .get(value.span())
            .is_some_and(|source| source.starts_with('{'))
    }

    fn columns(&self, path: &str) -> Option<Known> {
        let (_, columns) = self.tables.iter().find(|(name, _)| *name == path)?;
        Some(Known::Section(
            columns
                .iter()
                .map(|column| ((*column).to_owned(), Known::Any))
                .collect(),
        ))
    }
}

/// By Jaro-Winkler, which forgives swapped letters and favours a common
/// beginning. There is always one to name, however far; `None` where no key
/// is known at all.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    /// No key is that long, and the comparison is quadratic.
    const WORD_CHARS_MAX: usize = 64;
    let word: String = word.chars().take(WORD_CHARS_MAX).collect();
    known
        .max_by(|a, b| strsim::jaro_winkler(a, &word).total_cmp(&strsim::jaro_winkler(b, &word)))
        .cloned()
}
