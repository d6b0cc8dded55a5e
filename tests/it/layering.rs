//! Reads the source and fails where it leaves the plan of the house. Each
//! failure says what to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use unstuck::{
    config::{DEFAULTS, Layers, TABLE_KEYS},
    detect,
};

/// Which module may use which: the arrows of ARCHITECTURE.md. `cli` and `main`
/// may use all. A module that is not here has no place yet: give it one.
const MAY_USE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("pb", &[]),
    ("text", &["domain"]),
    ("telemetry", &["domain"]),
    ("facts", &["domain", "text"]),
    ("detect", &["domain"]),
    ("policy", &["domain"]),
    ("rules", &["domain", "text", "facts", "detect", "policy"]),
    ("auth", &["domain", "telemetry"]),
    ("store", &["domain", "telemetry"]),
    (
        "engine",
        &[
            "domain",
            "text",
            "facts",
            "detect",
            "policy",
            "rules",
            "telemetry",
        ],
    ),
    ("server", &["domain", "auth", "telemetry", "pb"]),
    ("feed", &["domain", "store", "server"]),
    ("notify", &["domain", "store", "feed"]),
    (
        "api",
        &[
            "domain",
            "auth",
            "engine",
            "store",
            "feed",
            "telemetry",
            "server",
            "pb",
        ],
    ),
    (
        "console",
        &[
            "domain",
            "auth",
            "engine",
            "store",
            "feed",
            "telemetry",
            "server",
            "api",
            "pb",
        ],
    ),
    // Each module owns its settings; `config` only gathers them.
    (
        "config",
        &[
            "domain",
            "auth",
            "text",
            "facts",
            "detect",
            "policy",
            "rules",
            "telemetry",
            "engine",
            "store",
            "notify",
            "server",
            "console",
        ],
    ),
    (
        "app",
        &[
            "domain",
            "auth",
            "telemetry",
            "store",
            "engine",
            "notify",
            "server",
            "api",
            "console",
            "config",
            "pb",
        ],
    ),
];

/// The modules that may read the clock.
const EDGES: &[&str] = &["api", "console", "app", "cli"];

/// Lines that a file may have of its own.
const LINES_MAX: usize = 500;

/// What makes a gRPC status.
const STATUS_CONSTRUCTORS: &[&str] = &[
    "new",
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
    "with_details",
    "with_error_details",
    "with_error_details_vec",
    "from_error",
];

/// The keys that `[detect.<name>]` must have. (`count` is a key of most.)
const DETECTOR_KEYS: &[(&str, &[&str])] = &[
    ("src/config/default.toml", &["soft", "hard"]),
    ("src/config/messages.toml", &["pattern", "correction"]),
];

/// A manual that a person reads in ten minutes.
const MANUAL_KEYS_MAX: usize = 170;

#[test]
fn modules_use_only_what_lies_below_them() {
    for file in sources() {
        let module = file.module();
        if ["cli", "main", "lib"].contains(&module) {
            continue;
        }
        let allowed = may_use(module).unwrap_or_else(|| {
            panic!(
                "{}: give `{module}` its line in MAY_USE of tests/it/layering.rs",
                file.path
            )
        });
        for used in file.uses() {
            assert!(
                used == module || allowed.contains(&used.as_str()),
                "{}: `{module}` may not use `{used}`, only {allowed:?}; \
                 turn the arrow round, or move what both need down into `domain`",
                file.path,
            );
        }
        let up = file.path.matches('/').count();
        assert!(
            !file.code.contains(&"super::".repeat(up)),
            "{}: name other modules by `crate::`, not by {}",
            file.path,
            "super::".repeat(up),
        );
    }
}

#[test]
fn each_modules_doc_says_what_it_uses() {
    let sources = sources();
    for (module, allowed) in MAY_USE {
        let root = sources
            .iter()
            .find(|file| file.path == format!("src/{module}.rs"));
        let Some(root) = root.filter(|_| *module != "pb") else {
            continue;
        };
        let said = root
            .text
            .lines()
            .find_map(|line| line.strip_prefix("//! Uses: "));
        let said = said.unwrap_or_else(|| {
            panic!(
                "{}: end the module's doc with a line `//! Uses: ….`",
                root.path
            )
        });
        let said: BTreeSet<&str> = words(said).filter(|word| may_use(word).is_some()).collect();
        for used in &said {
            assert!(
                allowed.contains(used),
                "{}: the doc says that it uses `{used}`, which it may not: {allowed:?}",
                root.path,
            );
        }
        let files = sources.iter().filter(|file| file.module() == *module);
        for used in files.flat_map(Source::uses) {
            assert!(
                used == *module || used == "pb" || said.contains(used.as_str()),
                "{}: it uses `{used}`; say so in `//! Uses: …`",
                root.path,
            );
        }
    }
}

