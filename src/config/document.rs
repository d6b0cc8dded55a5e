//! A TOML file: read up to a size, and checked against the known keys while the
//! parser's spans still give the line of each key.

use std::{collections::BTreeMap, fs, io, io::Read, ops::Range, path::Path, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    CONFIG_BYTES_MAX, ConfigError, SourceLocation, is_bare_key, join_key,
    schema::{ConfigSchema, SettingType},
};

/// The place of each key that a user set.
pub(super) type KeyLocations = BTreeMap<String, SourceLocation>;

/// A TOML text, and its name in messages.
pub(super) struct Document {
    name: Arc<str>,
    pub(super) text: String,
    /// The offset of each line after the first. A file may hold a hundred thousand keys,
    /// and counting lines from the top for each is quadratic.
    line_starts: Vec<usize>,
}

impl Document {
    pub(super) fn new(name: &str, text: &str) -> Self {
        Self {
            name: name.into(),
            text: text.to_owned(),
            line_starts: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let unreadable = |why: String| ConfigError::Unreadable {
            file: name.clone(),
            why,
        };
        let bytes = read_bounded(path).map_err(|error| unreadable(describe_io_error(&error)))?;
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            let why = format!("larger than {CONFIG_BYTES_MAX} bytes (CONFIG_BYTES_MAX)");
            return Err(unreadable(why));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Self::new(&name, text)),
            Err(error) => {
                let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                Err(Self::new(&name, &valid).syntax_error(valid.len(), "not utf-8"))
            }
        }
    }

    pub(super) fn parse(&self) -> Result<Spanned<DeTable<'_>>, ConfigError> {
        DeTable::parse(&self.text).map_err(|error| {
            // An error without a position is at the end of the text.
            let at = error.span().map_or(self.text.len(), |span| span.start);
            self.syntax_error(at, error.message())
        })
    }

    /// Checks that each key of `root` is known and has the right type, and returns where
    /// it is.
    pub(super) fn check_keys(
        &self,
        schema: &ConfigSchema,
        root: &DeTable<'_>,
    ) -> Result<KeyLocations, ConfigError> {
        let mut checker = DocumentChecker {
            document: self,
            locations: KeyLocations::new(),
        };
        checker.check_table(schema, "", root)?;
        Ok(checker.locations)
    }

    fn location(&self, span: &Range<usize>) -> SourceLocation {
        SourceLocation::Line {
            file: self.name.clone(),
            line: 1 + self
                .line_starts
                .partition_point(|start| *start <= span.start),
        }
    }

    fn syntax_error(&self, at: usize, why: &str) -> ConfigError {
        ConfigError::Syntax {
            location: self.location(&(at..at)),
            why: why.to_owned(),
        }
    }
}

/// Reads at most one byte more than is allowed, which shows that the file is too large
/// without reading all of it.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
        kind => kind.to_string(),
    }
}

struct DocumentChecker<'a> {
    document: &'a Document,
    locations: KeyLocations,
}

impl DocumentChecker<'_> {
    fn check_table(
        &mut self,
        schema: &ConfigSchema,
        path: &str,
        table: &DeTable<'_>,
    ) -> Result<(), ConfigError> {
        for (key, value) in table {
            let at = join_key(path, key.get_ref());
            let location = self.document.location(&key.span());
            let Some(inner) = schema.child(key.get_ref()) else {
                return Err(ConfigError::UnknownKey {
                    key: at,
                    location,
                    nearest: schema.nearest_key(key.get_ref()),
                });
            };
            if path == "profiles" && !is_bare_key(key.get_ref()) {
                return Err(ConfigError::Invalid {
                    key: at,
                    location: Some(location),
                    why: "a profile's name is letters, digits, `_` and `-`".to_owned(),
                });
            }
            self.check_value(inner, at, location, value.get_ref())?;
        }
        Ok(())
    }

    fn check_value(
        &mut self,
        schema: &ConfigSchema,
        at: String,
        location: SourceLocation,
        value: &DeValue<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(expected) = find_type_mismatch(schema, value) {
            return Err(ConfigError::Type {
                key: at,
                location,
                expected,
                found: describe_value(value),
            });
        }
        match value {
            DeValue::Table(table) => self.check_table(schema, &at, table)?,
            DeValue::Array(items) => {
                let row = match schema {
                    ConfigSchema::ArrayOfTables(row) => row,
                    _ => &ConfigSchema::Any,
                };
                for (index, item) in items.iter().enumerate() {
                    let location = self.document.location(&item.span());
                    self.check_value(row, format!("{at}[{index}]"), location, item.get_ref())?;
                }
            }
            _ => {}
        }
        self.locations.insert(at, location);
        Ok(())
    }
}

/// The expected type, if the value does not have it. Numbers that no setting can hold
/// are rejected everywhere; `nan` would pass every comparison.
fn find_type_mismatch(schema: &ConfigSchema, value: &DeValue<'_>) -> Option<&'static str> {
    let fits = match (schema, value) {
        (_, DeValue::Integer(number))
            if i64::from_str_radix(number.as_str(), number.radix()).is_err() =>
        {
            return Some(SettingType::Integer.expected());
        }
        (_, DeValue::Float(number)) if !number.as_str().parse().is_ok_and(f64::is_finite) => {
            return Some(SettingType::Float.expected());
        }
        (ConfigSchema::Any, _) => true,
        (ConfigSchema::Value(SettingType::Boolean), value) => value.is_bool(),
        (ConfigSchema::Value(SettingType::Integer), value) => value.is_integer(),
        (ConfigSchema::Value(SettingType::Float), value) => value.is_float() || value.is_integer(),
        (ConfigSchema::Value(SettingType::Text), value) => value.is_str(),
        (ConfigSchema::List(_) | ConfigSchema::ArrayOfTables(_), value) => value.is_array(),
        (ConfigSchema::Section(_) | ConfigSchema::Map(_), value) => value.is_table(),
    };
    (!fits).then(|| schema.expected())
}

fn describe_value(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        // Never the string itself, which may be a secret under the wrong key.
        other => format!("a {}", other.type_str()),
    }
}
