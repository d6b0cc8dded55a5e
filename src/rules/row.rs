//! A row of `[[rules]]`: its keys, defaults and checks, and the settings derived from
//! it for the counts, the policy and the message templates.

use std::collections::BTreeSet;

use serde::Deserialize;
use thiserror::Error;

use super::{RuleSettings, RuleText, Rules};
use crate::{
    detect::{self, RULE_PREFIX, RULES_MAX},
    domain::{Action, DetectorId},
    policy::{Escalation, EscalationSettings},
};

/// A row of `[[rules]]`. Missing keys have the defaults below.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleRow {
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

impl RuleRow {
    /// The keys of a row.
    pub const KEYS: &[&str] = &[
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
}

/// One event is enough unless the rule sets `count`.
fn once() -> u32 {
    1
}

/// The widest window of the built-in detectors.
fn window() -> u32 {
    30
}

/// Like most detectors.
fn soft() -> Action {
    Action::Warn
}

fn hard() -> Action {
    Action::Escalate
}

/// A row that is rejected.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct RowError {
    /// The path of the key, as `rules[0].name`.
    pub key: String,
    /// The path of another key that it conflicts with.
    pub other: Option<String>,
    pub why: String,
}

impl RowError {
    fn new(key: String, why: impl Into<String>) -> Self {
        Self {
            key,
            other: None,
            why: why.into(),
        }
    }
}

/// Names are metric labels.
const NAME_BYTES_MAX: usize = 64;

/// Checks the number of rows, their names and the profiles they name.
pub fn check_rows(rows: &[RuleRow], profiles: &BTreeSet<String>) -> Result<(), RowError> {
    if rows.len() > RULES_MAX {
        let why = format!("{} rules, at most {RULES_MAX}", rows.len());
        return Err(RowError::new("rules".to_owned(), why));
    }
    let mut names = BTreeSet::new();
    for (position, row) in rows.iter().enumerate() {
        let invalid = |key: &str, why: String| Err(RowError::new(key_path(position, key), why));
        let is_label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if row.name.is_empty() || !row.name.bytes().all(is_label) {
            let why = "a name is lower-case letters, digits and `_`";
            return invalid("name", why.to_owned());
        }
        if row.name.len() > NAME_BYTES_MAX {
            return invalid("name", format!("longer than {NAME_BYTES_MAX} letters"));
        }
        if !names.insert(&row.name) {
            return invalid("name", format!("another rule is called {:?}", row.name));
        }
        if let Some(unknown) = row.profiles.difference(profiles).next() {
            return invalid("profiles", format!("there is no profile {unknown:?}"));
        }
    }
    Ok(())
}

/// Compiles the expressions of all rows.
pub fn compile(rows: &[RuleRow]) -> Result<Rules, RowError> {
    let texts = rows.iter().map(|row| RuleText {
        name: &row.name,
        when: &row.when,
        key: &row.key,
        reset_when: &row.reset_when,
    });
    Rules::new(texts)
        .map_err(|error| RowError::new(key_path(error.rule, error.key), error.to_string()))
}

/// The path of a key of a row.
pub fn key_path(position: usize, key: &str) -> String {
    format!("rules[{position}].{key}")
}

impl RuleRow {
    /// The name under which it appears among the detectors.
    pub fn detector_name(&self) -> String {
        format!("{RULE_PREFIX}{}", self.name)
    }

    /// How the rule counts in sessions of this profile.
    pub fn settings(&self, position: usize, profile: &str) -> Result<RuleSettings, RowError> {
        let settings = RuleSettings {
            enabled: self.profiles.is_empty() || self.profiles.contains(profile),
            count: self.count,
            window: self.window,
            consecutive: self.consecutive,
        };
        settings.check().map_err(|error| RowError {
            key: key_path(position, error.key),
            other: error.other_key.map(|other| key_path(position, other)),
            why: error.why,
        })?;
        Ok(settings)
    }

    /// The escalation ladder of the rule.
    pub fn ladder(&self, position: usize) -> Result<Escalation, RowError> {
        let settings = EscalationSettings {
            enabled: true,
            count: self.count,
            window: Some(self.window),
            soft: self.soft,
            hard: self.hard,
            final_action: None,
            warn_share: None,
            terminate_after: self.terminate_after,
            pattern: String::new(),
            correction: String::new(),
        };
        let id = DetectorId((detect::NAMES.len() + position) as u8);
        let ladder =
            settings.to_escalation(&self.detector_name(), detect::precedence(id), self.window);
        ladder.map_err(|error| RowError {
            key: key_path(position, error.key),
            other: error.other.map(|other| key_path(position, other)),
            why: error.why,
        })
    }

    /// The templates of its verdicts: the pattern for a person and the correction for
    /// the agent.
    pub fn message_templates(&self) -> [String; 2] {
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
