//! `docs/limits.md` lists every bound, and each row is true.

use std::{collections::BTreeMap, fs, path::Path};

use toml::Value;
use unstuck::config::{DEFAULTS, Layers, MemoryBudget, TABLE_KEYS};

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

/// A memory limit as Kubernetes, Compose or systemd write it.
fn parse_memory(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim_end_matches(['i', 'B', 'b']) {
        "M" | "m" => 1024 * 1024,
        "G" | "g" => 1024 * 1024 * 1024,
        unit => panic!("{text}: {unit}"),
    };
    digits.parse::<u64>().unwrap() * unit
}

/// The memory limits in a file of `deploy/`.
fn memory_limits(text: &str) -> Vec<u64> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let limits = lines.iter().enumerate().filter_map(|(n, line)| {
        let is_kubernetes_limit = n > 0 && lines[n - 1] == "limits:";
        line.strip_prefix("MemoryMax=")
            .or_else(|| line.strip_prefix("mem_limit: "))
            .or_else(|| {
                line.strip_prefix("memory: ")
                    .filter(|_| is_kubernetes_limit)
            })
    });
    limits.map(parse_memory).collect()
}

#[test]
fn every_memory_limit_in_deploy_holds_the_limits_that_follow_from_it() {
    fn files(folder: &Path, into: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, into);
            } else if let Ok(text) = fs::read_to_string(&path) {
                into.push((path.display().to_string(), text));
            }
        }
    }
    let mut deployed = Vec::new();
    files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy"),
        &mut deployed,
    );
    let mut count = 0;
    for (path, text) in deployed {
        // A value that is set would not follow from the memory.
        assert!(!text.contains("state_bytes_max ="), "{path}");
        for memory_bytes in memory_limits(&text) {
            let needed = MemoryBudget { memory_bytes }.total_bytes();
            assert!(needed <= memory_bytes, "{path}: {needed} of {memory_bytes}");
            count += 1;
        }
    }
    assert!(count >= 3, "{count} memory limits");
}