#[test]
fn the_owner_of_the_map_never_awaits() {
    for file in sources().iter().filter(|file| file.module() == "engine") {
        for word in ["async", "await"] {
            assert!(
                !file.has_word(word),
                "{}: `{word}` in the engine; return owned values from a sync method and let \
                 the caller await, with no lock held",
                file.path,
            );
        }
    }
}

#[test]
fn no_file_is_longer_than_a_person_reads() {
    for file in sources() {
        let lines = file.own.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{}: {lines} lines of its own, at most {LINES_MAX}; move a part that has a name \
             into a file of its own",
            file.path,
        );
    }
}

/// Type names that several modules may define: each module has its own.
const NAMES_OF_MANY: &[&str] = &["Settings", "Args", "Limits", "Error", "Command"];

#[test]
fn a_type_name_has_one_definition() {
    let mut defined: BTreeMap<String, String> = BTreeMap::new();
    for file in sources() {
        for name in file.types() {
            if NAMES_OF_MANY.contains(&name.as_str()) {
                continue;
            }
            let other = defined.insert(name.clone(), file.path.clone());
            assert!(
                other.as_ref().is_none_or(|other| *other == file.path),
                "{}: `{name}` is also defined in {}; give one of them a name of its own",
                file.path,
                other.unwrap_or_default(),
            );
        }
    }
    assert!(
        defined.len() > 300,
        "types are no longer found: {defined:?}"
    );
}

#[test]
fn there_is_no_mod_rs() {
    for path in files(&root().join("src")) {
        assert!(
            path.file_name().is_some_and(|name| name != "mod.rs"),
            "{}: call it <module>.rs beside the folder",
            path.display(),
        );
    }
}

#[test]
fn one_file_picks_the_grpc_codes() {
    let constructors = STATUS_CONSTRUCTORS.iter();
    let constructors: Vec<String> = constructors
        .map(|name| format!("Status::{name}("))
        .collect();
    for file in sources() {
        if ["src/server/status.rs", "src/api/status.rs"].contains(&file.path.as_str())
            || ["cli", "pb"].contains(&file.module())
        {
            continue;
        }
        let names = constructors.iter().map(String::as_str).chain(["Code::"]);
        for name in names {
            assert!(
                !file.has(name),
                "{}: it names a gRPC code ({name}…); give the error a type of its own and map \
                 it to a code in src/api/status.rs or src/server/status.rs",
                file.path,
            );
        }
    }
}

#[test]
fn time_is_a_parameter() {
    for file in sources() {
        assert!(
            file.path == "src/domain/clock.rs" || !file.has("SystemTime::now"),
            "{}: read the clock by `domain::clock::now`",
            file.path,
        );
        let reads_clock = file.has("clock::now") || file.has("clock::{now");
        assert!(
            EDGES.contains(&file.module()) || !reads_clock,
            "{}: it reads the clock; take the time as an argument from the edge ({EDGES:?})",
            file.path,
        );
    }
}

#[test]
fn nothing_panics_on_purpose() {
    for file in sources() {
        for call in [
            ".unwrap()",
            ".expect(",
            "unreachable!(",
            "todo!(",
            "unimplemented!(",
        ] {
            assert!(
                !file.code.contains(call),
                "{}: `{call}` outside tests; return an error, or write it so that the case \
                 cannot arise",
                file.path,
            );
        }
        assert!(
            !file.has_word("unsafe"),
            "{}: no unsafe code here",
            file.path
        );
    }
}

