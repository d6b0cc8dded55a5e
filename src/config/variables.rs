//! `UNSTUCK__SECTION__KEY`. The type comes from the default and not, as the
//! `config` crate's own source would have it, from how the value looks: `007`
//! stays a string where a string belongs.

use std::{collections::BTreeMap, sync::Arc};

use config::{Value, ValueKind};

use super::{
    ConfigError, Place, is_bare, join,
    known::{Kind, Known},
};

/// Two underscores: `UNSTUCK_SERVER` and its like are the command line's.
const PREFIX: &str = "UNSTUCK__";

/// One key set by a variable.
pub(super) struct Variable {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) place: Place,
}

/// Our variables of `env`, in the order of their names, so that of two that
/// differ only in case the same one wins each time.
pub(super) fn read(
    known: &Known,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<Variable>, ConfigError> {
    let ours: BTreeMap<_, _> = env.into_iter().collect();
    ours.iter()
        .filter_map(|(name, text)| Some((name, name.strip_prefix(PREFIX)?, text)))
        .map(|(name, words, text)| variable(known, name, words, text))
        .collect()
}

fn variable(root: &Known, name: &str, words: &str, text: &str) -> Result<Variable, ConfigError> {
    let place = Place::Variable(Arc::from(name));
    let mut known = root;
    let mut key = String::new();
    for word in words.to_ascii_lowercase().split("__") {
        key = join(&key, word);
        known = match child(known, word) {
            Some(inner) => inner,
            None => {
                return Err(ConfigError::UnknownKey {
                    key,
                    place,
                    nearest: known.nearest(word),
                });
            }
        };
    }
    match value(known, text) {
        Ok(value) => Ok(Variable { key, value, place }),
        Err(expected) => Err(ConfigError::Type {
            key,
            place,
            expected,
            found: found(known, text),
        }),
    }
}

/// As in a file, but a free value is set as a whole: were `A` and `A__B` both
/// allowed, it would take an order to say which holds. And no `[9]`, which the
/// `config` crate would take for an index.
fn child<'a>(known: &'a Known, word: &str) -> Option<&'a Known> {
    let inner = known.child(word)?;
    (is_bare(word) && !matches!(known, Known::Any)).then_some(inner)
}

/// The value itself only where a number or a truth belongs: set on a section,
/// it may be a secret.
fn found(known: &Known, text: &str) -> String {
    match known {
        Known::Value(_) | Known::List(_) => format!("{text:?}"),
        _ => "a string".to_owned(),
    }
}

/// The value that `text` means in this place, or what it should have been.
fn value(known: &Known, text: &str) -> Result<Value, &'static str> {
    match known {
        Known::Value(kind) => scalar(*kind, text),
        Known::List(kind) => list(*kind, text),
        Known::Any => scalar(Kind::Text, text),
        Known::Section(_) | Known::Named(_) => Err("a table, which no variable can set"),
        Known::Tables(_) => Err("an array of tables, which no variable can set"),
    }
}

fn scalar(kind: Kind, text: &str) -> Result<Value, &'static str> {
    let trimmed = text.trim();
    let value: Option<ValueKind> = match kind {
        Kind::Boolean => trimmed
            .to_ascii_lowercase()
            .parse::<bool>()
            .ok()
            .map(Into::into),
        Kind::Integer => trimmed.parse::<i64>().ok().map(Into::into),
        Kind::Float => trimmed
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite())
            .map(Into::into),
        Kind::Text => Some(text.into()),
    };
    value.map(Value::from).ok_or(kind.expected())
}

/// `a, b`; of nothing, the empty list.
fn list(kind: Kind, text: &str) -> Result<Value, &'static str> {
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| scalar(kind, item))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(items.into())
}
