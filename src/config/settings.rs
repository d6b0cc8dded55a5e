use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{BuiltInFiles, ConfigError, Layers};
use crate::{
    auth, console, detect,
    domain::DetectorId,
    engine::{self, Profile, Profiles},
    facts::{Model, ToolRule, ToolRules, TurnAnalyzers, load_model},
    notify,
    policy::{self, EscalationSettings, Templates, TrendSettings},
    rules::{self, RowError, RuleRow},
    server, store, telemetry,
    text::PhraseMatcher,
};

/// The built-in files, weakest first. `default.toml` is the manual.
pub const DEFAULTS: BuiltInFiles = &[
    ("default.toml", include_str!("default.toml")),
    ("messages.toml", include_str!("messages.toml")),
    ("strict.toml", include_str!("profiles/strict.toml")),
    ("lenient.toml", include_str!("profiles/lenient.toml")),
    ("classic.toml", include_str!("profiles/classic.toml")),
];

/// Where the configuration is found when nobody says so.
const DEFAULT_FILE: &str = "unstuck.toml";

/// Everything that is configured, checked as a whole.
#[derive(Debug)]
pub struct Config {
    pub server: server::Settings,
    pub auth: auth::Settings,
    pub tls: server::TlsSettings,
    pub engine: engine::Limits,
    pub limits: server::Limits,
    pub console: console::Limits,
    pub store: store::Settings,
    pub audit: store::AuditSettings,
    pub telemetry: telemetry::traces::Settings,
    pub profiles: Profiles,
    pub tools: ToolRules,
    pub notify: Vec<notify::Settings>,
}

