//! Parses the requests of operators: reasons, labels, filters and snoozes.

use std::time::Duration;

use super::{InvalidArgument, TOOL_BYTES_MAX, parse_enum, parse_session_id, with_max_len};
use crate::{
    domain::{Action, Labels, SessionStatus, Tenant, VerdictId},
    feed::VerdictFilter,
    pb,
};

const REASON_BYTES_MAX: usize = 1_024;
/// For a longer time, use the profile `lenient` or mode `shadow`.
const SNOOZE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The labels of a session.
pub const LABELS_MAX: usize = 16;
pub const LABEL_KEY_BYTES_MAX: usize = 64;
pub const LABEL_VALUE_BYTES_MAX: usize = 256;

/// Parses an operator's reason, which must not be empty.
pub(in crate::api) fn parse_reason(reason: String) -> Result<String, InvalidArgument> {
    if reason.trim().is_empty() {
        return Err(InvalidArgument::missing("reason"));
    }
    parse_optional_reason(reason)
}

pub(in crate::api) fn parse_optional_reason(reason: String) -> Result<String, InvalidArgument> {
    with_max_len("reason", reason, REASON_BYTES_MAX)
}

pub(in crate::api) fn parse_labels(
    labels: impl IntoIterator<Item = (String, String)>,
) -> Result<Labels, InvalidArgument> {
    let labels: Labels = labels.into_iter().collect();
    if labels.len() > LABELS_MAX {
        let why = format!(
            "has {} entries, at most {LABELS_MAX} are allowed",
            labels.len()
        );
        return Err(InvalidArgument::new("labels", why));
    }
    for (key, value) in &labels {
        if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX {
            let why = format!(
                "a key has {} bytes, not 1 to {LABEL_KEY_BYTES_MAX}",
                key.len()
            );
            return Err(InvalidArgument::new("labels", why));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX {
            let why = format!(
                "a value has {} bytes, at most {LABEL_VALUE_BYTES_MAX} are allowed",
                value.len()
            );
            return Err(InvalidArgument::new("labels", why));
        }
    }
    Ok(labels)
}

pub(in crate::api) fn parse_status(status: i32) -> Result<Option<SessionStatus>, InvalidArgument> {
    Ok(match parse_enum::<pb::SessionStatus>("status", status)? {
        pb::SessionStatus::Unspecified => None,
        pb::SessionStatus::Active => Some(SessionStatus::Active),
        pb::SessionStatus::Looping => Some(SessionStatus::Looping),
        pb::SessionStatus::Terminated => Some(SessionStatus::Terminated),
        pb::SessionStatus::Ended => Some(SessionStatus::Ended),
        pb::SessionStatus::Quarantined => Some(SessionStatus::Quarantined),
    })
}

fn parse_action(field: &str, action: i32) -> Result<Option<Action>, InvalidArgument> {
    Ok(match parse_enum::<pb::Action>(field, action)? {
        pb::Action::Unspecified => None,
        pb::Action::Alert => Some(Action::Alert),
        pb::Action::Warn => Some(Action::Warn),
        pb::Action::Throttle => Some(Action::Throttle),
        pb::Action::Checkpoint => Some(Action::Checkpoint),
        pb::Action::Ask => Some(Action::Ask),
        pb::Action::Block => Some(Action::Block),
        pb::Action::Break => Some(Action::Break),
        pb::Action::Escalate => Some(Action::Escalate),
        pb::Action::Terminate => Some(Action::Terminate),
    })
}

/// Parses the filter of a watch, and the verdict after which it resumes.
pub(in crate::api) fn parse_watch(
    tenant: &Tenant,
    request: pb::WatchVerdictsRequest,
) -> Result<(VerdictFilter, Option<VerdictId>), InvalidArgument> {
    let pb::WatchVerdictsRequest {
        session_id,
        labels,
        detector,
        min_action,
        after_verdict_id,
    } = request;
    let after = match after_verdict_id.as_str() {
        "" => None,
        id => Some(VerdictId::parse(id).ok_or_else(|| {
            InvalidArgument::new("after_verdict_id", "is not the id of a verdict")
        })?),
    };
    let filter = VerdictFilter {
        tenant: Some(tenant.clone()),
        session: (!session_id.is_empty())
            .then(|| parse_session_id(tenant, &session_id))
            .transpose()?,
        labels: parse_labels(labels)?,
        detector: with_max_len("detector", detector, TOOL_BYTES_MAX)?,
        min_action: parse_action("min_action", min_action)?,
        start: None,
        end: None,
        rated_only: false,
    };
    Ok((filter, after))
}

pub(in crate::api) fn parse_snooze_duration(
    duration: Option<pbjson_types::Duration>,
) -> Result<Duration, InvalidArgument> {
    let pbjson_types::Duration { seconds, nanos } =
        duration.ok_or_else(|| InvalidArgument::missing("duration"))?;
    let seconds = u64::try_from(seconds).ok();
    let nanos = u32::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    let duration = seconds
        .zip(nanos)
        .map(|(secs, nanos)| Duration::new(secs, nanos));
    duration
        .filter(|duration| (Duration::from_millis(1)..=SNOOZE_MAX).contains(duration))
        .ok_or_else(|| InvalidArgument::new("duration", "must be more than 0 and at most 7 days"))
}
