use std::{fs, path::Path};

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{BuiltInFiles, CONFIG_BYTES_MAX, ConfigError, Layers, TableKeys};

const DEFAULTS: BuiltInFiles = &[("default.toml", DEFAULT_TOML)];

const DEFAULT_TOML: &str = r#"
tools = []
labels = {}

[server]
grpc = "127.0.0.1:50551"

[auth]
# all commented out

[policy]
alpha = 0.3
cooldown = 5

[detect.exact_repeat]
enabled = true
count = 3
soft = "warn"
exempt = ["sleep"]

[detect.cycle]
laps = 3
rungs = [1, 2]

[profiles.default]
mode = "enforce"

[profiles.strict]
mode = "enforce"
[profiles.strict.detect.exact_repeat]
count = 2
"#;

const TABLES: TableKeys = &[("tools", &["name", "class", "ignore_args"])];

type Env<'a> = &'a [(&'a str, &'a str)];

fn layers(file: &[u8], env: Env) -> Result<Layers, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unstuck.toml");
    fs::write(&path, file).unwrap();
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Layers::load(DEFAULTS, TABLES, Some(&path), env).map_err(|error| said(&error, dir.path()))
}

/// The message, with the test's directory taken out of it.
fn said(error: &ConfigError, dir: &Path) -> String {
    error
        .to_string()
        .replace(&format!("{}/", dir.display()), "")
}

#[track_caller]
fn check(file: &str, env: Env, key: &str, expected: &Json) {
    let layers = layers(file.as_bytes(), env).unwrap();
    assert_eq!(layers.section::<Json>(key).unwrap(), *expected);
}

#[track_caller]
fn check_refused(file: &str, env: Env, message: &str) {
    assert_eq!(layers(file.as_bytes(), env).unwrap_err(), message);
}

/// Lines in pairs: a file, and what is said of it.
#[track_caller]
fn check_file_refused(cases: &[&str]) {
    for case in cases.chunks(2) {
        check_refused(case[0], &[], case[1]);
    }
}

/// Lines in pairs: a variable, and what is said of it.
#[track_caller]
fn check_env_refused(cases: &[&str]) {
    for case in cases.chunks(2) {
        check_refused("", &[case[0].split_once('=').unwrap()], case[1]);
    }
}

/// Lines in pairs: a variable, and the key with its value in JSON.
#[track_caller]
fn check_env(cases: &[&str]) {
    for case in cases.chunks(2) {
        let (key, value) = case[1].split_once(" = ").unwrap();
        let variable = case[0].split_once('=').unwrap();
        check("", &[variable], key, &value.parse().unwrap());
    }
}

#[test]
fn the_file_overlays_the_defaults_and_the_environment_the_file() {
    const COUNT: &str = "detect.exact_repeat.count";
    const FILE: &str = "[detect.exact_repeat]\ncount = 4";
    const ENV: Env = &[("UNSTUCK__DETECT__EXACT_REPEAT__COUNT", "5")];
    check("", &[], COUNT, &json!(3));
    check(FILE, &[], COUNT, &json!(4));
    check("", ENV, COUNT, &json!(5));
    check(FILE, ENV, COUNT, &json!(5));
    check(FILE, ENV, "detect.exact_repeat.soft", &json!("warn"));
}

