//! `[[rules]]`: the operator's own detectors. A row has a part for each who goes
//! by it; here they are taken apart and handed out.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{ConfigError, Layers};
use crate::{
    detect::{self, RULE_PREFIX, RULES_MAX, RuleSettings},
    domain::{Action, DetectorId},
    facts::{RuleText, Rules},
    policy::{Ladder, LadderSettings},
};

/// A row of `[[rules]]`. What is left out has these defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleRow {
    name: String,
    when: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    reset_when: String,
    #[serde(default = "once")]
    count: u32,
    #[serde(default = "window")]
    window: u32,
    #[serde(default)]
    consecutive: bool,
    #[serde(default = "soft")]
    soft: Action,
    #[serde(default = "hard")]
    hard: Action,
    #[serde(default)]
    terminate_after: u32,
    pattern: Option<String>,
    correction: Option<String>,
    /// Empty: all.
    #[serde(default)]
    profiles: BTreeSet<String>,
}

/// The keys of a row.
pub(super) const KEYS: &[&str] = &[
    "name",
    "when",
    "key",
    "reset_when",
    "count",
    "window",
    "consecutive",
    "soft",
    "hard",
    "terminate_after",
    "pattern",
    "correction",
    "profiles",
];

/// One event is enough unless the rule says how many.
fn once() -> u32 {
    1
}

/// As far back as the widest built-in detectors look.
fn window() -> u32 {
    30
}

/// As most detectors.
fn soft() -> Action {
    Action::Warn
}

fn hard() -> Action {
    Action::Escalate
}

/// Names are metric labels.
const NAME_BYTES_MAX: usize = 64;

/// The rows, with names that are fit to be metric labels.
pub(super) fn rows(layers: &Layers) -> Result<Vec<RuleRow>, ConfigError> {
    let rows: Vec<RuleRow> = layers.section("rules")?;
    if rows.len() > RULES_MAX {
        let why = format!("{} rules, at most {RULES_MAX}", rows.len());
        return Err(layers.invalid("rules", why));
    }
    let profiles: BTreeSet<String> = layers.profiles().into_iter().collect();
    let mut names = BTreeSet::new();
    for (position, row) in rows.iter().enumerate() {
        let refused = |key: &str, why: String| Err(layers.invalid(&path(position, key), why));
        let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if row.name.is_empty() || !row.name.bytes().all(letter) {
            return refused(
                "name",
                "a name is lower-case letters, digits and `_`".to_owned(),
            );
        }
        if row.name.len() > NAME_BYTES_MAX {
            return refused("name", format!("longer than {NAME_BYTES_MAX} letters"));
        }
        if !names.insert(&row.name) {
            return refused("name", format!("another rule is called {:?}", row.name));
        }
        if let Some(unknown) = row.profiles.difference(&profiles).next() {
            return refused("profiles", format!("there is no profile {unknown:?}"));
        }
    }
    Ok(rows)
}

/// The expressions, compiled.
pub(super) fn compile(rows: &[RuleRow], layers: &Layers) -> Result<Rules, ConfigError> {
    let texts = rows.iter().map(|row| RuleText {
        name: &row.name,
        when: &row.when,
        key: &row.key,
        reset_when: &row.reset_when,
    });
    Rules::new(texts).map_err(|error| layers.invalid(&path(error.rule, error.key), &error))
}

/// Where a key of a row stands.
pub(super) fn path(position: usize, key: &str) -> String {
    format!("rules[{position}].{key}")
}

impl RuleRow {
    /// Its name among the detectors.
    pub fn detector(&self) -> String {
        format!("{RULE_PREFIX}{}", self.name)
    }

    /// How it counts in sessions of a profile.
    pub fn settings(
        &self,
        position: usize,
        profile: &str,
        layers: &Layers,
    ) -> Result<RuleSettings, ConfigError> {
        let settings = RuleSettings {
            enabled: self.profiles.is_empty() || self.profiles.contains(profile),
            count: self.count,
            window: self.window,
            consecutive: self.consecutive,
        };
        settings.check().map_err(|futile| {
            let other = futile.other.map(|other| path(position, other));
            layers.disagree(&path(position, futile.key), other.as_deref(), futile.why)
        })?;
        Ok(settings)
    }

    /// What follows when it fires.
    pub fn ladder(&self, position: usize, layers: &Layers) -> Result<Ladder, ConfigError> {
        let settings = LadderSettings {
            enabled: true,
            count: self.count,
            window: self.window,
            soft: self.soft,
            hard: self.hard,
            last: None,
            terminate_after: self.terminate_after,
            pattern: String::new(),
            correction: String::new(),
        };
        let id = DetectorId((detect::NAMES.len() + position) as u8);
        let ladder = settings.ladder(&self.detector(), detect::precedence(id));
        ladder.map_err(|error| {
            let other = error.other.map(|other| path(position, other));
            layers.disagree(&path(position, error.key), other.as_deref(), error.why)
        })
    }

    /// What is said when it fires: for a person, and to the agent.
    pub fn texts(&self) -> [String; 2] {
        let name = &self.name;
        let pattern = format!(
            "the rule {name} has matched {{{{ count }}}} {{% if count == 1 %}}time{{% else \
             %}}times{{% endif %}}{{% if target or tool %}}: {{{{ target or tool }}}}{{% endif %}}"
        );
        let correction = format!(
            "What you have just done meets a rule that this session is watched by, \"{name}\". Do \
             not do it again: take another way, or say what blocks you."
        );
        [
            self.pattern.clone().unwrap_or(pattern),
            self.correction.clone().unwrap_or(correction),
        ]
    }
}
