//! The user's file: read within a bound, and held against the known keys while
//! the parser's spans still say on which line everything stands.

use std::{collections::BTreeMap, fs, io, io::Read, ops::Range, path::Path, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    CONFIG_BYTES_MAX, ConfigError, Place, is_bare, join,
    known::{Kind, Known},
};

/// Each key that a user set, and where.
pub(super) type Places = BTreeMap<String, Place>;

/// A TOML text and its name in messages.
pub(super) struct Document {
    name: Arc<str>,
    pub(super) text: String,
    /// Where each line after the first begins: a file may hold a hundred
    /// thousand keys, and counting from the top for each is quadratic.
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
        let bytes = read_bounded(path).map_err(|error| unreadable(reason(&error)))?;
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
            // A parser that cannot say where has run into the end.
            let at = error.span().map_or(self.text.len(), |span| span.start);
            self.syntax_error(at, error.message())
        })
    }

    /// Where each key of `root` stands, once all of them are known and of the
    /// right type.
    pub(super) fn check(&self, known: &Known, root: &DeTable<'_>) -> Result<Places, ConfigError> {
        let mut check = Check {
            document: self,
            places: Places::new(),
        };
        check.table(known, "", root)?;
        Ok(check.places)
    }

    fn place(&self, span: &Range<usize>) -> Place {
        Place::Line {
            file: self.name.clone(),
            line: 1 + self
                .line_starts
                .partition_point(|start| *start <= span.start),
        }
    }

    fn syntax_error(&self, at: usize, why: &str) -> ConfigError {
        ConfigError::Syntax {
            place: self.place(&(at..at)),
            why: why.to_owned(),
        }
    }
}

/// One byte more than is allowed shows that there is more, at no greater cost
/// for a file of any size or without an end.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
        kind => kind.to_string(),
    }
}

struct Check<'a> {
    document: &'a Document,
    places: Places,
}

impl Check<'_> {
    fn table(&mut self, known: &Known, path: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
        for (key, value) in table {
            let at = join(path, key.get_ref());
            let place = self.document.place(&key.span());
            let Some(inner) = known.child(key.get_ref()) else {
                return Err(ConfigError::UnknownKey {
                    key: at,
                    place,
                    nearest: known.nearest(key.get_ref()),
                });
            };
            if path == "profiles" && !is_bare(key.get_ref()) {
                return Err(ConfigError::Invalid {
                    key: at,
                    place: Some(place),
                    why: "a profile's name is letters, digits, `_` and `-`".to_owned(),
                });
            }
            self.value(inner, at, place, value.get_ref())?;
        }
        Ok(())
    }

    fn value(
        &mut self,
        known: &Known,
        at: String,
        place: Place,
        value: &DeValue<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(expected) = mismatch(known, value) {
            return Err(ConfigError::Type {
                key: at,
                place,
                expected,
                found: found(value),
            });
        }
        match value {
            DeValue::Table(table) => self.table(known, &at, table)?,
            DeValue::Array(items) => {
                let row = match known {
                    Known::Tables(row) => row,
                    _ => &Known::Any,
                };
                for (index, item) in items.iter().enumerate() {
                    let place = self.document.place(&item.span());
                    self.value(row, format!("{at}[{index}]"), place, item.get_ref())?;
                }
            }
            _ => {}
        }
        self.places.insert(at, place);
        Ok(())
    }
}

/// What should have stood there, if not this. Numbers that no setting can hold
/// are refused everywhere: `nan` would slip through every comparison.
fn mismatch(known: &Known, value: &DeValue<'_>) -> Option<&'static str> {
    let fits = match (known, value) {
        (_, DeValue::Integer(number))
            if i64::from_str_radix(number.as_str(), number.radix()).is_err() =>
        {
            return Some(Kind::Integer.expected());
        }
        (_, DeValue::Float(number)) if !number.as_str().parse().is_ok_and(f64::is_finite) => {
            return Some(Kind::Float.expected());
        }
        (Known::Any, _) => true,
        (Known::Value(Kind::Boolean), value) => value.is_bool(),
        (Known::Value(Kind::Integer), value) => value.is_integer(),
        (Known::Value(Kind::Float), value) => value.is_float() || value.is_integer(),
        (Known::Value(Kind::Text), value) => value.is_str(),
        (Known::List(_) | Known::Tables(_), value) => value.is_array(),
        (Known::Section(_) | Known::Named(_), value) => value.is_table(),
    };
    (!fits).then(|| known.expected())
}

fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        // Never the string itself: it may be a secret under the wrong key.
        other => format!("a {}", other.type_str()),
    }
}
