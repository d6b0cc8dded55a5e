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
    #[serde(rename = "in")]
    target: String,
    test: String,
}

impl Breakage {
    /// Whether the test is in the file that its target and its path name. A path that ends
    /// with `tests` means all tests of that module.
    fn test_exists(&self) -> bool {
        let (module, function) = self.test.rsplit_once("::").unwrap_or(("", &self.test));
        let files = match self.target.as_str() {
            "lib" => {
                let module = module.trim_end_matches("::tests").replace("::", "/");
                vec![format!("src/{module}.rs"), format!("src/{module}/tests.rs")]
            }
            "it" => vec![format!("tests/it/{module}.rs")],
            "simulation" => vec!["tests/simulation/src/lib.rs".to_owned()],
            "console" => vec![format!("tests/console/{module}.test.js")],
            target => panic!("{}: unknown target {target:?}", self.name),
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        files.iter().any(|file| {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            if function == "tests" {
                text.contains("mod tests")
            } else {
                text.contains(&format!("fn {function}("))
                    || text.contains(&format!("test(\"{function}\""))
            }
        })
    }
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
    assert!(list.breakage.len() >= 50, "{}", list.breakage.len());
    for breakage in list.breakage {
        let Breakage {
            name,
            file,
            old,
            new,
            test,
            ..
        } = &breakage;
        let matches = read(file).matches(old).count();
        assert_eq!(matches, 1, "{name}: {old:?} must occur once in {file}");
        assert_ne!(old, new, "{name}");
        assert!(breakage.test_exists(), "{name}: test {test} does not exist");
    }
}
