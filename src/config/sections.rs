//! Reads the sections other than `[detect]`, `[policy]` and `[profiles]`, and rejects
//! values that make no sense.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{self, Component, Path, PathBuf},
};

use super::{ConfigError, Layers};
use crate::{
    cluster, engine, hooks, server, store, telemetry,
    tools::{ToolRule, ToolRules},
};

/// 100 years. A time this long can still be added to any date.
const SECS_MAX: i64 = 100 * 366 * 24 * 60 * 60;

/// The largest value of each limit that has one, and the reason.
const LIMIT_MAXIMA: &[(&str, i64, &str)] = &[
    (
        "message_bytes_max",
        64 * 1024 * 1024,
        "a few such messages would use up limits.unread_bytes_max",
    ),
    (
        "batch_max",
        1_024,
        "a batch is processed without a pause, and its response with about 4 KiB per verdict \
         must stay within the 4 MiB that clients accept",
    ),
    (
        "unread_responses_max",
        4_096,
        "with about 1 KiB per response, 64 streams would hold more than 256 MiB",
    ),
    (
        "stream_sessions_max",
        131_072,
        "to evict one, all sessions of the stream are scanned without a pause",
    ),
    (
        "agents_max",
        4_096,
        "the agent of an event is found by a linear scan of its session's agents",
    ),
    (
        "event_ids_max",
        4_096,
        "the id of an event is found by a linear scan of its session's ids",
    ),
];

/// Rejects a limit of 0, which would refuse everything, a time that cannot be added to
/// a date, and a value so large that it no longer protects the service.
pub(super) fn load_limits(layers: &Layers) -> Result<engine::Limits, ConfigError> {
    let all: BTreeMap<String, i64> = layers.section("limits")?;
    for (key, limit) in &all {
        check_limit(key, *limit).map_err(|why| layers.invalid(&format!("limits.{key}"), why))?;
    }
    let mut limits: engine::Limits = layers.section("limits")?;
    limits.breaker = Some(load_breaker_settings(layers)?);
    Ok(limits)
}

fn check_limit(key: &str, limit: i64) -> Result<(), String> {
    let is_off = limit == 0 && key == "events_per_second_max";
    if limit < 1 && !is_off {
        return Err(format!("must be at least 1, not {limit}"));
    }
    if key.ends_with("_secs_max") && limit > SECS_MAX {
        return Err(format!(
            "{limit} seconds are more than 100 years, {SECS_MAX}"
        ));
    }
    let maximum = LIMIT_MAXIMA.iter().find(|(name, ..)| *name == key);
    if let Some((_, limit_max, why)) = maximum.filter(|(_, limit_max, _)| limit > *limit_max) {
        return Err(format!("{limit} is more than {limit_max}: {why}"));
    }
    if key == "streams_max" {
        check_streams_max(limit)?;
    }
    Ok(())
}

/// h2 counts an overhead for each small unread message and closes the connection when
/// the sum over its streams is too high.
fn check_streams_max(limit: i64) -> Result<(), String> {
    let (bytes_per_stream, bytes_max) = (server::STREAM_OVERHEAD_BYTES, server::OVERHEAD_BYTES_MAX);
    let all = limit.saturating_mul(bytes_per_stream.into());
    if all <= bytes_max.into() {
        return Ok(());
    }
    Err(format!(
        "{limit} is more than {}: the transport counts up to {bytes_per_stream} bytes for the \
         unread small messages of a stream and closes the connection above {bytes_max}: \
         {limit} × {bytes_per_stream} = {all}",
        bytes_max / bytes_per_stream,
    ))
}

fn load_breaker_settings(layers: &Layers) -> Result<engine::BreakerSettings, ConfigError> {
    let settings: engine::BreakerSettings = layers.section("breaker")?;
    let share_max = settings.share_max;
    if !(share_max > 0.0 && share_max <= 1.0) {
        let why = format!(
            "{share_max} is not a share: above 0 and at most 1, with which the breaker never opens"
        );
        return Err(layers.invalid("breaker.share_max", why));
    }
    if settings.window_secs == 0 {
        let why = "0 seconds cannot hold a termination: at least 1";
        return Err(layers.invalid("breaker.window_secs", why));
    }
    Ok(settings)
}

/// The characters of `hooks.prefix`.
const PREFIX_CHARS_MAX: usize = 32;

/// An agent that waits longer for each call is of no use.
const HOOK_BUDGET_MILLIS_MAX: u64 = 60_000;