#[test]
fn every_detector_has_all_its_parts() {
    for name in detect::NAMES {
        for (file, what) in [
            (
                format!("src/detect/{name}.rs"),
                "the detector, with its unit tests",
            ),
            (
                format!("tests/it/traces/{name}.ndjson"),
                "a trace: see tests/it/traces.rs",
            ),
            (
                format!("docs/detectors/{name}.md"),
                "its page, like the others there",
            ),
        ] {
            assert!(root().join(&file).is_file(), "{name}: write {file}: {what}");
        }
        let section = format!("detect.{name}");
        for (path, wanted) in DETECTOR_KEYS {
            let file = read(path);
            let keys: BTreeSet<_> = keys(&file)
                .filter(|key| key.section == section)
                .map(|key| key.name)
                .collect();
            for key in *wanted {
                assert!(
                    keys.contains(key),
                    "{name}: write `{key}` in [{section}] of {path}"
                );
            }
        }
    }
}

#[test]
fn the_manual_of_settings_stays_short() {
    let defaults = read("src/config/default.toml");
    let keys = keys(&defaults).count();
    assert!(
        keys <= MANUAL_KEYS_MAX,
        "src/config/default.toml has {keys} keys, at most {MANUAL_KEYS_MAX}: make a bound that \
         is never tuned a named constant"
    );
}

/// The section `Settings` of a page gives `soft`, `hard`, a `terminate_after` other
/// than 0, and in a list every other key of its detector, as in TOML.
/// `docs/detectors/README.md` explains the common keys.
#[test]
fn every_detectors_page_gives_the_defaults() {
    const COMMON_KEYS: &[&str] = &["enabled", "soft", "hard", "terminate_after"];
    let layers = Layers::load(DEFAULTS, TABLE_KEYS, None, []).unwrap();
    let defaults: BTreeMap<String, toml::Table> = layers.section("detect").unwrap();
    // Without the switches of the profile `classic`, which its file explains.
    let manual = read("src/config/default.toml");
    for name in detect::NAMES {
        let path = format!("docs/detectors/{name}.md");
        let page = read(&path);
        let settings = page
            .split("\n## ")
            .find(|part| part.starts_with("Settings\n"));
        let settings = settings.unwrap_or_default();
        let assignment = |key: &str| match &defaults[*name][key] {
            // A list is too long for the page.
            toml::Value::Array(_) => format!("`{key}`"),
            value => format!("`{key} = {value}`"),
        };
        let section = format!("detect.{name}");
        let own_keys: BTreeSet<_> = keys(&manual)
            .filter(|key| key.section == section && !COMMON_KEYS.contains(&key.name))
            .map(|key| key.name)
            .collect();
        for key in &own_keys {
            let item = format!("\n- {}: ", assignment(key));
            assert!(settings.contains(&item), "{path}: its settings need {item}");
        }
        for item in settings.lines().filter_map(|line| line.strip_prefix("- `")) {
            let key = item.split([' ', '`']).next().unwrap_or_default();
            assert!(own_keys.contains(key), "{path}: there is no own key {key}");
        }
        for key in ["soft", "hard", "terminate_after"] {
            let default = assignment(key);
            assert!(
                default == "`terminate_after = 0`" || settings.contains(&default),
                "{path}: its settings need {default}"
            );
        }
    }
}

#[test]
fn every_detector_has_a_row_in_the_readme() {
    let readme = read("README.md");
    for name in detect::NAMES {
        let row = |line: &str| line.starts_with('|') && line.contains(&format!("`{name}`"));
        assert!(
            readme.lines().any(row),
            "README.md: give `{name}` a row in the table of detectors",
        );
    }
}

#[test]
fn every_key_says_what_it_means() {
    let defaults = read("src/config/default.toml");
    let base: BTreeSet<_> = keys(&defaults).map(|key| (key.section, key.name)).collect();
    for key in keys(&defaults) {
        // A profile's settings are explained where their defaults stand.
        let of_base = key
            .section
            .split_once('.')
            .and_then(|(_, rest)| rest.split_once('.'));
        let explained = of_base.is_some_and(|(_, section)| base.contains(&(section, key.name)));
        assert!(
            key.commented || explained,
            "src/config/default.toml: say above `{}` in [{}] what it means and its unit, or \
             name it in backticks in a comment above",
            key.name,
            key.section,
        );
    }
}

fn may_use(module: &str) -> Option<&'static [&'static str]> {
    let mut all = MAY_USE.iter();
    all.find(|(name, _)| *name == module).map(|(_, uses)| *uses)
}

