//! Rules about the source: which module may use which, file sizes, type names, panics,
//! gRPC codes, the clock, and the parts of a detector. Each failure says what to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use unstuck::{
    config::{DEFAULTS, Layers, TABLE_KEYS},
    detect, domain,
};

/// Which module may use which: the table of modules in ARCHITECTURE.md. `cli` and `main` may use
/// all. Every other module needs a row here.
const MAY_USE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("pb", &[]),
    ("text", &["domain"]),
    ("telemetry", &["domain"]),
    ("tools", &["domain", "text"]),
    ("facts", &["domain", "text", "tools"]),
    ("detect", &["domain"]),
    ("policy", &["domain"]),
    ("rules", &["domain", "text", "facts", "detect", "policy"]),
    ("auth", &["domain", "telemetry"]),
    ("atomic_file", &[]),
    ("secret", &["atomic_file", "domain", "text"]),
    ("store", &["domain", "telemetry"]),
    (
        "engine",
        &[
            "domain",
            "text",
            "tools",
            "facts",
            "detect",
            "policy",
            "rules",
            "telemetry",
        ],
    ),
    ("server", &["domain", "auth", "telemetry", "pb"]),
    (
        "cluster",
        &["domain", "secret", "engine", "store", "telemetry"],
    ),
    ("feed", &["domain", "store", "server", "cluster"]),
    (
        "notify",
        &["atomic_file", "domain", "store", "cluster", "feed"],
    ),
    (
        "api",
        &[
            "domain",
            "auth",
            "engine",
            "store",
            "cluster",
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
            "ingest",
            "engine",
            "store",
            "cluster",
            "feed",
            "telemetry",
            "server",
            "api",
            "pb",
        ],
    ),
    ("ingest", &["domain", "text"]),
    (
        "hooks",
        &[
            "domain",
            "auth",
            "ingest",
            "telemetry",
            "server",
            "api",
            "console",
        ],
    ),
    // Each module owns its settings; `config` only collects them.
    (
        "config",
        &[
            "domain",
            "auth",
            "text",
            "tools",
            "facts",
            "detect",
            "policy",
            "rules",
            "telemetry",
            "engine",
            "store",
            "cluster",
            "notify",
            "server",
            "console",
            "hooks",
        ],
    ),
    (
        "app",
        &[
            "domain",
            "auth",
            "secret",
            "telemetry",
            "store",
            "engine",
            "cluster",
            "notify",
            "server",
            "api",
            "console",
            "hooks",
            "config",
            "pb",
        ],
    ),
];

/// The modules that may read the clock.
const CLOCK_READERS: &[&str] = &["api", "console", "app", "cli"];

/// The most lines of a file, without its tests.
const LINES_MAX: usize = 500;

/// The functions that create a gRPC status.
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

/// The keys that `[detect.<name>]` must have in each file.
const DETECTOR_KEYS: &[(&str, &[&str])] = &[
    ("src/config/default.toml", &["soft", "hard"]),
    ("src/config/messages.toml", &["pattern", "correction"]),
];

/// The most keys of default.toml, so that it can be read in ten minutes.
const MANUAL_KEYS_MAX: usize = 200;

/// The most lines of README.md, so that it can be read in one sitting.
const README_LINES_MAX: usize = 250;

/// The most words of all Markdown files together.
const MARKDOWN_WORDS_MAX: usize = 40_500;

/// The most files that a reader follows an event through.
const EVENT_PATH_FILES_MAX: usize = 25;

/// The most words that a reader has to learn from the glossary.
const GLOSSARY_WORDS_MAX: usize = 25;

#[test]
fn modules_use_only_the_modules_below_them() {
    for file in sources() {
        let module = file.module();
        if ["cli", "main", "lib"].contains(&module) {
            continue;
        }
        let allowed = may_use(module).unwrap_or_else(|| {
            panic!(
                "{}: add a row for `{module}` to MAY_USE in tests/it/layering.rs",
                file.path
            )
        });
        for used in file.uses() {
            assert!(
                used == module || allowed.contains(&used.as_str()),
                "{}: `{module}` may not use `{used}`, only {allowed:?}; \
                 reverse the dependency, or move what both need to `domain`",
                file.path,
            );
        }
        let path_to_crate = "super::".repeat(file.path.matches('/').count());
        assert!(
            !file.code.contains(&path_to_crate),
            "{}: name other modules by `crate::`, not by {path_to_crate}",
            file.path,
        );
    }
}

