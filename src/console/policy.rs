//! The policy in force, and what it did.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};

use super::{
    Console,
    calls::{parsed, path},
    refusal::{Answer, Json, Refusal},
    tally::{HOURS, Kind, Tally},
};
use crate::engine::Profile;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Question {
    /// Of how many hours, up to now.
    hours: u64,
}

impl Default for Question {
    fn default() -> Self {
        Self { hours: HOURS }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Policy {
    /// What was done is counted over these.
    hours: u64,
    profiles: Vec<InForce>,
}

/// A profile.
#[derive(Debug, Serialize)]
struct InForce {
    name: String,
    shadow: bool,
    alpha: f64,
    saturation: f64,
    cooldown: u32,
    detectors: Vec<Detector>,
}

#[derive(Debug, Serialize)]
struct Detector {
    name: String,
    enabled: bool,
    soft: &'static str,
    hard: &'static str,
    last: &'static str,
    /// 0: never.
    terminate_after: u32,
    window: u32,
    rule: String,
    threshold: String,
    quiet: String,
    /// How often it asked for which action, and was to be heeded.
    did: BTreeMap<&'static str, u32>,
    /// How often it would have: in shadow mode, or while a session was snoozed.
    would: BTreeMap<&'static str, u32>,
}

pub(super) async fn policy(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Policy> {
    let tenant = console.admit(&headers, &path("ListVerdicts"))?.tenant;
    let Question { hours } = parsed(&headers, &body)?;
    if !(1..=HOURS).contains(&hours) {
        let told = format!("hours: from 1 to {HOURS}");
        let status = StatusCode::BAD_REQUEST;
        return Err(Refusal::new(status, "FIELD_INVALID", told));
    }
    let engine = console.engine.clone();
    let look = |tally: &Tally, now| {
        let kinds = tally.kinds(&tenant, hours, now);
        let profiles = engine.profiles();
        let all = profiles.all();
        all.map(|profile| in_force(profile, &kinds)).collect()
    };
    let profiles = console.tallied(look).await?;
    Ok(Json(Policy { hours, profiles }))
}

fn in_force(profile: &Profile, kinds: &BTreeMap<&Kind, u32>) -> InForce {
    let policy = &profile.policy;
    let own = |kind: &Kind| kind.profile == profile.name;
    let kinds: Vec<_> = kinds.iter().filter(|(kind, _)| own(kind)).collect();
    let detectors = policy.ladders.iter().map(|ladder| {
        let explained = profile.explain(&ladder.name);
        let explained = explained.as_ref();
        let times = |shadow: bool| {
            let own = kinds.iter();
            let own = own.filter(|(kind, _)| kind.detector == ladder.name && kind.shadow == shadow);
            own.filter_map(|(kind, times)| Some((kind.action?.name(), **times)))
                .collect()
        };
        Detector {
            name: ladder.name.to_string(),
            enabled: ladder.enabled,
            soft: ladder.soft.name(),
            hard: ladder.hard.name(),
            last: ladder.last.name(),
            terminate_after: ladder.terminate_after,
            window: ladder.window,
            rule: explained.map(|it| it.rule.to_owned()).unwrap_or_default(),
            threshold: explained.map(|it| it.threshold.clone()).unwrap_or_default(),
            quiet: explained.map(|it| it.quiet.to_owned()).unwrap_or_default(),
            did: times(false),
            would: times(true),
        }
    });
    InForce {
        name: profile.name.to_string(),
        shadow: policy.shadow,
        alpha: policy.trend.alpha,
        saturation: policy.trend.saturation,
        cooldown: policy.trend.cooldown,
        detectors: detectors.collect(),
    }
}
