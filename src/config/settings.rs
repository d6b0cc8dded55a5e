//! The whole configuration as the service uses it, and the built-in files.

use std::path::{Path, PathBuf};

use super::{
    BuiltInFiles, ConfigError, Layers, MemoryBudget, TableKeys,
    profile_builder::build_profiles,
    sections::{
        load_cluster_settings, load_hook_settings, load_limits, load_server_settings,
        load_store_settings, load_telemetry_settings, load_tls_settings, load_tool_rules,
    },
};
use crate::{
    auth, cluster, console,
    engine::{self, Profiles},
    hooks, notify,
    rules::RuleRow,
    server, store, telemetry,
    tools::{ToolRule, ToolRules},
};

/// The built-in files, weakest first. `default.toml` is the manual.
pub const DEFAULTS: BuiltInFiles = &[
    ("default.toml", include_str!("default.toml")),
    ("messages.toml", include_str!("messages.toml")),
    ("strict.toml", include_str!("profiles/strict.toml")),
    ("lenient.toml", include_str!("profiles/lenient.toml")),
    ("classic.toml", include_str!("profiles/classic.toml")),
];

/// The keys of each `[[name]]`.
pub const TABLE_KEYS: TableKeys = &[
    ("tools", ToolRule::KEYS),
    ("rules", RuleRow::KEYS),
    ("notify", notify::Settings::KEYS),
];

/// The file in the working directory that is read if no other is named.
const DEFAULT_FILE: &str = "unstuck.toml";

/// The complete configuration, checked as a whole.
#[derive(Debug)]
pub struct Config {
    pub server: server::Settings,
    pub auth: auth::Settings,
    pub tls: server::TlsSettings,
    pub engine: engine::Limits,
    pub limits: server::Limits,
    pub console: console::Limits,
    pub hooks: hooks::Settings,
    pub store: store::Settings,
    pub audit: store::AuditSettings,
    pub cluster: cluster::Settings,
    pub telemetry: telemetry::traces::Settings,
    pub profiles: Profiles,
    pub tools: ToolRules,
    pub notify: Vec<notify::Settings>,
}

/// Loads the layers with the given file, or with `unstuck.toml` if it exists.
pub fn load_layers(file: Option<&Path>) -> Result<Layers, ConfigError> {
    let default_file = PathBuf::from(DEFAULT_FILE);
    let found = default_file.exists().then_some(&*default_file);
    load_layers_of(file.or(found))
}

/// Loads the layers with this file or none. No file of the working directory is read, which
/// may be a repository of other people.
pub fn load_layers_of(file: Option<&Path>) -> Result<Layers, ConfigError> {
    // A variable that is not UTF-8 is none of ours.
    let variables = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let memory = MemoryBudget::detect();
    Layers::load_with_memory(DEFAULTS, TABLE_KEYS, memory, file, variables)
}

impl Config {
    pub fn new(layers: &Layers) -> Result<Self, ConfigError> {
        Ok(Self {
            server: load_server_settings(layers)?,
            auth: layers.section("auth")?,
            tls: load_tls_settings(layers)?,
            engine: load_limits(layers)?,
            limits: layers.section("limits")?,
            console: layers.section("limits")?,
            hooks: load_hook_settings(layers)?,
            store: load_store_settings(layers)?,
            audit: layers.section("audit")?,
            cluster: load_cluster_settings(layers)?,
            telemetry: load_telemetry_settings(layers)?,
            profiles: build_profiles(layers)?,
            tools: load_tool_rules(layers)?,
            notify: layers.section("notify")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variable: &str, value: &str, expected_error: Option<&str>) {
        let variables = [(format!("UNSTUCK__{variable}"), value.to_owned())];
        let layers = Layers::load(DEFAULTS, TABLE_KEYS, None, variables).unwrap();
        let message = Config::new(&layers).err().map(|error| error.to_string());
        match expected_error {
            Some(part) => assert!(message.is_some_and(|message| message.contains(part))),
            None => assert_eq!(message, None),
        }
    }

    #[test]
    fn a_limit_is_at_least_1_and_a_time_at_most_100_years() {
        check("LIMITS__SESSIONS_MAX", "0", Some("at least 1"));
        check("LIMITS__SESSIONS_MAX", "9223372036854775807", None);
        check("LIMITS__IDLE_SECS_MAX", "3162240000", None);
        check("LIMITS__IDLE_SECS_MAX", "3162240001", Some("100 years"));
        check(
            "LIMITS__TOMBSTONE_SECS_MAX",
            "9223372036854775807",
            Some("100 years"),
        );
    }

    #[test]
    fn the_breaker_needs_a_share_above_0_and_at_most_1() {
        check("BREAKER__SHARE_MAX", "1", None);
        for share in ["0", "-1", "1.01"] {
            check("BREAKER__SHARE_MAX", share, Some("share"));
        }
        check("BREAKER__WINDOW_SECS", "0", Some("at least 1"));
    }

    #[test]
    fn traces_are_sent_only_to_an_address_without_tls() {
        check("TELEMETRY__OTLP", "http://127.0.0.1:4317", None);
        check("TELEMETRY__OTLP", "https://elsewhere", Some("without TLS"));
    }

    #[test]
    fn a_limit_too_high_to_protect_is_rejected_with_the_reason() {
        let cases = [
            ("MESSAGE_BYTES_MAX", 67_108_864, "unread_bytes_max"),
            ("BATCH_MAX", 1_024, "4 MiB"),
            ("UNREAD_RESPONSES_MAX", 4_096, "256 MiB"),
            ("AGENTS_MAX", 4_096, "linear scan"),
            ("EVENT_IDS_MAX", 4_096, "linear scan"),
            ("STREAMS_MAX", 81, "82 × 1645056 = 134894592"),
        ];
        for (key, limit_max, why) in cases {
            let variable = format!("LIMITS__{key}");
            check(&variable, &limit_max.to_string(), None);
            check(&variable, &(limit_max + 1).to_string(), Some(why));
            let huge = i64::MAX.to_string();
            check(
                &variable,
                &huge,
                Some(&format!("{huge} is more than {limit_max}")),
            );
        }
    }
}