#[test]
fn each_module_doc_lists_the_modules_it_uses() {
    let sources = sources();
    for (module, allowed) in MAY_USE {
        let root = sources
            .iter()
            .find(|file| file.path == format!("src/{module}.rs"));
        let Some(root) = root.filter(|_| *module != "pb") else {
            continue;
        };
        let line = root
            .text
            .lines()
            .find_map(|line| line.strip_prefix("//! Uses: "))
            .unwrap_or_else(|| {
                panic!(
                    "{}: end the module's doc with a line `//! Uses: ….`",
                    root.path
                )
            });
        let listed: BTreeSet<&str> = words(line).filter(|word| may_use(word).is_some()).collect();
        for used in &listed {
            assert!(
                allowed.contains(used),
                "{}: the doc lists `{used}`, which is not allowed, only {allowed:?}",
                root.path,
            );
        }
        let files = sources.iter().filter(|file| file.module() == *module);
        for used in files.flat_map(Source::uses) {
            assert!(
                used == *module || used == "pb" || listed.contains(used.as_str()),
                "{}: list `{used}` in `//! Uses: …`",
                root.path,
            );
        }
    }
}

#[test]
fn the_engine_never_awaits() {
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
fn no_file_exceeds_the_line_limit() {
    for file in sources() {
        let lines = file.own.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{}: {lines} lines without tests, at most {LINES_MAX}; move one idea into a separate \
             file",
            file.path,
        );
    }
}

/// A function above this length has a comment at each of its steps.
const UNCOMMENTED_FN_LINES_MAX: usize = 45;

/// The most lines of such a function without a comment.
const COMMENT_GAP_MAX: usize = 35;

#[test]
fn long_functions_have_a_comment_at_each_step() {
    let mut long_functions = 0;
    for file in sources() {
        let lines: Vec<&str> = file.own.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let indent = &line[..line.len() - line.trim_start().len()];
            let is_function = line.contains("fn ") && !line.trim_start().starts_with("//");
            if !is_function || line.ends_with(['}', ';']) {
                continue;
            }
            // To the closing brace with the same indentation, as rustfmt writes it.
            let end = lines[start..]
                .iter()
                .position(|line| line.strip_prefix(indent) == Some("}"));
            let function = &lines[start..=start + end.unwrap_or_default()];
            if function.len() <= UNCOMMENTED_FN_LINES_MAX {
                continue;
            }
            long_functions += 1;
            let gaps = function.split(|line| without_comments(line).trim_end() != *line);
            let gap = gaps.map(<[&str]>::len).max().unwrap_or_default();
            assert!(
                gap <= COMMENT_GAP_MAX,
                "{}:{}: {gap} lines without a comment in a function of {}, at most \
                 {COMMENT_GAP_MAX}; write a comment at each step, or split it",
                file.path,
                start + 1,
                function.len(),
            );
        }
    }
    assert!(
        long_functions > 10,
        "the search for long functions finds too few: {long_functions}"
    );
}

/// Type names that several modules may define.
const SHARED_TYPE_NAMES: &[&str] = &["Settings", "Args", "Limits", "Error", "Command"];

/// In `src`, without its tests. The other crates and `tests/` may use any name.
#[test]
fn a_type_name_has_one_definition() {
    let mut defined: BTreeMap<String, String> = BTreeMap::new();
    for file in sources() {
        for name in file.types() {
            if SHARED_TYPE_NAMES.contains(&name.as_str()) {
                continue;
            }
            let other = defined.insert(name.clone(), file.path.clone());
            assert!(
                other.as_ref().is_none_or(|other| *other == file.path),
                "{}: `{name}` is also defined in {}; rename one of them",
                file.path,
                other.unwrap_or_default(),
            );
        }
    }
    assert!(
        defined.len() > 300,
        "the search for types finds too few: {defined:?}"
    );
}

/// The most files with an `impl` block of these types, so that a reader finds a method of them.
const IMPL_FILES_MAX: &[(&str, usize)] = &[("Engine", 4), ("Session", 3)];

#[test]
fn the_methods_of_large_types_are_in_few_files() {
    for (name, files_max) in IMPL_FILES_MAX {
        let blocks = [format!("impl {name} {{"), format!("impl {name}<")];
        let has_methods = |file: &&Source| blocks.iter().any(|block| file.has(block));
        let sources = sources();
        let files: Vec<&str> = sources
            .iter()
            .filter(has_methods)
            .map(|file| file.path.as_str())
            .collect();
        assert!(
            (1..=*files_max).contains(&files.len()),
            "`impl {name}` is in {files:?}, at most {files_max} files; write a function or a type \
             over `&{name}` instead",
        );
    }
}

