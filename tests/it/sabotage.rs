//! Every entry of `scripts/sabotage.toml` is up to date: it matches its file exactly once,
//! and the test that must fail for it exists.

use std::{fs, path::Path};

use serde::Deserialize;

#[derive(Deserialize)]
struct Sabotage {
    breakage: Vec<Breakage>,
}

#[derive(Deserialize)]
struct Breakage {
    name: String,
    file: String,
    old: String,
    new: String,
    test: String,
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Appends all Rust source files of a folder.
pub fn tests(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_breakage_matches_its_file_once_and_has_its_test() {
    let list: Sabotage = toml::from_str(&read("scripts/sabotage.toml")).unwrap();
    assert!(list.breakage.len() >= 15, "{}", list.breakage.len());
    let mut source = String::new();
    for folder in ["src", "tests/it", "tests/simulation/src"] {
        tests(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            &mut source,
        );
    }
    for Breakage {
        name,
        file,
        old,
        new,
        test,
    } in list.breakage
    {
        let matches = read(&file).matches(&old).count();
        assert_eq!(matches, 1, "{name}: {old:?} must occur once in {file}");
        assert_ne!(old, new, "{name}");
        let function = test.rsplit("::").next().unwrap();
        let exists = function == "tests" || source.contains(&format!("fn {function}("));
        assert!(exists, "{name}: test {test} does not exist");
    }
}
