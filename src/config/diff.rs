//! What differs between two configurations.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::{Layers, join_key};

/// The keys whose values differ, sorted. What stands in `[[name]]` is one key.
pub fn changed_keys(before: &Layers, after: &Layers) -> Vec<String> {
    let (before, after) = (flatten(before), flatten(after));
    let keys = before.keys().chain(after.keys());
    let mut keys: Vec<&String> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &&String| before.get(*key) != after.get(*key);
    keys.into_iter().filter(differs).cloned().collect()
}

fn flatten(layers: &Layers) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    // What was written as TOML can be read as TOML.
    let table: Table = layers.to_toml().parse().unwrap_or_default();
    collect_values("", table, &mut values);
    values
}

fn collect_values(path: &str, table: Table, values: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        let at = join_key(path, &key);
        match value {
            Value::Table(table) => collect_values(&at, table, values),
            value => {
                values.insert(at, value);
            }
        }
    }
}