/// Words that hide the subject of a sentence, with what to write instead.
const VAGUE_WORDS: &[(&str, &str)] = &[
    ("nobody", "no caller, no client, no person"),
    ("somebody", "another user, another program"),
    ("everybody", "all users"),
    ("whoever", "the caller, the client"),
    ("anew", "again"),
];

#[test]
fn comments_name_their_subject() {
    for file in sources() {
        for (number, line) in (1..).zip(file.own.lines()) {
            let Some((_, comment)) = line.split_once("//") else {
                continue;
            };
            let comment = comment.to_lowercase();
            for (word, instead) in VAGUE_WORDS {
                assert!(
                    words(&comment).all(|found| found != *word),
                    "{}:{number}: \"{word}\" in a comment; name the subject: {instead}",
                    file.path,
                );
            }
        }
    }
}

#[test]
fn there_is_no_mod_rs() {
    for path in files(&root().join("src")) {
        assert!(
            path.file_name().is_some_and(|name| name != "mod.rs"),
            "{}: name it <module>.rs, beside the directory",
            path.display(),
        );
    }
}

#[test]
fn grpc_codes_are_chosen_in_the_status_files() {
    let constructors: Vec<String> = STATUS_CONSTRUCTORS
        .iter()
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
                "{}: it chooses a gRPC code ({name}…); define an error type and map it to a code \
                 in src/api/status.rs or src/server/status.rs",
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
            "{}: read the clock with `domain::clock::now`",
            file.path,
        );
        let reads_clock = file.has("clock::now") || file.has("clock::{now");
        assert!(
            CLOCK_READERS.contains(&file.module()) || !reads_clock,
            "{}: it reads the clock, which only {CLOCK_READERS:?} may; take the time as a parameter",
            file.path,
        );
    }
}

