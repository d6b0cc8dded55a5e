//! The built-in profiles, and inconsistent settings: they are rejected at startup with the
//! key, its location and the arithmetic.

use std::{collections::BTreeMap, fs::write, sync::LazyLock};

use serde_json::Value;
use unstuck::{
    config::{Config, DEFAULTS, Layers, TABLE_KEYS},
    detect,
};

fn load(file: &str, env: &[(&str, &str)]) -> Result<Layers, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unstuck.toml");
    write(&path, file).unwrap();
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let loaded = Layers::load(DEFAULTS, TABLE_KEYS, Some(&path), env)
        .and_then(|layers| Config::new(&layers).map(|_| layers));
    let here = format!("{}/", dir.path().display());
    loaded.map_err(|error| error.to_string().replace(&here, ""))
}

#[track_caller]
fn check_refused(file: &str, message: &str) {
    assert_eq!(load(file, &[]).err().as_deref(), Some(message), "{file}");
}

/// The number of a detector's key in a profile.
type Numbers = BTreeMap<(&'static str, String), i64>;

fn numbers(profile: &str) -> Numbers {
    static LAYERS: LazyLock<Layers> = LazyLock::new(|| load("", &[]).unwrap());
    let detect: Value = LAYERS
        .with_profile(profile)
        .unwrap()
        .section("detect")
        .unwrap();
    let keys = detect::NAMES.iter().flat_map(|name| {
        let keys = detect[*name].as_object().unwrap().iter();
        let numbers = keys.filter_map(|(key, value)| Some((key.clone(), value.as_i64()?)));
        numbers
            .map(|(key, value)| ((*name, key), value))
            .collect::<Vec<_>>()
    });
    keys.collect()
}

/// How many events the detector needs at least.
const NEEDED: &[&str] = &["count", "reads_without_new_lines", "rewrites"];

/// Events that end a session; `None` never does.
fn ends(numbers: &Numbers, name: &'static str) -> i64 {
    match numbers[&(name, "terminate_after".to_owned())] {
        0 => i64::MAX,
        events => events,
    }
}

#[test]
fn the_built_in_profiles_load() {
    let names = load("", &[]).unwrap().profile_names();
    assert_eq!(names, ["classic", "default", "lenient", "strict"]);
}

#[test]
fn strict_never_acts_later_than_default_and_lenient_never_sooner() {
    let [strict, default, lenient] = ["strict", "default", "lenient"].map(numbers);
    for ((name, key), count) in &default {
        if NEEDED.contains(&key.as_str()) {
            let of = |numbers: &Numbers| numbers[&(*name, key.clone())];
            assert!(of(&strict) <= *count, "strict {name}.{key}");
            assert!(of(&lenient) > *count, "lenient {name}.{key}");
        }
    }
    for name in detect::NAMES {
        assert!(ends(&strict, name) <= ends(&default, name), "strict {name}");
        assert_eq!(ends(&lenient, name), i64::MAX, "lenient {name}");
    }
}

/// A user who changes `[detect.x]` must not find a built-in profile refused.
#[test]
fn a_built_in_profile_keeps_related_settings_consistent() {
    const AGREE: &[&[&str]] = &[
        &["count", "terminate_after"],
        &["soft", "hard"],
        &["throttle_secs", "throttle_secs_max"],
    ];
    const WINDOWED: &[(&str, &[&str])] = &[
        ("exact_repeat", &["count", "window"]),
        ("interleaved_repeat", &["count", "window"]),
        ("cycle", &["count", "window", "period_max"]),
        ("read_loop", &["count", "window"]),
        ("error_streak", &["count", "window"]),
        ("test_fail_loop", &["count", "within"]),
        ("repetition", &["count", "chars"]),
        (
            "repetition",
            &["chunks", "chunk_count", "chunk_window", "chunks_only"],
        ),
        ("polling", &["enabled", "exclude_from_others"]),
        ("infra_outage", &["enabled", "exclude_from_others"]),
    ];
    let defaults: toml::Table = load("", &[]).unwrap().to_toml().parse().unwrap();
    for (profile, settings) in defaults["profiles"].as_table().unwrap() {
        let Some(detect) = settings.get("detect") else {
            continue;
        };
        for (name, section) in detect.as_table().unwrap() {
            let own = WINDOWED.iter().filter(|(of, _)| of == name);
            let groups = own.map(|(_, group)| group).chain(AGREE);
            for group in groups {
                let set = group
                    .iter()
                    .filter(|key| section.get(**key).is_some())
                    .count();
                // What it only ends later, or never, agrees with any count.
                let ends_never = section
                    .get("terminate_after")
                    .and_then(toml::Value::as_integer)
                    == Some(0)
                    && *group == ["count", "terminate_after"];
                assert!(
                    set == 0 || set == group.len() || ends_never,
                    "[profiles.{profile}.detect.{name}] sets only some of {group:?}"
                );
            }
        }
    }
}

#[test]
fn a_window_too_small_is_refused_with_the_arithmetic_where_it_was_set() {
    for (file, message) in [
        (
            "[detect.exact_repeat]\ncount = 11",
            "`detect.exact_repeat.count` at unstuck.toml:2: 11 calls in a row never fit in a window of 10",
        ),
        (
            "[detect.exact_repeat]\n\nwindow = 2",
            "`detect.exact_repeat.window` at unstuck.toml:3: 3 calls in a row never fit in a window of 2",
        ),
        (
            "[detect.exact_repeat]\nwindow = 33",
            "`detect.exact_repeat.window` at unstuck.toml:2: 33 calls, at most 32 are stored",
        ),
        (
            "[detect.interleaved_repeat]\ncount = 30",
            "`detect.interleaved_repeat.count` at unstuck.toml:2: 30 calls with others between never fit in a window of 30",
        ),
        (
            "[detect.interleaved_repeat]\nwindow = 33",
            "`detect.interleaved_repeat.window` at unstuck.toml:2: 33 calls, at most 32 are stored",
        ),
        (
            "[detect.cycle]\nwindow = 5",
            "`detect.cycle.window` at unstuck.toml:2: 3 laps of 2 calls are 6, more than the window of 5",
        ),
        (
            "[detect.cycle]\ncount = 16",
            "`detect.cycle.count` at unstuck.toml:2: 16 laps of 2 calls are 32, more than the window of 30",
        ),
        (
            "[detect.cycle]\nperiod_max = 17",
            "`detect.cycle.period_max` at unstuck.toml:2: 17 is not a period between 2 and 16",
        ),
        (
            "[detect.read_loop]\ncount = 21",
            "`detect.read_loop.count` at unstuck.toml:2: 21 reads never fit in a window of 20 calls",
        ),
        (
            "[detect.read_loop]\nwindow = 2",
            "`detect.read_loop.window` at unstuck.toml:2: 3 reads never fit in a window of 2 calls",
        ),
        (
            "[detect.read_loop]\nreads_without_new_lines = 1",
            "`detect.read_loop.reads_without_new_lines` at unstuck.toml:2: must be at least 2, or 0 to turn it off: one read is not a loop",
        ),
        (
            "[detect.test_fail_loop]\nwithin = 2",
            "`detect.test_fail_loop.within` at unstuck.toml:2: 3 runs never fit in the last 2 calls",
        ),
        (
            "[detect.edit_revert]\nwithin = 2",
            "`detect.edit_revert.within` at unstuck.toml:2: a revert takes 3 writes (one content, another, the first again), which never fit in the last 2 calls",
        ),
        (
            "[detect.edit_revert]\nwithin = 21",
            "`detect.edit_revert.within` at unstuck.toml:2: 21 calls, but only 20 contents are stored",
        ),
        (
            "[detect.patch_spiral]\ncount = 65",
            "`detect.patch_spiral.count` at unstuck.toml:2: 65 failures, at most 64 are stored",
        ),
        (
            "[detect.similar_turns]\nwindow = 6",
            "`detect.similar_turns.window` at unstuck.toml:2: 6 turns to compare with, must be 1 to 5",
        ),
        (
            "[detect.polling]\nexclude_from_others = false",
            "`detect.polling.exclude_from_others` at unstuck.toml:2: without it these calls are left to the other detectors, so this one never fires: set enabled = false as well",
        ),
        (
            "[profiles.mine.detect.cycle]\nwindow = 5",
            "`profiles.mine.detect.cycle.window` at unstuck.toml:2: 3 laps of 2 calls are 6, more than the window of 5",
        ),
    ] {
        check_refused(file, &format!("invalid {message}"));
    }
}

#[test]
fn an_invalid_variable_is_named() {
    let variable = [("UNSTUCK__DETECT__CYCLE__COUNT", "16")];
    assert_eq!(
        load("", &variable).unwrap_err(),
        "invalid `detect.cycle.count` from UNSTUCK__DETECT__CYCLE__COUNT: 16 laps of 2 calls are 32, more than the window of 30"
    );
}

#[test]
fn once_is_no_loop_for_any_detector() {
    for ((name, key), _) in numbers("default") {
        if !NEEDED.contains(&key.as_str()) || name == "similar_turns" {
            continue;
        }
        let error = load(&format!("[detect.{name}]\n{key} = 1"), &[]).unwrap_err();
        let prefix = format!("invalid `detect.{name}.{key}` at unstuck.toml:2: ");
        assert!(
            error.starts_with(&prefix) && error.contains("at least 2"),
            "{error}"
        );
    }
    check_refused(
        "[detect.similar_turns]\ncount = 0",
        "invalid `detect.similar_turns.count` at unstuck.toml:2: must be at least 1",
    );
}

#[test]
fn a_count_of_any_size_is_refused_or_loaded() {
    let countless = ["edit_revert", "budget", "greeting"];
    for name in detect::NAMES
        .iter()
        .filter(|name| !countless.contains(name))
    {
        for count in [64, 4_294_967_295_u32] {
            let file = format!("[detect.{name}]\ncount = {count}\nterminate_after = 0");
            if let Err(error) = load(&file, &[]) {
                let prefix = format!("invalid `detect.{name}.count` at unstuck.toml:2: {count} ");
                assert!(error.starts_with(&prefix), "{error}");
            }
        }
    }
}

#[test]
fn a_rung_that_is_never_reached_is_refused_for_every_detector() {
    // Nothing is stronger than what ends a session.
    for name in detect::NAMES.iter().filter(|name| **name != "budget") {
        let error = load(&format!("[detect.{name}]\nsoft = 'terminate'"), &[]).unwrap_err();
        let prefix = format!(
            "invalid `detect.{name}.soft` at unstuck.toml:2: terminate is stronger than hard, "
        );
        assert!(error.starts_with(&prefix), "{error}");
    }
    check_refused(
        "[detect.cycle]\nhard = 'alert'",
        "invalid `detect.cycle.hard` at unstuck.toml:2: warn is stronger than hard, alert, which could never be reached",
    );
}

#[test]
fn a_loop_cannot_end_the_session_before_it_is_found() {
    for ((name, _), count) in numbers("default")
        .into_iter()
        .filter(|((_, key), _)| key == "count")
    {
        check_refused(
            &format!("[detect.{name}]\nterminate_after = {}", count - 1),
            &format!(
                "invalid `detect.{name}.terminate_after` at unstuck.toml:2: a loop is first found with {count} events, so it never has only {}",
                count - 1
            ),
        );
    }
    check_refused(
        "[detect.cycle]\ncount = 4\nterminate_after = 3",
        "invalid `detect.cycle.terminate_after` at unstuck.toml:3: a loop is first found with 4 events, so it never has only 3",
    );
    check_refused(
        "[detect.similar_turns]\ncount = 6",
        "invalid `detect.similar_turns.count` at unstuck.toml:2: a loop is first found with 6 events, so it never has only 5",
    );
}
