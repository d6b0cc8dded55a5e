//! Merges the layers and reads sections from the result.

use std::{
    collections::BTreeSet,
    fmt::{self, Display},
    ops::Range,
    path::{Path, PathBuf},
};

use config::{Config, ConfigBuilder, File, FileFormat, Map, Value, builder::DefaultState};
use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue, ValueDeserializer},
};

use crate::cluster::RedisUrl;

use super::{
    ConfigError, SourceLocation,
    document::{Document, KeyLocations},
    join_key,
    memory_budget::MemoryBudget,
    schema::{ConfigSchema, TableKeys, find_nearest},
    variables,
};

/// The name and the text of each built-in file, weakest first.
pub type BuiltInFiles = &'static [(&'static str, &'static str)];

/// The keys that every detector has and their values where no file sets them.
const DETECTOR_DEFAULTS: &str = "enabled = true\nterminate_after = 0\n";

/// Settings from, weakest first: the built-in files, one TOML file, and
/// `UNSTUCK__SECTION__KEY` variables.
#[derive(Clone)]
pub struct Layers {
    merged: Config,
    /// The same as a TOML table, converted once because a start reads about thirty
    /// sections.
    table: toml::Table,
    locations: KeyLocations,
    profile: Option<String>,
    file: Option<PathBuf>,
    memory: Option<MemoryBudget>,
}

impl Layers {
    /// Checks that every key is known and has the type of its default, then merges the
    /// layers. The environment is a parameter so that tests need no process of their
    /// own.
    pub fn load(
        defaults: BuiltInFiles,
        tables: TableKeys,
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        Self::load_with_memory(defaults, tables, None, file, env)
    }

    /// The same with limits that fit the machine's memory, above the built-in files.
    pub fn load_with_memory(
        defaults: BuiltInFiles,
        tables: TableKeys,
        memory: Option<MemoryBudget>,
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let (schema, mut builder) = load_built_in(defaults, tables)?;
        if let Some(memory) = &memory {
            let document = Document::new("the memory budget", &memory.to_toml());
            builder = builder.add_source(to_config_source(&document));
        }

        let mut locations = KeyLocations::new();
        if let Some(path) = file {
            let document = Document::read(path)?;
            locations = document.check_keys(&schema, document.parse()?.get_ref())?;
            builder = builder.add_source(to_config_source(&document));
        }
        for variable in variables::parse_variables(&schema, env)? {
            builder = builder.set_override(&variable.key, variable.value)?;
            let item = format!("{}[", variable.key);
            locations.retain(|key, _| !key.starts_with(&item));
            locations.insert(variable.key, variable.location);
        }
        let merged = builder.build()?;
        Ok(Self {
            table: to_toml_table(&merged),
            merged,
            locations,
            profile: None,
            file: file.map(Path::to_owned),
            memory,
        })
    }

    /// The merged section at `path`, such as `limits` or `profiles.strict`. A value
    /// that its type rejects is reported with the key and where it was set.
    pub fn section<T: DeserializeOwned>(&self, path: &str) -> Result<T, ConfigError> {
        let top = path.split('.').next().unwrap_or_default();
        let found = self.table.get(top).cloned();
        let top_section = found.map(|section| (top.to_owned(), section));
        let text = render_toml(&top_section.into_iter().collect());
        let document = Document::new("the merged configuration", &text);
        let root = document.parse()?;
        let section = find_section(root, path)
            .ok_or_else(|| ConfigError::invalid(path, "no such section"))?;
        T::deserialize(ValueDeserializer::from(section.clone())).map_err(|error| {
            let key = error
                .span()
                .and_then(|span| find_key_at(path.to_owned(), &section, &span));
            self.invalid(key.as_deref().unwrap_or(path), error.message())
        })
    }