#[test]
fn there_is_no_unwrap_panic_or_unsafe_outside_tests() {
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
                "{}: `{call}` outside tests; return an error, or make the case impossible",
                file.path,
            );
        }
        assert!(
            !file.has_word("unsafe"),
            "{}: unsafe code is not allowed",
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
        for field in event_fields(&read(&format!("src/detect/{name}.rs"))) {
            assert!(
                domain::missing_field_name(field).is_some(),
                "{name}: add `{field}` to `missing_field_name` in src/domain/finding.rs"
            );
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

/// The fields of an event that a source names in quotes.
fn event_fields(source: &str) -> impl Iterator<Item = &str> {
    let strings = source.split('"').skip(1).step_by(2);
    strings.filter(|text| text.starts_with("tool_call."))
}

#[test]
fn default_toml_has_a_limited_number_of_keys() {
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
fn every_detector_page_lists_the_defaults() {
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
            .find(|part| part.starts_with("Settings\n"))
            .unwrap_or_default();
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
fn every_detector_has_a_row_in_each_readme() {
    for path in ["README.md", "docs/detectors/README.md"] {
        let readme = read(path);
        for name in detect::NAMES {
            let row = |line: &str| line.starts_with('|') && line.contains(&format!("`{name}`"));
            assert!(
                readme.lines().any(row),
                "{path}: give `{name}` a row in the table of detectors",
            );
        }
    }
}

#[test]
fn the_documentation_has_a_limited_length() {
    let lines = read("README.md").lines().count();
    assert!(
        lines <= README_LINES_MAX,
        "README.md has {lines} lines, at most {README_LINES_MAX}: move details to docs/"
    );

    let words: usize = markdown_files()
        .iter()
        .map(|path| fs::read_to_string(path).unwrap().split_whitespace().count())
        .sum();
    assert!(
        (10_000..=MARKDOWN_WORDS_MAX).contains(&words),
        "the Markdown files have {words} words, at most {MARKDOWN_WORDS_MAX}: shorten them"
    );

    let architecture = read("ARCHITECTURE.md");
    let (_, glossary) = architecture.split_once("\n## Glossary\n").unwrap();
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    let entries: usize = rows
        .skip(2)
        .map(|row| row.split('|').nth(1).unwrap().split(',').count())
        .sum();
    assert!(
        (1..=GLOSSARY_WORDS_MAX).contains(&entries),
        "the glossary of ARCHITECTURE.md has {entries} words, at most {GLOSSARY_WORDS_MAX}: \
         merge or delete one"
    );
}

#[test]
fn the_path_of_an_event_names_a_limited_number_of_files() {
    let architecture = read("ARCHITECTURE.md");
    let section = architecture.split("\n## ").nth(1).unwrap();
    let files = section.lines().filter_map(|line| {
        let (number, rest) = line.split_once(". `src/")?;
        let (name, _) = rest.split_once('`')?;
        number.parse::<usize>().is_ok().then_some(name)
    });
    let files: Vec<&str> = files.collect();
    assert!(
        (20..=EVENT_PATH_FILES_MAX).contains(&files.len()),
        "ARCHITECTURE.md leads an event through {} files, at most {EVENT_PATH_FILES_MAX}",
        files.len(),
    );
    for file in files {
        assert!(
            root().join("src").join(file).is_file(),
            "ARCHITECTURE.md: there is no src/{file} on the path of an event"
        );
    }
}

#[test]
fn every_key_of_default_toml_has_a_comment() {
    let defaults = read("src/config/default.toml");
    for key in keys(&defaults) {
        assert!(
            key.has_comment,
            "src/config/default.toml: write a comment above `{}` in [{}] with its meaning and \
             unit, or name it in backticks in an earlier comment",
            key.name, key.section,
        );
    }
}

fn may_use(module: &str) -> Option<&'static [&'static str]> {
    let mut all = MAY_USE.iter();
    all.find(|(name, _)| *name == module).map(|(_, uses)| *uses)
}

/// A Rust file of the crate.
struct Source {
    /// Relative to the repository, as `src/api/status.rs`.
    path: String,
    text: String,
    /// Without its tests.
    own: String,
    /// Without its tests and comments.
    code: String,
}

impl Source {
    /// The top-level module that it belongs to.
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
                Some(group) => used.extend(first_names(group)),
                None => used.extend(words(path).next().map(str::to_owned)),
            }
        }
        used
    }

    /// The names of the types that it defines, without associated types.
    fn types(&self) -> Vec<String> {
        let defined_type = |line: &str| {
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
        self.code.lines().filter_map(defined_type).collect()
    }

    /// Whether the code has this text, not as the end of a longer name.
    fn has(&self, text: &str) -> bool {
        self.code.match_indices(text).any(|(at, _)| {
            let before = self.code[..at].chars().next_back();
            !before.is_some_and(is_name_char)
        })
    }

    fn has_word(&self, word: &str) -> bool {
        words(&self.code).any(|found| found == word)
    }
}

/// The first name of each path in `a, b::{c, d}, e}`.
fn first_names(group: &str) -> Vec<String> {
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
    text.split(|c| !is_name_char(c))
        .filter(|word| !word.is_empty())
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn sources() -> Vec<Source> {
    let is_test = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.ends_with("tests.rs") || name.ends_with("/testing.rs")
    };
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

/// Removes each item after `#[cfg(test)]`: to the closing brace with the same indentation
/// (rustfmt), or the one line of a `mod tests;`.
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
    // The `//` of a URL in a string is not a comment.
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
    /// There is a comment right above it, or an earlier one names it in backticks.
    has_comment: bool,
}

fn keys(toml: &str) -> impl Iterator<Item = Key<'_>> {
    let mut section = "";
    let mut previous_line = "";
    let mut comments = String::new();
    toml.lines().filter_map(move |line| {
        let previous = std::mem::replace(&mut previous_line, line);
        if line.starts_with('#') {
            comments.push_str(line);
        } else if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
        } else if let Some((name, _)) = line.split_once(" = ") {
            return Some(Key {
                section,
                name,
                has_comment: previous.starts_with('#') || comments.contains(&format!("`{name}`")),
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

/// The Markdown files of the repository, without those of npm packages.
fn markdown_files() -> Vec<PathBuf> {
    let directories = [
        "benches", "deploy", "docs", "examples", "proto", "scripts", "src", "tests",
    ];
    let mut found: Vec<PathBuf> = directories
        .iter()
        .flat_map(|directory| files(&root().join(directory)))
        .collect();
    // The clients' directories also hold what their package managers install.
    for directory in ["", "clients/python", "clients/rust", "clients/typescript"] {
        let entries = fs::read_dir(root().join(directory)).unwrap();
        found.extend(entries.map(|entry| entry.unwrap().path()));
    }
    found.retain(|path| {
        let is_markdown = path.extension().is_some_and(|extension| extension == "md");
        is_markdown && path.iter().all(|part| part != "node_modules")
    });
    found
}

/// All files in a directory and its subdirectories, sorted.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
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
