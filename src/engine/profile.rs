//! Profiles: named settings of the detectors and the policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    detect,
    domain::{DetectorExplanation, DetectorId, Evidence, RepetitionSettings},
    facts::TurnAnalyzers,
    policy::{self, Templates},
    rules::{RuleSettings, Rules},
};

/// The settings of the detectors and the policy. A session selects its profile by
/// name.
#[derive(Debug)]
pub struct Profile {
    pub name: Arc<str>,
    pub detect: detect::Settings,
    /// `[[rules]]`, in their order.
    pub rules: Vec<RuleSettings>,
    pub policy: policy::Settings,
    pub templates: Templates,
}

impl Profile {
    pub fn detector_name(&self, id: DetectorId) -> Arc<str> {
        let escalation = self.policy.escalations.get(id.index());
        escalation.map_or_else(Arc::default, |escalation| escalation.name.clone())
    }

    /// Explains when the detector or rule of this name fires; with the evidence of its
    /// verdicts, why it fired.
    pub fn explain(&self, name: &str, evidence: &[&Evidence]) -> Option<DetectorExplanation> {
        self.detect.explain(name, evidence).or_else(|| {
            let mut escalations = self.policy.escalations.iter();
            let id = escalations.position(|escalation| *escalation.name == *name)?;
            let rule = id.checked_sub(detect::NAMES.len())?;
            self.rules.get(rule).map(RuleSettings::explain)
        })
    }

    /// The id of the first rule, and the settings of all rules.
    pub fn rules(&self) -> (u8, &[RuleSettings]) {
        (detect::NAMES.len() as u8, &self.rules)
    }

    /// Whether the budget or rules need events that no other detector uses.
    pub fn has_budget_or_rules(&self) -> bool {
        !self.rules.is_empty() || self.detect.has_caps()
    }

    /// When a text that repeats itself is a loop; `None`: the detector is disabled.
    pub fn repeat_settings(&self) -> Option<&RepetitionSettings> {
        let section = &self.detect.repetition;
        section.enabled.then_some(&section.own)
    }
}

/// All profiles; `default` is always among them.
#[derive(Debug)]
pub struct Profiles {
    default: Arc<Profile>,
    others: BTreeMap<Arc<str>, Arc<Profile>>,
    rules: Arc<Rules>,
    analyzers: Arc<TurnAnalyzers>,
}

impl Profiles {
    /// `analyzers` match the phrases of all profiles.
    pub fn new(
        default: Profile,
        others: impl IntoIterator<Item = Profile>,
        rules: Rules,
        analyzers: TurnAnalyzers,
    ) -> Self {
        Self {
            default: Arc::new(default),
            others: others
                .into_iter()
                .map(|profile| (profile.name.clone(), Arc::new(profile)))
                .collect(),
            rules: Arc::new(rules),
            analyzers: Arc::new(analyzers),
        }
    }

    pub fn analyzers(&self) -> &Arc<TurnAnalyzers> {
        &self.analyzers
    }

    pub fn default(&self) -> &Arc<Profile> {
        &self.default
    }

    /// The rules, which all profiles share.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// The names of all detectors and rules, by their ids.
    pub fn detector_names(&self) -> impl Iterator<Item = &str> {
        let escalations = self.default.policy.escalations.iter();
        escalations.map(|escalation| &*escalation.name)
    }

    /// The profile of this name; the default if the name is empty.
    pub fn get(&self, name: &str) -> Option<Arc<Profile>> {
        if name.is_empty() || name == &*self.default.name {
            return Some(self.default.clone());
        }
        self.others.get(name).cloned()
    }

    /// The default first.
    pub fn all(&self) -> impl Iterator<Item = &Profile> {
        let all = std::iter::once(&self.default).chain(self.others.values());
        all.map(|profile| &**profile)
    }

    /// The profile of this name, or the default if a reload removed it.
    pub fn get_or_default(&self, name: &str) -> Arc<Profile> {
        self.get(name).unwrap_or_else(|| self.default.clone())
    }

    /// The directories of the embedding models.
    pub fn model_dirs(&self) -> BTreeSet<&str> {
        self.all()
            .map(|profile| profile.detect.similar_turns.own.model.as_str())
            .collect()
    }

    pub fn join_names(&self) -> String {
        let others = self.others.keys().map(|name| &**name);
        let names: Vec<&str> = std::iter::once(&*self.default.name).chain(others).collect();
        names.join(", ")
    }
}