#[test]
fn no_file_leaves_the_defaults() {
    let layers = Layers::load(DEFAULTS, TABLES, None, []).unwrap();
    assert_eq!(
        layers.section::<Json>("policy").unwrap(),
        json!({"alpha": 0.3, "cooldown": 5})
    );
    assert_eq!(layers.file(), None);
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_known_one() {
    check_file_refused(&[
        "[detect.exact_repeat]\n\ncuont = 4",
        "unknown key `detect.exact_repeat.cuont` at unstuck.toml:3; did you mean `count`?",
        "[polcy]\nalpha = 0.5",
        "unknown key `polcy` at unstuck.toml:1; did you mean `policy`?",
        "[server]\n[detect.exact_repaet]",
        "unknown key `detect.exact_repaet` at unstuck.toml:2; did you mean `exact_repeat`?",
        "detect.cycle = { lap = 2 }",
        "unknown key `detect.cycle.lap` at unstuck.toml:1; did you mean `laps`?",
        "[[tools]]\nname = 'a'\n[[tools]]\nclas = 'read'",
        "unknown key `tools[1].clas` at unstuck.toml:4; did you mean `class`?",
        "[profiles.mine]\nmod = 'shadow'",
        "unknown key `profiles.mine.mod` at unstuck.toml:2; did you mean `mode`?",
        "[profiles.mine.detect.cycle]\nlapse = 2",
        "unknown key `profiles.mine.detect.cycle.lapse` at unstuck.toml:2; did you mean `laps`?",
        "[profiles.mine.server]\ngrpc = ''",
        "unknown key `profiles.mine.server` at unstuck.toml:1; did you mean `detect`?",
        "[auth]\ntoken = 'x'",
        "unknown key `auth.token` at unstuck.toml:2",
    ]);
}

#[test]
fn an_unknown_variable_names_itself_and_the_nearest_known_key() {
    check_env_refused(&[
        "UNSTUCK__DETECT__EXACT_REPEAT__CUONT=4",
        "unknown key `detect.exact_repeat.cuont` from UNSTUCK__DETECT__EXACT_REPEAT__CUONT; did you mean `count`?",
        "UNSTUCK__SERVER__GRPC__PORT=4",
        "unknown key `server.grpc.port` from UNSTUCK__SERVER__GRPC__PORT",
        "UNSTUCK__PROFILES__A[9]__MODE=4",
        "unknown key `profiles.\"a[9]\"` from UNSTUCK__PROFILES__A[9]__MODE",
        "UNSTUCK__LABELS__A__B=4",
        "unknown key `labels.a.b` from UNSTUCK__LABELS__A__B",
        "UNSTUCK__=4",
        "unknown key `\"\"` from UNSTUCK__; did you mean `tools`?",
    ]);
}

#[test]
fn a_variable_with_another_prefix_is_not_ours() {
    let others = [
        ("UNSTUCK_SERVER", "x"),
        ("UNSTUCK", "x"),
        ("HOME", "x"),
        ("MY_UNSTUCK__X", "x"),
    ];
    check("", &others, "server.grpc", &json!("127.0.0.1:50551"));
}

#[test]
fn a_wrong_type_names_the_line_and_what_was_expected() {
    check_file_refused(&[
        "[detect.exact_repeat]\ncount = 'four'",
        "wrong type for `detect.exact_repeat.count` at unstuck.toml:2: expected a 64-bit integer, found a string",
        "detect.exact_repeat.count = 2.5",
        "wrong type for `detect.exact_repeat.count` at unstuck.toml:1: expected a 64-bit integer, found 2.5",
        "detect.exact_repeat.count = 99999999999999999999",
        "wrong type for `detect.exact_repeat.count` at unstuck.toml:1: expected a 64-bit integer, found 99999999999999999999",
        "detect.exact_repeat.enabled = 1",
        "wrong type for `detect.exact_repeat.enabled` at unstuck.toml:1: expected true or false, found 1",
        "policy.alpha = nan",
        "wrong type for `policy.alpha` at unstuck.toml:1: expected a finite number, found nan",
        "policy.alpha = 1e999",
        "wrong type for `policy.alpha` at unstuck.toml:1: expected a finite number, found 1e999",
        "[server]\ngrpc = 50551",
        "wrong type for `server.grpc` at unstuck.toml:2: expected a string, found 50551",
        "server.grpc = 2024-01-01",
        "wrong type for `server.grpc` at unstuck.toml:1: expected a string, found a datetime",
        "detect.exact_repeat.exempt = 'sleep'",
        "wrong type for `detect.exact_repeat.exempt` at unstuck.toml:1: expected an array, found a string",
        "policy = true",
        "wrong type for `policy` at unstuck.toml:1: expected a table, found true",
        "labels = []",
        "wrong type for `labels` at unstuck.toml:1: expected a table, found an array",
        "[tools]",
        "wrong type for `tools` at unstuck.toml:1: expected an array of tables, found a table",
        "tools = [\n  'read',\n]",
        "wrong type for `tools[0]` at unstuck.toml:2: expected a table, found a string",
        "[profiles.mine]\nmode = 1",
        "wrong type for `profiles.mine.mode` at unstuck.toml:2: expected a string, found 1",
        "[labels]\nx = [1, 99999999999999999999]",
        "wrong type for `labels.x[1]` at unstuck.toml:2: expected a 64-bit integer, found 99999999999999999999",
    ]);
}

#[test]
fn a_wrong_type_from_a_variable_names_it() {
    check_env_refused(&[
        "UNSTUCK__POLICY__COOLDOWN=4x",
        "wrong type for `policy.cooldown` from UNSTUCK__POLICY__COOLDOWN: expected a 64-bit integer, found \"4x\"",
        "UNSTUCK__POLICY__COOLDOWN=",
        "wrong type for `policy.cooldown` from UNSTUCK__POLICY__COOLDOWN: expected a 64-bit integer, found \"\"",
        "UNSTUCK__POLICY__ALPHA=inf",
        "wrong type for `policy.alpha` from UNSTUCK__POLICY__ALPHA: expected a finite number, found \"inf\"",
        "UNSTUCK__POLICY=1",
        "wrong type for `policy` from UNSTUCK__POLICY: expected a table, which no variable can set, found a string",
        "UNSTUCK__TOOLS=a",
        "wrong type for `tools` from UNSTUCK__TOOLS: expected an array of tables, which no variable can set, found a string",
        "UNSTUCK__DETECT__CYCLE__RUNGS=1,b",
        "wrong type for `detect.cycle.rungs` from UNSTUCK__DETECT__CYCLE__RUNGS: expected a 64-bit integer, found \"1,b\"",
    ]);
}

#[test]
fn a_variable_takes_the_type_of_its_default() {
    check_env(&[
        "UNSTUCK__DETECT__EXACT_REPEAT__ENABLED=False",
        "detect.exact_repeat.enabled = false",
        "UNSTUCK__POLICY__COOLDOWN= 7 ",
        "policy.cooldown = 7",
        "UNSTUCK__POLICY__ALPHA=0.5",
        "policy.alpha = 0.5",
        "UNSTUCK__POLICY__ALPHA=1",
        "policy.alpha = 1.0",
        "UNSTUCK__SERVER__GRPC=007",
        "server.grpc = \"007\"",
        "UNSTUCK__SERVER__GRPC=true",
        "server.grpc = \"true\"",
        "UNSTUCK__SERVER__GRPC=",
        "server.grpc = \"\"",
        "UNSTUCK__server__Grpc=a",
        "server.grpc = \"a\"",
        "UNSTUCK__DETECT__EXACT_REPEAT__EXEMPT=a, b",
        "detect.exact_repeat.exempt = [\"a\", \"b\"]",
        "UNSTUCK__DETECT__EXACT_REPEAT__EXEMPT=5",
        "detect.exact_repeat.exempt = [\"5\"]",
        "UNSTUCK__DETECT__EXACT_REPEAT__EXEMPT=",
        "detect.exact_repeat.exempt = []",
        "UNSTUCK__DETECT__CYCLE__RUNGS=3,4",
        "detect.cycle.rungs = [3, 4]",
        "UNSTUCK__LABELS__TEAM=1",
        "labels = {\"team\": \"1\"}",
        "UNSTUCK__PROFILES__MINE__MODE=shadow",
        "profiles.mine.mode = \"shadow\"",
    ]);
}

#[test]
fn an_integer_will_do_for_a_float() {
    check("policy.alpha = 1", &[], "policy.alpha", &json!(1));
}

#[test]
fn a_free_map_takes_any_key_and_value() {
    check(
        "[labels]\nteam = 'a'\n'odd \"key\".x' = [1, { y = 2 }]\n[labels.deep.er]\nz = true",
        &[],
        "labels",
        &json!({"team": "a", "odd \"key\".x": [1, {"y": 2}], "deep": {"er": {"z": true}}}),
    );
}

#[test]
fn rows_of_an_array_of_tables_keep_their_order() {
    check(
        "[[tools]]\nname = 'b'\nignore_args = ['x']\n[[tools]]\nname = 'a'",
        &[],
        "tools",
        &json!([{"name": "b", "ignore_args": ["x"]}, {"name": "a"}]),
    );
}

#[test]
fn a_byte_order_mark_and_crlf_simply_work() {
    check(
        "\u{feff}[policy]\r\ncooldown = 9\r\n",
        &[],
        "policy.cooldown",
        &json!(9),
    );
    check_refused(
        "\u{feff}[policy]\r\n\r\ncooldwon = 9\r\n",
        &[],
        "unknown key `policy.cooldwon` at unstuck.toml:3; did you mean `cooldown`?",
    );
}

#[test]
fn a_file_that_is_not_toml_names_the_line() {
    let latin1 = b"[server]\n# caf\xe9\n";
    assert_eq!(
        layers(latin1, &[]).unwrap_err(),
        "syntax error at unstuck.toml:2: not utf-8"
    );
    check_file_refused(&[
        "[policy]\ncooldown =",
        "syntax error at unstuck.toml:2: string values must be quoted, expected literal string",
        "[policy]\n\n[policy]",
        "syntax error at unstuck.toml:3: duplicate key",
        "[policy\n",
        "syntax error at unstuck.toml:1: unclosed table, expected `]`",
    ]);
}

#[test]
fn nesting_without_end_is_refused() {
    let deep = format!("labels = {}", "[".repeat(500_000));
    assert!(
        layers(deep.as_bytes(), &[])
            .unwrap_err()
            .starts_with("syntax error at unstuck.toml:1")
    );
    let dotted = format!("labels{} = 1", ".a".repeat(500_000));
    assert!(
        layers(dotted.as_bytes(), &[])
            .unwrap_err()
            .starts_with("syntax error at unstuck.toml:1")
    );
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large.toml");
    fs::File::create(&large)
        .unwrap()
        .set_len(CONFIG_BYTES_MAX + 1)
        .unwrap();
    for (path, message) in [
        (
            dir.path().join("none.toml"),
            "cannot read none.toml: no such file",
        ),
        (
            dir.path().join("a\nb.toml"),
            "cannot read a\\nb.toml: no such file",
        ),
        (
            large,
            "cannot read large.toml: larger than 1048576 bytes (CONFIG_BYTES_MAX)",
        ),
    ] {
        let error = Layers::load(DEFAULTS, TABLES, Some(&path), []).unwrap_err();
        assert_eq!(said(&error, dir.path()), message);
    }
    let error = Layers::load(DEFAULTS, TABLES, Some(dir.path()), []).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot read {}: it is a directory", dir.path().display())
    );
}

