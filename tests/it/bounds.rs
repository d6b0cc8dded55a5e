//! `docs/limits.md` lists every bound, and each row is true.

use std::{collections::BTreeMap, fs, path::Path};

use toml::Value;
use unstuck::config::{DEFAULTS, Layers, TABLE_KEYS};

use crate::{harness::*, sabotage};

/// The rows of the table under a heading, each by its cells.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let section = page.split("\n## ").find(|part| part.starts_with(heading));
    let rows = section
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| "));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().replace('`', "")).collect()
    };
    // The head, and the line below it.
    rows.skip(2).map(cells).collect()
}

#[tokio::test]
async fn every_bound_is_documented_counted_and_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/limits.md")).unwrap();
    let settings = rows(&page, "Settings");
    let documented: BTreeMap<String, String> = settings
        .iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let layers = Layers::load(DEFAULTS, TABLE_KEYS, None, []).unwrap();
    let defaults: Value = toml::from_str(&layers.to_toml()).unwrap();
    let limits = defaults["limits"].as_table().unwrap().iter();
    let limits: BTreeMap<String, String> = limits
        .map(|(key, value)| (key.clone(), value.to_string()))
        .collect();
    assert_eq!(documented, limits);

    let server = Server::start().await;
    let metrics = get(format!("http://{}/metrics", server.http))
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    let mut source = String::new();
    for folder in ["src", "tests/it"] {
        sabotage::tests(&root.join(folder), &mut source);
    }
    for row in settings.iter().chain(&rows(&page, "Fixed")) {
        let [what, .., counter, test] = &row[..] else {
            panic!("{row:?}")
        };
        if !counter.starts_with("none") {
            let reason = format!("unstuck_rejected_total{{reason=\"{counter}\"}}");
            let is_series = |line: &str| line.starts_with(&reason) || line.starts_with(counter);
            assert!(metrics.lines().any(is_series), "{what}: {counter}");
        }
        assert!(source.contains(&format!("fn {test}(")), "{what}: {test}");
    }
}