#[derive(Default, Deserialize)]
struct ProfileModeSection {
    #[serde(default)]
    mode: ProfileMode,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProfileMode {
    #[default]
    Enforce,
    Shadow,
}

/// The layers from the given file, or from `unstuck.toml` where it is.
pub fn load_layers(file: Option<&Path>) -> Result<Layers, ConfigError> {
    let default_file = PathBuf::from(DEFAULT_FILE);
    let found = default_file.exists().then_some(&*default_file);
    // Variables that are not text are none of ours.
    let variables = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    Layers::load(DEFAULTS, TABLE_KEYS, file.or(found), variables)
}

/// The keys of each `[[name]]`.
pub const TABLE_KEYS: super::TableKeys = &[
    ("tools", ToolRule::KEYS),
    ("rules", RuleRow::KEYS),
    ("notify", notify::Settings::KEYS),
];

impl Config {
    pub fn new(layers: &Layers) -> Result<Self, ConfigError> {
        let rules: Vec<ToolRule> = layers.section("tools")?;
        if rules.len() > ToolRules::RULES_MAX {
            let why = format!("{} entries, at most {}", rules.len(), ToolRules::RULES_MAX);
            return Err(layers.invalid("tools", why));
        }
        Ok(Self {
            server: layers.section("server")?,
            auth: layers.section("auth")?,
            tls: load_tls_settings(layers)?,
            engine: load_limits(layers)?,
            limits: layers.section("limits")?,
            console: layers.section("limits")?,
            store: load_store_settings(layers)?,
            audit: layers.section("audit")?,
            telemetry: load_telemetry_settings(layers)?,
            profiles: build_profiles(layers)?,
            tools: ToolRules::new(rules).map_err(|error| layers.invalid("tools", error))?,
            notify: layers.section("notify")?,
        })
    }
}

/// A time this far off can still be added to any other: 100 years.
const SECS_MAX: i64 = 100 * 366 * 24 * 60 * 60;

/// The most of each limit that has one, and what would go wrong beyond it.
const LIMIT_MAXIMA: &[(&str, i64, &str)] = &[
    (
        "message_bytes_max",
        64 * 1024 * 1024,
        "a message header alone allocates this much, on every stream",
    ),
    (
        "batch_max",
        1_024,
        "a batch is worked off at one go, and its answer with about 4 KiB a verdict must stay \
         within the 4 MiB that clients accept",
    ),
    (
        "unread_responses_max",
        4_096,
        "with about 1 KiB a response, 64 streams would hold more than 256 MiB",
    ),
    (
        "stream_sessions_max",
        131_072,
        "to make room for one, all sessions of the stream are gone through at one go",
    ),
    (
        "agents_max",
        4_096,
        "an event's agent is looked for among all of its session, one by one",
    ),
    (
        "event_ids_max",
        4_096,
        "an event's id is looked for among all of its session, one by one",
    ),
];

/// A limit of nothing would refuse everything, a time without end cannot be
/// reckoned with, and some limits are no limits when they are huge.
fn load_limits(layers: &Layers) -> Result<engine::Limits, ConfigError> {
    let all: BTreeMap<String, i64> = layers.section("limits")?;
    for (key, limit) in all {
        let reject = |why: String| Err(layers.invalid(&format!("limits.{key}"), why));
        if limit < 1 {
            return reject(format!("{limit} would refuse everything: at least 1"));
        }
        if key.ends_with("_secs_max") && limit > SECS_MAX {
            return reject(format!(
                "{limit} seconds are more than 100 years, {SECS_MAX}"
            ));
        }
        let entry = LIMIT_MAXIMA.iter().find(|(name, ..)| *name == key);
        if let Some((_, limit_max, why)) = entry.filter(|(_, limit_max, _)| limit > *limit_max) {
            return reject(format!("{limit} is more than {limit_max}: {why}"));
        }
        if key == "streams_max" {
            let (bytes_per_stream, bytes_max) =
                (server::STREAM_OVERHEAD_BYTES, server::OVERHEAD_BYTES_MAX);
            let all = limit.saturating_mul(bytes_per_stream.into());
            if all > bytes_max.into() {
                return reject(format!(
                    "{limit} is more than {}: small messages may lie unread on each stream, for \
                     which the transport counts {bytes_per_stream} bytes, and beyond {bytes_max} it ends the \
                     connection: {limit} × {bytes_per_stream} = {all}",
                    bytes_max / bytes_per_stream,
                ));
            }
        }
    }
    let mut limits: engine::Limits = layers.section("limits")?;
    limits.breaker = Some(load_breaker_settings(layers)?);
    Ok(limits)
}

/// A share is one of a whole.
fn load_breaker_settings(layers: &Layers) -> Result<engine::BreakerSettings, ConfigError> {
    let settings: engine::BreakerSettings = layers.section("breaker")?;
    let share_max = settings.share_max;
    if !(share_max > 0.0 && share_max <= 1.0) {
        let why = format!(
            "{share_max} is no share: more than 0, and 1 at most, with which it never opens"
        );
        return Err(layers.invalid("breaker.share_max", why));
    }
    if settings.window_secs == 0 {
        let why = "no time is too short to count in: at least 1";
        return Err(layers.invalid("breaker.window_secs", why));
    }
    Ok(settings)
}

/// A log that keeps nothing cannot be resumed, and a queue of nothing loses all.
fn load_store_settings(layers: &Layers) -> Result<store::Settings, ConfigError> {
    let settings: store::Settings = layers.section("store")?;
    for (key, number, least) in [
        ("bytes_max", settings.bytes_max, store::Settings::BYTES_MIN),
        ("verdicts_days_max", settings.verdicts_days_max.into(), 1),
        ("queue_max", settings.queue_max as u64, 1),
    ] {
        if number < least {
            let why = format!("{number} is too little: at least {least}");
            return Err(layers.invalid(&format!("store.{key}"), why));
        }
    }
    Ok(settings)
}

/// A certificate is of no use without its key.
fn load_tls_settings(layers: &Layers) -> Result<server::TlsSettings, ConfigError> {
    let settings: server::TlsSettings = layers.section("tls")?;
    settings.check().map_err(|(missing, set)| {
        let why = format!("needs `tls.{missing}` too");
        layers.invalid(&format!("tls.{set}"), why)
    })?;
    Ok(settings)
}

fn load_telemetry_settings(layers: &Layers) -> Result<telemetry::traces::Settings, ConfigError> {
    let settings: telemetry::traces::Settings = layers.section("telemetry")?;
    let checked = settings.validate();
    checked.map_err(|why| layers.invalid("telemetry.otlp", why))?;
    Ok(settings)
}

fn build_profiles(layers: &Layers) -> Result<Profiles, ConfigError> {
    const DEFAULT: &str = "default";
    let names = layers.profile_names().into_iter();
    let others = names.filter(|name| name != DEFAULT);
    let rows: Vec<RuleRow> = layers.section("rules")?;
    let names = layers.profile_names().into_iter().collect();
    rules::check_rows(&rows, &names).map_err(|error| invalid_row(layers, &error))?;
    let rules = rules::compile(&rows).map_err(|error| invalid_row(layers, &error))?;
    let others = others.map(|name| build_profile(layers, &name, &rows));
    let mut others = others.collect::<Result<Vec<_>, _>>()?;
    let mut default = build_profile(layers, DEFAULT, &rows)?;
    let model = load_shared_model(layers, std::iter::once(&mut default).chain(&mut others))?;
    let all = || std::iter::once(&default).chain(&others);
    let phrases = all().flat_map(|profile| profile.detect.phrases());
    let reader = TurnAnalyzers {
        phrase_matcher: PhraseMatcher::new(phrases)
            .map_err(|error| layers.invalid("detect", error))?,
        model,
    };
    Ok(Profiles::new(default, others, rules, reader))
}

/// The model that profiles name, which is one for all: turns are read before it
/// is known whose they are.
fn load_shared_model<'a>(
    layers: &Layers,
    profiles: impl Iterator<Item = &'a mut Profile>,
) -> Result<Option<Model>, ConfigError> {
    const KEY: &str = "detect.similar_turns.model";
    let mut known: Option<(String, Model)> = None;
    for profile in profiles {
        let settings = &mut profile.detect.similar_turns.own;
        if settings.model.is_empty() {
            continue;
        }
        let invalid = |why: String| Err(layers.with_profile(&profile.name)?.invalid(KEY, why));
        let (folder, model) = match &known {
            Some(known) => known,
            None => match load_model(Path::new(&settings.model)) {
                Ok(model) => known.insert((settings.model.clone(), model)),
                Err(error) => return invalid(error.to_string()),
            },
        };
        if *folder != settings.model {
            return invalid(format!(
                "one model serves all profiles, and another one names {folder}"
            ));
        }
        settings.measure = Some(model.clone());
    }
    Ok(known.map(|(_, model)| model))
}

