//! Builds the profiles: for each one, `[detect]`, `[policy]` and `[[rules]]` with the
//! profile's own keys on top, checked together.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use super::{ConfigError, Layers};
use crate::{
    detect,
    domain::DetectorId,
    engine::{Profile, Profiles},
    facts::TurnAnalyzers,
    policy::{self, Escalation, EscalationSettings, Templates, TrendSettings},
    rules::{self, RowError, RuleRow},
    text::{Model, PhraseMatcher, load_model},
};

/// The profile of a session that selects none.
const DEFAULT_PROFILE: &str = "default";

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

pub(super) fn build_profiles(layers: &Layers) -> Result<Profiles, ConfigError> {
    // The rules are compiled once for all profiles.
    let names = layers.profile_names();
    let rows: Vec<RuleRow> = layers.section("rules")?;
    rules::check_rows(&rows, &names.iter().cloned().collect())
        .map_err(|error| invalid_row(layers, &error))?;
    let rules = rules::compile(&rows).map_err(|error| invalid_row(layers, &error))?;

    let mut default = build_profile(layers, DEFAULT_PROFILE, &rows)?;
    let mut others = names
        .iter()
        .filter(|name| *name != DEFAULT_PROFILE)
        .map(|name| build_profile(layers, name, &rows))
        .collect::<Result<Vec<_>, _>>()?;

    // Turns are analysed before the profile of their session is known, so all profiles
    // share one model and one set of phrases.
    let model = load_shared_model(layers, std::iter::once(&mut default).chain(&mut others))?;
    let phrases = std::iter::once(&default)
        .chain(&others)
        .flat_map(|profile| profile.detect.phrases());
    let analyzers = TurnAnalyzers {
        phrase_matcher: PhraseMatcher::new(phrases)
            .map_err(|error| layers.invalid("detect", error))?,
        model,
    };
    Ok(Profiles::new(default, others, rules, analyzers))
}

/// Loads the embedding model that profiles name. They must all name the same one.
fn load_shared_model<'a>(
    layers: &Layers,
    profiles: impl Iterator<Item = &'a mut Profile>,
) -> Result<Option<Model>, ConfigError> {
    const KEY: &str = "detect.similar_turns.model";
    let mut loaded: Option<(String, Model)> = None;
    for profile in profiles {
        let settings = &mut profile.detect.similar_turns.own;
        if settings.model.is_empty() {
            continue;
        }
        let invalid = |why: String| Err(layers.with_profile(&profile.name)?.invalid(KEY, why));
        let (directory, model) = match &loaded {
            Some(loaded) => loaded,
            None => match load_model(Path::new(&settings.model)) {
                Ok(model) => loaded.insert((settings.model.clone(), model)),
                Err(error) => return invalid(error.to_string()),
            },
        };
        if *directory != settings.model {
            return invalid(format!(
                "all profiles share one model, and another profile names {directory}"
            ));
        }
        settings.measure = Some(model.clone());
    }
    Ok(loaded.map(|(_, model)| model))
}

fn build_profile(layers: &Layers, name: &str, rows: &[RuleRow]) -> Result<Profile, ConfigError> {
    let layers = layers.with_profile(name)?;
    let ProfileModeSection { mode } = layers.section(&format!("profiles.{name}"))?;
    // The detectors and the rules.
    let detect: detect::Settings = layers.section("detect")?;
    detect.check().map_err(|(detector, error)| {
        let section = format!("detect.{detector}");
        conflict(&layers, &section, error.key, error.other_key, error.why)
    })?;
    let rules = rows
        .iter()
        .enumerate()
        .map(|(position, row)| row.settings(position, name))
        .collect::<Result<_, _>>()
        .map_err(|error| invalid_row(&layers, &error))?;
    // The policy: what follows when a detector or a rule fires.
    let trend: TrendSettings = layers.section("policy")?;
    trend
        .validate()
        .map_err(|error| conflict(&layers, "policy", error.key, error.other, error.why))?;
    let sections: BTreeMap<String, EscalationSettings> = layers.section("detect")?;
    let escalations = build_escalations(&layers, &sections, rows, &trend)?;
    let templates = build_templates(&layers, &sections, rows)?;
    Ok(Profile {
        name: name.into(),
        detect,
        rules,
        policy: policy::Settings {
            trend,
            escalations,
            shadow: mode == ProfileMode::Shadow,
        },
        templates,
    })
}

/// The actions of the detectors, then those of the rules, by their ids.
fn build_escalations(
    layers: &Layers,
    sections: &BTreeMap<String, EscalationSettings>,
    rows: &[RuleRow],
    trend: &TrendSettings,
) -> Result<Vec<Escalation>, ConfigError> {
    let half_life = trend.trend_half_life_events;
    let detectors = (0..).zip(detect::NAMES).filter_map(|(id, name)| {
        let precedence = detect::precedence(DetectorId(id));
        let escalation = sections
            .get(*name)?
            .to_escalation(name, precedence, half_life);
        Some(escalation.map_err(|error| {
            let section = format!("detect.{name}");
            conflict(layers, &section, error.key, error.other, error.why)
        }))
    });
    let rules = rows.iter().enumerate().map(|(position, row)| {
        row.ladder(position)
            .map_err(|error| invalid_row(layers, &error))
    });
    detectors.chain(rules).collect()
}

/// The messages of the detectors and of the rules.
fn build_templates(
    layers: &Layers,
    sections: &BTreeMap<String, EscalationSettings>,
    rows: &[RuleRow],
) -> Result<Templates, ConfigError> {
    let detectors = sections.iter().map(|(name, section)| {
        let texts = [section.pattern.clone(), section.correction.clone()];
        (name.clone(), texts)
    });
    let rules = rows
        .iter()
        .map(|row| (row.detector_name(), row.message_templates()));
    Templates::new(detectors.chain(rules)).map_err(|error| {
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

/// The error for a key of a section that contradicts another key of it.
fn conflict(
    layers: &Layers,
    section: &str,
    key: &str,
    other: Option<&str>,
    why: String,
) -> ConfigError {
    let other_path = other.map(|other| format!("{section}.{other}"));
    layers.conflict(&format!("{section}.{key}"), other_path.as_deref(), why)
}

fn invalid_row(layers: &Layers, error: &RowError) -> ConfigError {
    layers.conflict(&error.key, error.other.as_deref(), error)
}
