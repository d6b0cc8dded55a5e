//! The policy in force, and the verdicts it led to.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};

use super::{
    Console,
    calls::{parse_body, path},
    http_error::{HttpError, Json, JsonResult},
    verdict_counts::{HOURS_MAX, VerdictKind},
};
use crate::engine::Profile;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PolicyQuery {
    /// The counts cover the last hours.
    hours: u64,
}

impl Default for PolicyQuery {
    fn default() -> Self {
        Self { hours: HOURS_MAX }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    /// The counts cover the last hours.
    hours: u64,
    profiles: Vec<ProfileReport>,
}

#[derive(Debug, Serialize)]
struct ProfileReport {
    name: String,
    shadow: bool,
    alpha: f64,
    saturation: f64,
    cooldown: u32,
    detectors: Vec<DetectorReport>,
}

#[derive(Debug, Serialize)]
struct DetectorReport {
    name: String,
    enabled: bool,
    soft: &'static str,
    hard: &'static str,
    final_action: &'static str,
    /// 0: the detector never terminates.
    terminate_after: u32,
    trend_half_life_events: u32,
    rule: String,
    threshold: String,
    would_not_fire_if: String,
    /// Verdicts by action, to be acted on.
    verdicts: BTreeMap<&'static str, u32>,
    /// Shadow verdicts by action: in shadow mode, or of snoozed sessions.
    shadow_verdicts: BTreeMap<&'static str, u32>,
}

pub(super) async fn get_policy(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<PolicyReport> {
    let tenant = console.admit(&headers, &path("ListVerdicts"))?.tenant;
    let PolicyQuery { hours } = parse_body(&headers, &body)?;
    if !(1..=HOURS_MAX).contains(&hours) {
        let message = format!("hours: from 1 to {HOURS_MAX}");
        let status = StatusCode::BAD_REQUEST;
        return Err(HttpError::new(status, "FIELD_INVALID", message));
    }
    let engine = console.deps.engine.clone();
    let profiles = console
        .with_verdict_counts(|counts, now| {
            let kinds = counts.counts_by_kind(&tenant, hours, now);
            let profiles = engine.profiles();
            profiles
                .all()
                .map(|profile| report_profile(profile, &kinds))
                .collect()
        })
        .await?;
    Ok(Json(PolicyReport { hours, profiles }))
}

fn report_profile(profile: &Profile, kinds: &BTreeMap<&VerdictKind, u32>) -> ProfileReport {
    let policy = &profile.policy;
    let own_kinds: Vec<_> = kinds
        .iter()
        .filter(|(kind, _)| kind.profile == profile.name)
        .collect();
    let detectors = policy.escalations.iter().map(|ladder| {
        let explanation = profile.explain(&ladder.name, &[]);
        let explained = explanation.as_ref();
        let counts_by_action = |shadow: bool| {
            own_kinds
                .iter()
                .filter(|(kind, _)| kind.detector == ladder.name && kind.shadow == shadow)
                .filter_map(|(kind, times)| Some((kind.action?.name(), **times)))
                .collect()
        };
        DetectorReport {
            name: ladder.name.to_string(),
            enabled: ladder.enabled,
            soft: ladder.soft.name(),
            hard: ladder.hard.name(),
            final_action: ladder.final_action.name(),
            terminate_after: ladder.terminate_after,
            trend_half_life_events: ladder.trend_half_life_events,
            rule: explained.map(|it| it.rule.to_owned()).unwrap_or_default(),
            threshold: explained.map(|it| it.threshold.clone()).unwrap_or_default(),
            would_not_fire_if: explained
                .map(|it| it.would_not_fire_if.to_owned())
                .unwrap_or_default(),
            verdicts: counts_by_action(false),
            shadow_verdicts: counts_by_action(true),
        }
    });
    ProfileReport {
        name: profile.name.to_string(),
        shadow: policy.shadow,
        alpha: policy.trend.alpha,
        saturation: policy.trend.saturation,
        cooldown: policy.trend.cooldown,
        detectors: detectors.collect(),
    }
}