fn build_profile(layers: &Layers, name: &str, rows: &[RuleRow]) -> Result<Profile, ConfigError> {
    let layers = layers.with_profile(name)?;
    let ProfileModeSection { mode } = layers.section(&format!("profiles.{name}"))?;
    let detect: detect::Settings = layers.section("detect")?;
    let conflict = |section: &str, key: &str, other: Option<&str>, why: String| {
        let path = |key: &str| format!("{section}.{key}");
        layers.conflict(&path(key), other.map(path).as_deref(), why)
    };
    detect.check().map_err(|(detector, error)| {
        let section = format!("detect.{detector}");
        conflict(&section, error.key, error.other_key, error.why)
    })?;
    let rules = rows.iter().enumerate();
    let rule_settings = rules
        .clone()
        .map(|(position, row)| row.settings(position, name))
        .collect::<Result<_, _>>()
        .map_err(|error| invalid_row(&layers, &error))?;
    let trend: TrendSettings = layers.section("policy")?;
    trend
        .validate()
        .map_err(|error| conflict("policy", error.key, error.other, error.why))?;
    let sections: BTreeMap<String, EscalationSettings> = layers.section("detect")?;
    let ladders = (0..).zip(detect::NAMES).filter_map(|(id, name)| {
        let precedence = detect::precedence(DetectorId(id));
        let section = sections.get(*name)?;
        let ladder = section.to_escalation(name, precedence, trend.trend_half_life_events);
        Some(ladder.map_err(|error| {
            let section = format!("detect.{name}");
            conflict(&section, error.key, error.other, error.why)
        }))
    });
    let rule_ladders = rules.map(|(position, row)| {
        row.ladder(position)
            .map_err(|error| invalid_row(&layers, &error))
    });
    let ladders = ladders.chain(rule_ladders).collect::<Result<_, _>>()?;
    let templates = build_templates(&sections, rows, &layers)?;
    Ok(Profile {
        name: name.into(),
        detect,
        rules: rule_settings,
        policy: policy::Settings {
            trend,
            escalations: ladders,
            shadow: mode == ProfileMode::Shadow,
        },
        templates,
    })
}

