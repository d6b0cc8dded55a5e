//! The difference between two configurations.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::{Layers, join_key};

/// The keys whose values differ, sorted. All rows of `[[name]]` together are one key.
pub fn changed_keys(before: &Layers, after: &Layers) -> Vec<String> {
    let (values_before, values_after) = (flatten(before), flatten(after));
    let keys: BTreeSet<&String> = values_before.keys().chain(values_after.keys()).collect();
    keys.into_iter()
        .filter(|key| values_before.get(*key) != values_after.get(*key))
        .cloned()
        .collect()
}

fn flatten(layers: &Layers) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    // Cannot fail: the text was written as TOML.
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