#[test]
fn a_file_of_the_largest_size_is_read() {
    let mut file = b"policy.cooldown = 9\n".to_vec();
    file.resize(usize::try_from(CONFIG_BYTES_MAX).unwrap(), b'\n');
    assert_eq!(
        layers(&file, &[])
            .unwrap()
            .section::<i64>("policy.cooldown")
            .unwrap(),
        9
    );
}

#[test]
fn text_of_the_users_is_shown_escaped_and_cut() {
    check_refused(
        "\"a\\u001b[31m\\n\\u202e\" = 1",
        &[],
        "unknown key `\"a\\u{1b}[31m\\n\\u{202e}\"` at unstuck.toml:1; did you mean `auth`?",
    );
    let long = layers(format!("{} = 1", "a".repeat(100_000)).as_bytes(), &[]).unwrap_err();
    assert!(
        long.len() < 500 && long.contains("a…` at unstuck.toml:1"),
        "{long}"
    );
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Soft {
    Warn,
    Block,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Repeat {
    count: u8,
    soft: Soft,
}

#[derive(Debug, Deserialize)]
struct Detect {
    exact_repeat: Repeat,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code)]
struct Tool {
    name: String,
    #[serde(default)]
    ignore_args: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    mode: String,
}

#[track_caller]
fn check_section<T>(file: &str, env: Env, path: &str, message: &str)
where
    T: serde::de::DeserializeOwned + std::fmt::Debug,
{
    let layers = layers(file.as_bytes(), env).unwrap();
    let error = layers.section::<T>(path).unwrap_err();
    assert_eq!(said(&error, dir_of(&layers)), message);
}

fn dir_of(layers: &Layers) -> &Path {
    layers.file().and_then(Path::parent).unwrap()
}

#[test]
fn what_a_sections_type_refuses_names_the_key_and_where_it_was_set() {
    check_section::<Detect>(
        "[detect.cycle]\nlaps = 4\n[detect.exact_repeat]\nsoft = 'wran'",
        &[],
        "detect",
        "invalid `detect.exact_repeat.soft` at unstuck.toml:4: unknown variant `wran`, expected `warn` or `block`",
    );
    check_section::<Detect>(
        "[detect.exact_repeat]\nsoft = 'wran'",
        &[("UNSTUCK__DETECT__EXACT_REPEAT__SOFT", "bl\nock")],
        "detect",
        "invalid `detect.exact_repeat.soft` from UNSTUCK__DETECT__EXACT_REPEAT__SOFT: unknown variant `bl\\nock`, expected `warn` or `block`",
    );
    check_section::<Repeat>(
        "[detect.exact_repeat]\ncount = -1",
        &[],
        "detect.exact_repeat",
        "invalid `detect.exact_repeat.count` at unstuck.toml:2: invalid value: integer `-1`, expected u8",
    );
    check_section::<Vec<Tool>>(
        "[[tools]]\nname = 'a'\n\n[[tools]]\nname = 'b'\nignore_args = ['x',\n  5]",
        &[],
        "tools",
        "invalid `tools[1].ignore_args[1]` at unstuck.toml:7: invalid type: integer `5`, expected a string",
    );
    check_section::<Vec<Tool>>(
        "[[tools]]\nclass = 'read'\n[[tools]]\nname = 'b'",
        &[],
        "tools",
        "invalid `tools[0]` at unstuck.toml:1: missing field `name`",
    );
    check_section::<Json>("", &[], "detekt", "invalid `detekt`: no such section");
    check_section::<Vec<i64>>(
        "[detect.exact_repeat]\nexempt = ['a']",
        &[("UNSTUCK__DETECT__EXACT_REPEAT__EXEMPT", "b")],
        "detect.exact_repeat.exempt",
        "invalid `detect.exact_repeat.exempt[0]` from UNSTUCK__DETECT__EXACT_REPEAT__EXEMPT: invalid type: string \"b\", expected i64",
    );
}

#[test]
fn profiles_are_the_built_in_ones_and_the_users_sorted() {
    let layers = layers(
        b"[profiles.lax]",
        &[("UNSTUCK__PROFILES__ZEN__MODE", "shadow")],
    )
    .unwrap();
    assert_eq!(layers.profile_names(), ["default", "lax", "strict", "zen"]);
}

#[test]
fn a_profile_is_laid_over_the_sections() {
    const FILE: &[u8] = b"
        [detect.exact_repeat]
        count = 7
        soft = 'block'
        [profiles.strict]
        mode = 'shadow'
        policy.cooldown = 1
    ";
    let layers = layers(FILE, &[]).unwrap();
    let strict = layers.with_profile("strict").unwrap();
    let of = |layers: &Layers| layers.section::<Detect>("detect").unwrap().exact_repeat;
    assert_eq!(
        of(&layers),
        Repeat {
            count: 7,
            soft: Soft::Block
        }
    );
    assert_eq!(
        of(&strict),
        Repeat {
            count: 2,
            soft: Soft::Block
        }
    );
    assert_eq!(
        strict.section::<Json>("policy").unwrap(),
        json!({"alpha": 0.3, "cooldown": 1})
    );
    assert_eq!(
        strict.section::<Profile>("profiles.strict").unwrap().mode,
        "shadow"
    );
    assert_eq!(strict.section::<Json>("tools").unwrap(), json!([]));
}

#[test]
fn an_unknown_profile_names_the_nearest() {
    let layers = Layers::load(DEFAULTS, TABLES, None, []).unwrap();
    let error = layers.with_profile("strcit\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown profile `strcit\\n`; did you mean `strict`?"
    );
}

#[test]
fn a_profile_needs_a_plain_name() {
    check_refused(
        "[profiles.'my.team']",
        &[],
        "invalid `profiles.\"my.team\"` at unstuck.toml:1: a profile's name is letters, digits, `_` and `-`",
    );
}

#[test]
fn an_invalid_setting_says_where_it_was_set_if_by_a_user() {
    const KEY: &str = "detect.exact_repeat.count";
    let file = b"[detect.exact_repeat]\ncount = 1\n[profiles.lax.detect.exact_repeat]\ncount = 0";
    let set = layers(file, &[]).unwrap();
    for (layers, place) in [
        (set.clone(), "`detect.exact_repeat.count` at unstuck.toml:2"),
        (
            set.with_profile("default").unwrap(),
            "`detect.exact_repeat.count` at unstuck.toml:2",
        ),
        (
            set.with_profile("lax").unwrap(),
            "`profiles.lax.detect.exact_repeat.count` at unstuck.toml:4",
        ),
        (
            set.with_profile("strict").unwrap(),
            "`profiles.strict.detect.exact_repeat.count`",
        ),
        (layers(b"", &[]).unwrap(), "`detect.exact_repeat.count`"),
        (
            layers(file, &[("UNSTUCK__DETECT__EXACT_REPEAT__COUNT", "1")]).unwrap(),
            "`detect.exact_repeat.count` from UNSTUCK__DETECT__EXACT_REPEAT__COUNT",
        ),
    ] {
        let said = said(&layers.invalid(KEY, "never fires"), dir_of(&layers));
        assert_eq!(said, format!("invalid {place}: never fires"));
    }
    assert_eq!(
        ConfigError::invalid(KEY, "never fires").to_string(),
        "invalid `detect.exact_repeat.count`: never fires"
    );
}

#[test]
fn a_built_in_profile_is_held_to_the_same_keys() {
    let error = Layers::load(
        &[
            ("default.toml", "[detect.cycle]\nlaps = 3"),
            ("x.toml", "[profiles.x.detect.cycle]\nlap = 2"),
        ],
        &[],
        None,
        [],
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown key `profiles.x.detect.cycle.lap` at the built-in x.toml:2; did you mean `laps`?"
    );
}

#[test]
fn what_is_printed_can_be_loaded_again() {
    let file = "labels = { 'a b' = \"q\\\"\\u007f\\n\", f = 1.0, e = 1e-20, deep = { x = {} } }\n[[tools]]\nname = 'a'";
    let printed = layers(file.as_bytes(), &[("UNSTUCK__POLICY__COOLDOWN", "9")])
        .unwrap()
        .to_toml();
    assert!(
        printed.contains("[policy]\nalpha = 0.3\ncooldown = 9\n"),
        "{printed}"
    );
    assert!(printed.contains("\n[[tools]]\nname = \"a\"\n"), "{printed}");
    assert_eq!(layers(printed.as_bytes(), &[]).unwrap().to_toml(), printed);
}

#[test]
fn debugging_shows_no_setting() {
    let layers = Layers::load(DEFAULTS, TABLES, None, []).unwrap();
    assert_eq!(format!("{layers:?}"), "Layers { file: None, .. }");
}

/// Pieces that make TOML of our shape more often than letters at random do.
fn toml_like() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ".",
        "=",
        ",",
        "\n",
        "\r\n",
        "\"",
        "'",
        "#",
        "\u{feff}",
        "labels",
        "tools",
        "name",
        "detect",
        "exact_repeat",
        "count",
        "profiles",
        "policy",
        "alpha",
        "x",
        "1",
        "0.5",
        "nan",
        "true",
        "\"a.b\\n\"",
        "labels.x = {a = [1, {b = \"\\u0000\"}]}\n",
        "[[tools]]\nname = ",
        "[profiles.x]\n",
    ]);
    prop_oneof![
        any::<String>(),
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat()),
    ]
}

proptest! {
    #[test]
    fn no_text_panics_and_every_refusal_is_one_clean_line(file in toml_like(), name in "[A-Z_]{0,9}|\\PC{0,9}", value in any::<String>()) {
        let name = format!("UNSTUCK__{name}");
        match layers(file.as_bytes(), &[]) {
            Ok(layers) => {
                layers.section::<Json>("labels").unwrap();
                let again = self::layers(layers.to_toml().as_bytes(), &[]).unwrap();
                prop_assert_eq!(again.to_toml(), layers.to_toml());
            }
            Err(message) => prop_assert!(!message.contains(char::is_control), "{message:?}"),
        }
        if let Err(message) = layers(b"", &[(&name, &value)]) {
            prop_assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
}