/// A Rust file of the product.
struct Source {
    /// From the root, as `src/api/status.rs`.
    path: String,
    text: String,
    /// Without its tests.
    own: String,
    /// Without its tests and comments.
    code: String,
}

impl Source {
    /// The module that it belongs to, of those right below the crate.
    fn module(&self) -> &str {
        let path = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        path.split_once('/').map_or(path, |(module, _)| module)
    }

    /// The modules that it names by `crate::a` or in `crate::{a, b::c}`.
    fn uses(&self) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for (at, _) in self.code.match_indices("crate::") {
            let path = &self.code[at + "crate::".len()..];
            match path.strip_prefix('{') {
                Some(group) => used.extend(heads(group)),
                None => used.extend(words(path).next().map(str::to_owned)),
            }
        }
        used
    }

    /// The names of the types that it defines, without associated types.
    fn types(&self) -> Vec<String> {
        let defined = |line: &str| {
            let item = line.trim_start();
            let is_nested = item.len() < line.len();
            let item = match item.strip_prefix("pub") {
                Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
                Some(rest) => rest.trim_start(),
                None => item,
            };
            let (keyword, rest) = item.split_once(' ')?;
            let is_type = ["struct", "enum", "trait", "union"].contains(&keyword)
                || keyword == "type" && !is_nested;
            is_type.then(|| words(rest).next().map(str::to_owned))?
        };
        self.code.lines().filter_map(defined).collect()
    }

    /// The code has this text, not as the end of a longer name.
    fn has(&self, text: &str) -> bool {
        self.code.match_indices(text).any(|(at, _)| {
            let before = self.code[..at].chars().next_back();
            !before.is_some_and(is_of_name)
        })
    }

    fn has_word(&self, word: &str) -> bool {
        words(&self.code).any(|found| found == word)
    }
}

/// The first name of each path in `a, b::{c, d}, e}`.
fn heads(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut top = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ if depth == 0 => top.push(c),
            _ => {}
        }
    }
    let paths = top.split(',');
    paths
        .filter_map(|path| words(path).next().map(str::to_owned))
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_of_name(c))
        .filter(|word| !word.is_empty())
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn sources() -> Vec<Source> {
    let is_test = |path: &PathBuf| path.ends_with("tests.rs") || path.ends_with("testing.rs");
    let paths = files(&root().join("src")).into_iter();
    let rust = paths.filter(|path| path.extension().is_some_and(|e| e == "rs") && !is_test(path));
    rust.map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        let own = without_tests(&text);
        let path = path.strip_prefix(root()).unwrap();
        Source {
            path: path.to_str().unwrap().to_owned(),
            code: without_comments(&own),
            text,
            own,
        }
    })
    .collect()
}

/// Leaves out each item behind `#[cfg(test)]`: up to its closing brace, which
/// rustfmt puts under its first letter, or the one line of a `mod tests;`.
fn without_tests(text: &str) -> String {
    let mut own = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(indent) = line.strip_suffix("#[cfg(test)]") else {
            own.push_str(line);
            own.push('\n');
            continue;
        };
        let end = format!("{indent}}}");
        if lines.next().is_some_and(|item| !item.ends_with(';')) {
            let _ = lines.by_ref().find(|line| *line == end);
        }
    }
    own
}

fn without_comments(text: &str) -> String {
    // The `//` of an address in a string begins no comment.
    let code = |line: &'_ str| -> String {
        let comment = line
            .match_indices("//")
            .find(|(at, _)| !line[..*at].ends_with(':'));
        comment.map_or(line, |(at, _)| &line[..at]).to_owned() + "\n"
    };
    text.lines().map(code).collect()
}

/// A key of default.toml.
struct Key<'a> {
    section: &'a str,
    name: &'a str,
    /// A comment stands right above it, or names it in backticks somewhere
    /// above.
    commented: bool,
}

fn keys(toml: &str) -> impl Iterator<Item = Key<'_>> {
    let mut section = "";
    let mut above = "";
    let mut comments = String::new();
    toml.lines().filter_map(move |line| {
        let before = std::mem::replace(&mut above, line);
        if line.starts_with('#') {
            comments.push_str(line);
        } else if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
        } else if let Some((name, _)) = line.split_once(" = ") {
            return Some(Key {
                section,
                name,
                commented: before.starts_with('#') || comments.contains(&format!("`{name}`")),
            });
        }
        None
    })
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files in a folder and those in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}