    /// The names of all profiles, sorted.
    pub fn profile_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.profile_tables().into_keys().collect();
        names.sort_unstable();
        names
    }

    /// These layers with `[profiles.<name>.detect.*]` and `[profiles.<name>.policy]`
    /// on top of `[detect.*]` and `[policy]`.
    pub fn with_profile(&self, name: &str) -> Result<Self, ConfigError> {
        let Some(profile) = self.profile_tables().remove(name) else {
            return Err(ConfigError::UnknownProfile {
                name: name.to_owned(),
                nearest: find_nearest(name, self.profile_names().iter().map(String::as_str))
                    .map(str::to_owned),
            });
        };
        let mut builder = Config::builder().add_source(self.merged.clone());
        for (key, value) in profile.into_table()? {
            if key != "mode" {
                builder = builder.set_override(key, value)?;
            }
        }
        let merged = builder.build()?;
        Ok(Self {
            table: to_toml_table(&merged),
            merged,
            locations: self.locations.clone(),
            profile: Some(name.to_owned()),
            file: self.file.clone(),
            memory: self.memory.clone(),
        })
    }

    /// The merged configuration, sorted by key.
    pub fn to_toml(&self) -> String {
        let mut table = self.table.clone();
        // It may have a password.
        if let Some(toml::Value::Table(cluster)) = table.get_mut("cluster")
            && let Some(toml::Value::String(redis)) = cluster.get_mut("redis")
        {
            *redis = RedisUrl::redact(redis);
        }
        render_toml(&table)
    }

    /// The limits that follow from the machine's memory. `None`: it is not known.
    pub fn memory(&self) -> Option<&MemoryBudget> {
        self.memory.as_ref()
    }

    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The error for a setting that makes no sense, with where a user set it.
    pub fn invalid(&self, key: &str, why: impl Display) -> ConfigError {
        let source_key = self.source_key(key);
        ConfigError::Invalid {
            location: self.location_of(&source_key).cloned(),
            key: source_key,
            why: why.to_string(),
        }
    }

    /// The error for two settings that contradict each other. It names the one that a
    /// user set.
    pub fn conflict(&self, key: &str, other: Option<&str>, why: impl Display) -> ConfigError {
        let is_set_by_user = |key: &&str| self.location_of(&self.source_key(key)).is_some();
        let set = [key].into_iter().chain(other).find(is_set_by_user);
        self.invalid(set.unwrap_or(key), why)
    }

    fn profile_tables(&self) -> Map<String, Value> {
        // A missing table means no profiles; `load` has rejected any other error.
        self.merged.get_table("profiles").unwrap_or_default()
    }

    /// The key that sets the value of `key`. With a profile that may be the profile's
    /// own.
    fn source_key(&self, key: &str) -> String {
        self.profile
            .as_ref()
            .map(|name| format!("profiles.{name}.{key}"))
            .filter(|profile_key| self.merged.get::<Value>(profile_key).is_ok())
            .unwrap_or_else(|| key.to_owned())
    }

    /// Where a user set `key`. For a key that a row of `[[tools]]` lacks, the location
    /// of the row.
    fn location_of(&self, key: &str) -> Option<&SourceLocation> {
        let mut searched = key;
        loop {
            if let Some(location) = self.locations.get(searched) {
                return Some(location);
            }
            let parent_end = searched.rfind(['.', '['])?;
            if !searched.contains('[') {
                return None;
            }
            searched = &searched[..parent_end];
        }
    }
}

/// Shows only the file, because settings hold secrets and debug output may be logged.
impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// The known keys, and the built-in layers.
fn load_built_in(
    files: BuiltInFiles,
    tables: TableKeys,
) -> Result<(ConfigSchema, ConfigBuilder<DefaultState>), ConfigError> {
    let mut documents: Vec<Document> = files
        .iter()
        .map(|(name, text)| Document::new(&format!("the built-in {name}"), text))
        .collect();
    let detectors = render_detector_defaults(&documents)?;
    documents.insert(0, Document::new("the detectors' defaults", &detectors));
    let roots = documents
        .iter()
        .map(Document::parse)
        .collect::<Result<Vec<_>, _>>()?;
    let parsed = || documents.iter().zip(roots.iter().map(Spanned::get_ref));
    let schema = ConfigSchema::from_defaults(parsed(), tables);
    let mut builder = Config::builder();
    for (document, root) in parsed() {
        // The built-in profiles have the same keys as a user's.
        document.check_keys(&schema, root)?;
        builder = builder.add_source(to_config_source(document));
    }
    Ok((schema, builder))
}

/// A section with [`DETECTOR_DEFAULTS`] for each detector.
fn render_detector_defaults(documents: &[Document]) -> Result<String, ConfigError> {
    let mut names = BTreeSet::new();
    for document in documents {
        let root = document.parse()?;
        let detect = root.get_ref().get("detect");
        if let Some(sections) = detect.and_then(|detect| detect.get_ref().as_table()) {
            names.extend(sections.keys().map(|name| name.get_ref().to_string()));
        }
    }
    Ok(names
        .iter()
        .map(|name| format!("[detect.{name}]\n{DETECTOR_DEFAULTS}"))
        .collect())
}

/// Cannot fail: the layers were read from TOML.
fn to_toml_table(merged: &Config) -> toml::Table {
    merged.clone().try_deserialize().unwrap_or_default()
}

fn render_toml(table: &toml::Table) -> String {
    toml::to_string_pretty(table).unwrap_or_default()
}

fn to_config_source(document: &Document) -> File<config::FileSourceString, FileFormat> {
    File::from_str(&document.text, FileFormat::Toml)
}

fn find_section<'i>(root: Spanned<DeTable<'i>>, path: &str) -> Option<Spanned<DeValue<'i>>> {
    let whole = root.span();
    let mut value = &Spanned::new(whole, DeValue::Table(root.into_inner()));
    for key in path.split('.') {
        value = value.get_ref().get(key)?;
    }
    Some(value.clone())
}

/// The innermost key whose value or name is at `span`. An array of tables has the same
/// start as its first table.
fn find_key_at(path: String, value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> Option<String> {
    let inside = match value.get_ref() {
        DeValue::Table(table) => table.iter().find_map(|(key, value)| {
            let at = join_key(&path, key.get_ref());
            if key.span() == *span {
                return Some(at);
            }
            find_key_at(at, value, span)
        }),
        DeValue::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| find_key_at(format!("{path}[{index}]"), item, span)),
        _ => None,
    };
    inside.or_else(|| (value.span() == *span).then_some(path))
}