/// Rejects a prefix by which the service could not recognise its own texts, and one that is
/// not a short line.
pub(super) fn load_hook_settings(layers: &Layers) -> Result<hooks::Settings, ConfigError> {
    let settings: hooks::Settings = layers.section("hooks")?;
    let prefix = &settings.prefix;
    let is_line = !prefix.contains(|c: char| c.is_control());
    if prefix.trim().is_empty() || prefix.chars().count() > PREFIX_CHARS_MAX || !is_line {
        let why = format!("must be a line of 1 to {PREFIX_CHARS_MAX} characters");
        return Err(layers.invalid("hooks.prefix", why));
    }
    if settings.idle_exit_mins == 0 {
        return Err(layers.invalid("hooks.idle_exit_mins", "must be at least 1"));
    }
    if !(1..=HOOK_BUDGET_MILLIS_MAX).contains(&settings.budget_millis) {
        let why = format!("must be at least 1 and at most {HOOK_BUDGET_MILLIS_MAX}");
        return Err(layers.invalid("hooks.budget_millis", why));
    }
    Ok(settings)
}

/// Rejects a log that keeps nothing, which cannot be resumed, and a queue that drops
/// everything.
pub(super) fn load_store_settings(layers: &Layers) -> Result<store::Settings, ConfigError> {
    let settings: store::Settings = layers.section("store")?;
    for (key, value, least) in [
        ("bytes_max", settings.bytes_max, store::Settings::BYTES_MIN),
        ("verdicts_days_max", settings.verdicts_days_max.into(), 1),
        ("queue_max", settings.queue_max as u64, 1),
        ("sync_secs_max", settings.sync_secs_max, 1),
    ] {
        if value < least {
            let why = format!("{value} is too low: at least {least}");
            return Err(layers.invalid(&format!("store.{key}"), why));
        }
    }
    if is_inside(&settings.key_file, &settings.dir) {
        let why = "it is inside store.dir, so a copy of that directory could be read with it";
        return Err(layers.invalid("store.key_file", why));
    }
    Ok(settings)
}

/// Whether a file is in a directory, also by way of links.
fn is_inside(file: &Path, dir: &Path) -> bool {
    let is_set = !file.as_os_str().is_empty() && !dir.as_os_str().is_empty();
    let (Ok(file), Ok(dir)) = (resolve(file), resolve(dir)) else {
        return false;
    };
    is_set && file.starts_with(dir)
}

/// A path without links and `..`. What does not exist yet has neither.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for component in path::absolute(path)?.components() {
        if component == Component::ParentDir {
            resolved.pop();
            continue;
        }
        resolved.push(component);
        resolved = fs::canonicalize(&resolved).unwrap_or(resolved);
    }
    Ok(resolved)
}

/// Fits a Discord message beside the longest summary.
const CONSOLE_URL_BYTES_MAX: usize = 256;

pub(super) fn load_server_settings(layers: &Layers) -> Result<server::Settings, ConfigError> {
    let mut settings: server::Settings = layers.section("server")?;
    let url = settings.console_url.trim_end_matches('/').to_owned();
    let is_base = |url: &reqwest::Url| {
        matches!(url.scheme(), "http" | "https") && url.query().or(url.fragment()).is_none()
    };
    let is_valid = || reqwest::Url::parse(&url).is_ok_and(|url| is_base(&url));
    // Slack and Discord end a link at these.
    let is_safe = !url.contains(|c: char| c.is_whitespace() || "<>|()".contains(c));
    if !url.is_empty() && (url.len() > CONSOLE_URL_BYTES_MAX || !is_safe || !is_valid()) {
        let why = "is not an address such as https://unstuck.example.com";
        return Err(layers.invalid("server.console_url", why.to_owned()));
    }
    settings.console_url = url;
    Ok(settings)
}

/// Rejects a certificate without its key, and the reverse.
pub(super) fn load_tls_settings(layers: &Layers) -> Result<server::TlsSettings, ConfigError> {
    let settings: server::TlsSettings = layers.section("tls")?;
    settings.check().map_err(|(missing, set)| {
        let why = format!("needs `tls.{missing}` too");
        layers.invalid(&format!("tls.{set}"), why)
    })?;
    Ok(settings)
}

/// Rejects settings of a cluster that can never work.
pub(super) fn load_cluster_settings(layers: &Layers) -> Result<cluster::Settings, ConfigError> {
    let settings: cluster::Settings = layers.section("cluster")?;
    settings
        .check()
        .map_err(|(key, why)| layers.invalid(&format!("cluster.{key}"), why))?;
    Ok(settings)
}

pub(super) fn load_telemetry_settings(
    layers: &Layers,
) -> Result<telemetry::traces::Settings, ConfigError> {
    let settings: telemetry::traces::Settings = layers.section("telemetry")?;
    settings
        .validate()
        .map_err(|why| layers.invalid("telemetry.otlp", why))?;
    Ok(settings)
}

pub(super) fn load_tool_rules(layers: &Layers) -> Result<ToolRules, ConfigError> {
    let rules: Vec<ToolRule> = layers.section("tools")?;
    if rules.len() > ToolRules::RULES_MAX {
        let why = format!("{} entries, at most {}", rules.len(), ToolRules::RULES_MAX);
        return Err(layers.invalid("tools", why));
    }
    ToolRules::new(rules).map_err(|error| layers.invalid("tools", error))
}
