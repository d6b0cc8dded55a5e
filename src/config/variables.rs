//! The environment variables `UNSTUCK__SECTION__KEY`. The type of a value is that of
//! the key's default, so `007` stays a string where a string is expected. The source in
//! the `config` crate would guess the type from the value.

use std::{collections::BTreeMap, sync::Arc};

use config::{Value, ValueKind};

use super::{
    ConfigError, SourceLocation, is_bare_key, join_key,
    schema::{ConfigSchema, SettingType},
};

/// It ends with two underscores: `UNSTUCK_SERVER` and similar ones belong to the command
/// line.
const PREFIX: &str = "UNSTUCK__";

/// A key that a variable sets.
pub(super) struct EnvVariable {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) location: SourceLocation,
}

/// The variables in `env` with our prefix, sorted by name, so that of two that differ
/// only in case the same one always wins.
pub(super) fn parse_variables(
    schema: &ConfigSchema,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<EnvVariable>, ConfigError> {
    let variables: BTreeMap<_, _> = env.into_iter().collect();
    variables
        .iter()
        .filter_map(|(name, text)| Some((name, name.strip_prefix(PREFIX)?, text)))
        .map(|(name, key_path, text)| parse_variable(schema, name, key_path, text))
        .collect()
}

fn parse_variable(
    root: &ConfigSchema,
    name: &str,
    key_path: &str,
    text: &str,
) -> Result<EnvVariable, ConfigError> {
    let location = SourceLocation::Variable(Arc::from(name));
    let mut schema = root;
    let mut key = String::new();
    for word in key_path.to_ascii_lowercase().split("__") {
        key = join_key(&key, word);
        schema = match settable_child(schema, word) {
            Some(inner) => inner,
            None => {
                return Err(ConfigError::UnknownKey {
                    key,
                    location,
                    nearest: schema.nearest_key(word),
                });
            }
        };
    }
    match parse_value(schema, text) {
        Ok(value) => Ok(EnvVariable {
            key,
            value,
            location,
        }),
        Err(expected) => Err(ConfigError::Type {
            key,
            location,
            expected,
            found: describe_found(schema, text),
        }),
    }
}

/// The child as in a file, except that a free value is set only as a whole: with both
/// `A` and `A__B` the result would depend on an order. `[9]` is rejected too, because
/// the `config` crate reads it as an index.
fn settable_child<'a>(schema: &'a ConfigSchema, word: &str) -> Option<&'a ConfigSchema> {
    let inner = schema.child(word)?;
    (is_bare_key(word) && !matches!(schema, ConfigSchema::Any)).then_some(inner)
}

/// Shows the value only where a single value is expected. Set on a section, it may be a
/// secret.
fn describe_found(schema: &ConfigSchema, text: &str) -> String {
    match schema {
        ConfigSchema::Value(_) | ConfigSchema::List(_) => format!("{text:?}"),
        _ => "a string".to_owned(),
    }
}

/// The value of `text` for this schema, or the expected type.
fn parse_value(schema: &ConfigSchema, text: &str) -> Result<Value, &'static str> {
    match schema {
        ConfigSchema::Value(kind) => parse_scalar(*kind, text),
        ConfigSchema::List(kind) => parse_list(*kind, text),
        ConfigSchema::Any => parse_scalar(SettingType::Text, text),
        ConfigSchema::Section(_) | ConfigSchema::Map(_) => {
            Err("a table, which no variable can set")
        }
        ConfigSchema::ArrayOfTables(_) => Err("an array of tables, which no variable can set"),
    }
}

fn parse_scalar(kind: SettingType, text: &str) -> Result<Value, &'static str> {
    let trimmed = text.trim();
    let value: Option<ValueKind> = match kind {
        SettingType::Boolean => trimmed
            .to_ascii_lowercase()
            .parse::<bool>()
            .ok()
            .map(Into::into),
        SettingType::Integer => trimmed.parse::<i64>().ok().map(Into::into),
        SettingType::Float => trimmed
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite())
            .map(Into::into),
        SettingType::Text => Some(text.into()),
    };
    value.map(Value::from).ok_or(kind.expected())
}

/// Parses `a, b`. An empty text is an empty list.
fn parse_list(kind: SettingType, text: &str) -> Result<Value, &'static str> {
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| parse_scalar(kind, item))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(items.into())
}
