//! The known keys and their types, derived from the built-in files: a key is added
//! by giving it a default.

use std::collections::BTreeMap;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{document::Document, join_key};

/// The keys allowed in each `[[name]]`, which an empty default cannot show:
/// `("tools", &["name", "class"])`.
pub type TableKeys = &'static [(&'static str, &'static [&'static str])];

/// What may stand in one place of a configuration.
#[derive(Clone)]
pub(super) enum ConfigSchema {
    Value(SettingType),
    List(SettingType),
    /// A table with these keys and no others.
    Section(BTreeMap<String, Self>),
    /// A table whose keys the user names: profiles, and a default of `{}`.
    Map(Box<Self>),
    /// `[[name]]`: an array of such tables.
    ArrayOfTables(Box<Self>),
    /// Left to the type that is read from it.
    Any,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum SettingType {
    Boolean,
    Integer,
    /// An integer will do as well.
    Float,
    Text,
}

impl ConfigSchema {
    /// The keys of all `files` together. The text of a file distinguishes `x = {}`,
    /// which accepts any key, from a section `[x]` whose keys are all commented out.
    pub(super) fn from_defaults<'a>(
        files: impl Iterator<Item = (&'a Document, &'a DeTable<'a>)>,
        tables: TableKeys,
    ) -> Self {
        let mut keys = BTreeMap::new();
        for (file, root) in files {
            let text = &file.text;
            let builder = ConfigSchemaBuilder { text, tables };
            merge_sections(&mut keys, builder.build_section("", root));
        }
        let profile = ["detect", "policy"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), keys.get(name)?.clone())))
            .chain([("mode".to_owned(), Self::Value(SettingType::Text))])
            .collect();
        keys.insert(
            "profiles".to_owned(),
            Self::Map(Box::new(Self::Section(profile))),
        );
        Self::Section(keys)
    }

    pub(super) fn child(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Section(keys) => keys.get(key),
            Self::Map(inner) => Some(inner),
            Self::Any => Some(self),
            Self::Value(_) | Self::List(_) | Self::ArrayOfTables(_) => None,
        }
    }

    /// The key that a misspelt one was most likely meant to be.
    pub(super) fn nearest_key(&self, key: &str) -> Option<String> {
        match self {
            Self::Section(keys) => {
                find_nearest(key, keys.keys().map(String::as_str)).map(str::to_owned)
            }
            _ => None,
        }
    }

    pub(super) fn expected(&self) -> &'static str {
        match self {
            Self::Value(kind) => kind.expected(),
            Self::List(_) => "an array",
            Self::Section(_) | Self::Map(_) => "a table",
            Self::ArrayOfTables(_) => "an array of tables",
            Self::Any => "any value",
        }
    }
}

impl SettingType {
    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a 64-bit integer",
            Self::Float => "a finite number",
            Self::Text => "a string",
        }
    }

    fn from_value(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Boolean(_) => Self::Boolean,
            DeValue::Integer(_) => Self::Integer,
            DeValue::Float(_) => Self::Float,
            _ => Self::Text,
        }
    }
}

struct ConfigSchemaBuilder<'a> {
    text: &'a str,
    tables: TableKeys,
}

impl ConfigSchemaBuilder<'_> {
    fn build_section(&self, path: &str, table: &DeTable<'_>) -> BTreeMap<String, ConfigSchema> {
        table
            .iter()
            .map(|(key, value)| {
                let key = key.get_ref().to_string();
                let schema = self.build_schema(&join_key(path, &key), value);
                (key, schema)
            })
            .collect()
    }

    fn build_schema(&self, path: &str, value: &Spanned<DeValue<'_>>) -> ConfigSchema {
        match value.get_ref() {
            DeValue::Table(table) if table.is_empty() && self.is_inline(value) => {
                ConfigSchema::Map(Box::new(ConfigSchema::Any))
            }
            DeValue::Table(table) => ConfigSchema::Section(self.build_section(path, table)),
            DeValue::Array(items) => match self.build_row_schema(path) {
                Some(columns) => ConfigSchema::ArrayOfTables(Box::new(columns)),
                None => ConfigSchema::List(
                    items
                        .first()
                        .map_or(SettingType::Text, |i| SettingType::from_value(i.get_ref())),
                ),
            },
            scalar => ConfigSchema::Value(SettingType::from_value(scalar)),
        }
    }

    fn is_inline(&self, value: &Spanned<DeValue<'_>>) -> bool {
        self.text
            .get(value.span())
            .is_some_and(|source| source.starts_with('{'))
    }

    fn build_row_schema(&self, path: &str) -> Option<ConfigSchema> {
        let (_, columns) = self.tables.iter().find(|(name, _)| *name == path)?;
        Some(ConfigSchema::Section(
            columns
                .iter()
                .map(|column| ((*column).to_owned(), ConfigSchema::Any))
                .collect(),
        ))
    }
}

/// Adds the keys of `added`. A key that both have keeps its first type.
fn merge_sections(
    keys: &mut BTreeMap<String, ConfigSchema>,
    added: BTreeMap<String, ConfigSchema>,
) {
    for (key, schema) in added {
        match (keys.get_mut(&key), schema) {
            (Some(ConfigSchema::Section(known)), ConfigSchema::Section(added)) => {
                merge_sections(known, added);
            }
            (Some(_), _) => {}
            (None, schema) => {
                keys.insert(key, schema);
            }
        }
    }
}

/// By Jaro-Winkler, which forgives swapped letters and favours a common
/// beginning. There is always one to name, however far; `None` where no key
/// is known at all.
pub fn find_nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// No key is that long, and the comparison is quadratic.
    const WORD_CHARS_MAX: usize = 64;
    let word: String = word.chars().take(WORD_CHARS_MAX).collect();
    known.max_by(|a, b| strsim::jaro_winkler(a, &word).total_cmp(&strsim::jaro_winkler(b, &word)))
}