fn invalid_row(layers: &Layers, error: &RowError) -> ConfigError {
    layers.conflict(&error.key, error.other.as_deref(), error)
}

/// The texts of the detectors and of the rules.
fn build_templates(
    sections: &BTreeMap<String, EscalationSettings>,
    rows: &[RuleRow],
    layers: &Layers,
) -> Result<Templates, ConfigError> {
    let texts = sections.iter().map(|(name, section)| {
        let texts = [section.pattern.clone(), section.correction.clone()];
        (name.clone(), texts)
    });
    let rule_texts = rows
        .iter()
        .map(|row| (row.detector_name(), row.message_templates()));
    Templates::new(texts.chain(rule_texts)).map_err(|error| {
        let rule = rows
            .iter()
            .position(|row| row.detector_name() == error.detector);
        let key = match rule {
            Some(position) => rules::key_path(position, error.key),
            None => format!("detect.{}.{}", error.detector, error.key),
        };
        layers.invalid(&key, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variable: &str, value: &str, expected: Option<&str>) {
        let variable = [(format!("UNSTUCK__{variable}"), value.to_owned())];
        let layers = Layers::load(DEFAULTS, TABLE_KEYS, None, variable).unwrap();
        let refused = Config::new(&layers).err().map(|error| error.to_string());
        match expected {
            Some(why) => assert!(refused.is_some_and(|error| error.contains(why))),
            None => assert_eq!(refused, None),
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
    fn the_breaker_opens_on_a_share_of_the_sessions() {
        check("BREAKER__SHARE_MAX", "1", None);
        for share in ["0", "-1", "1.01"] {
            check("BREAKER__SHARE_MAX", share, Some("share"));
        }
        check("BREAKER__WINDOW_SECS", "0", Some("at least 1"));
    }

    #[test]
    fn traces_can_only_be_sent_where_they_would_arrive() {
        check("TELEMETRY__OTLP", "http://127.0.0.1:4317", None);
        check("TELEMETRY__OTLP", "https://elsewhere", Some("without TLS"));
    }

    #[test]
    fn a_limit_that_would_be_none_is_refused_with_the_reason() {
        let cases = [
            ("MESSAGE_BYTES_MAX", 67_108_864, "on every stream"),
            ("BATCH_MAX", 1_024, "4 MiB"),
            ("UNREAD_RESPONSES_MAX", 4_096, "256 MiB"),
            ("AGENTS_MAX", 4_096, "one by one"),
            ("EVENT_IDS_MAX", 4_096, "one by one"),
            ("STREAMS_MAX", 81, "82 × 1645056 = 134894592"),
        ];
        for (key, most, why) in cases {
            let key = format!("LIMITS__{key}");
            check(&key, &most.to_string(), None);
            check(&key, &(most + 1).to_string(), Some(why));
            let huge = i64::MAX.to_string();
            check(&key, &huge, Some(&format!("{huge} is more than {most}")));
        }
    }
}
