use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    detect,
    domain::{DetectorExplanation, DetectorId, RepetitionSettings},
    facts::TurnAnalyzers,
    policy::{self, Templates},
    rules::{RuleSettings, Rules},
};

/// How a session is watched. A session picks its profile by name.
#[derive(Debug)]
pub struct Profile {
    pub name: Arc<str>,
    pub detect: detect::Settings,
    /// Of `[[rules]]`, in their order.
    pub rules: Vec<RuleSettings>,
    pub policy: policy::Settings,
    pub templates: Templates,
}

impl Profile {
    /// The detector's name.
    pub fn detector_name(&self, id: DetectorId) -> Arc<str> {
        let ladder = self.policy.escalations.get(id.index());
        ladder.map(|ladder| ladder.name.clone()).unwrap_or_default()
    }

    /// Why the detector or rule of this name fires.
    pub fn explain(&self, name: &str) -> Option<DetectorExplanation> {
        let rule = || {
            let mut ladders = self.policy.escalations.iter();
            let id = ladders.position(|ladder| *ladder.name == *name)?;
            let rule = id.checked_sub(detect::NAMES.len())?;
            self.rules.get(rule).map(RuleSettings::explain)
        };
        self.detect.explain(name).or_else(rule)
    }

    /// The rules' settings, and the id of the first.
    pub fn rules(&self) -> (u8, &[RuleSettings]) {
        (detect::NAMES.len() as u8, &self.rules)
    }

    /// Whether budget or rules must see events that no other detector looks at.
    pub fn looks_aside(&self) -> bool {
        !self.rules.is_empty() || self.detect.has_caps()
    }

    /// What makes a text that repeats itself a loop; `None`: nobody asks.
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
    reader: Arc<TurnAnalyzers>,
}

impl Profiles {
    /// `reader` listens for the phrases of all of them.
    pub fn new(
        default: Profile,
        others: impl IntoIterator<Item = Profile>,
        rules: Rules,
        reader: TurnAnalyzers,
    ) -> Self {
        let with_name = |profile: Profile| (profile.name.clone(), Arc::new(profile));
        Self {
            default: Arc::new(default),
            others: others.into_iter().map(with_name).collect(),
            rules: Arc::new(rules),
            reader: Arc::new(reader),
        }
    }

    pub fn reader(&self) -> &Arc<TurnAnalyzers> {
        &self.reader
    }

    pub fn default(&self) -> &Arc<Profile> {
        &self.default
    }

    /// The operator's rules, which all profiles share.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// The names of all detectors and rules, by their ids.
    pub fn detector_names(&self) -> impl Iterator<Item = &str> {
        let ladders = self.default.policy.escalations.iter();
        ladders.map(|ladder| &*ladder.name)
    }

    /// The profile of that name; the default where it is empty.
    pub fn get(&self, name: &str) -> Option<Arc<Profile>> {
        if name.is_empty() || name == &*self.default.name {
            return Some(self.default.clone());
        }
        self.others.get(name).cloned()
    }

    /// Each of them, the default first.
    pub fn all(&self) -> impl Iterator<Item = &Profile> {
        let all = std::iter::once(&self.default).chain(self.others.values());
        all.map(|profile| &**profile)
    }

    /// The profile of that name, or the default where there is none any more.
    pub fn get_or_default(&self, name: &str) -> Arc<Profile> {
        self.get(name).unwrap_or_else(|| self.default.clone())
    }

    /// The folders of the models that turns are compared by.
    pub fn model_folders(&self) -> BTreeSet<&str> {
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
