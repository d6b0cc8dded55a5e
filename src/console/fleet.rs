//! The sessions, worst first, one page at a time.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;

use super::{
    Console,
    calls::{parse_body, path},
    http_error::{HttpError, Json, JsonResult},
};
use crate::{
    domain::{Action, RestoredSummary, SessionStatus, Tenant, clock},
    engine::FleetFilter,
    pb,
};

/// The filters and the page of a query.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FleetQuery {
    /// A status name. Empty: any.
    status: String,
    /// Words that must all match.
    search: String,
    detector: String,
    /// An action name: this action or a stronger one. Empty: any.
    min_action: String,
    skip: usize,
    limit: usize,
}

impl Default for FleetQuery {
    fn default() -> Self {
        Self {
            status: String::new(),
            search: String::new(),
            detector: String::new(),
            min_action: String::new(),
            skip: 0,
            limit: 50,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct FleetPage {
    sessions: Vec<pb::Session>,
    /// The number of matching sessions by status.
    counts: BTreeMap<String, usize>,
    /// Since when the fleet is known. Absent: nothing was restored at the start.
    data: Option<DataSince>,
}

/// The last restart, as the page shows it. Times are milliseconds since 1970.
#[derive(Debug, Serialize)]
struct DataSince {
    data_since_ms: u64,
    started_ms: u64,
    /// Restored sessions. Absent with tokens, because they are of all tenants.
    restored: Option<KeptSessions>,
}

#[derive(Debug, Serialize)]
struct KeptSessions {
    whole: usize,
    partial: usize,
    lost: usize,
}

impl DataSince {
    fn new(summary: &RestoredSummary, with_counts: bool) -> Self {
        let RestoredSummary {
            started_at,
            data_since,
            whole,
            partial,
            lost,
        } = *summary;
        Self {
            data_since_ms: clock::millis(data_since),
            started_ms: clock::millis(started_at),
            restored: with_counts.then_some(KeptSessions {
                whole,
                partial,
                lost,
            }),
        }
    }
}

/// Bounds what a browser has to draw.
const PAGE_ROWS_MAX: usize = 200;
/// Bounds the part of the fleet that is sorted. Further down, users search.
const SKIP_MAX: usize = 20_000;
const SEARCH_BYTES_MAX: usize = 512;

pub(super) async fn list_fleet(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<FleetPage> {
    let caller = console.admit(&headers, &path("ListSessions"))?;
    let query: FleetQuery = parse_body(&headers, &body)?;
    let with_counts = !console.deps.auth.is_on();
    let restored = console.deps.engine.restored_summary();
    let data = restored.map(|summary| DataSince::new(&summary, with_counts));
    let (skip, limit) = (query.skip, query.limit.min(PAGE_ROWS_MAX));
    let filter = build_filter(caller.tenant, query)?;
    let metadata = MetadataMap::from_headers(headers);
    let api = &console.deps.api;
    let ranked = api.rank_fleet(filter, (skip, limit), &metadata).await?;
    let rows = ranked.sessions.into_iter().map(summarize_session);
    Ok(Json(FleetPage {
        sessions: rows.collect(),
        counts: ranked.counts.into_iter().collect(),
        data,
    }))
}

fn build_filter(tenant: Tenant, query: FleetQuery) -> Result<FleetFilter, HttpError> {
    let mut statuses = SessionStatus::ALL.into_iter();
    let status = match query.status.as_str() {
        "" => None,
        name => match statuses.find(|status| status.name() == name) {
            Some(status) => Some(status),
            None => return invalid_field("status", format!("{name:?} is not a status")),
        },
    };
    let min_action = match query.min_action.as_str() {
        "" => None,
        name => match name.parse::<Action>() {
            Ok(action) => Some(action),
            Err(error) => return invalid_field("min_action", error.to_string()),
        },
    };
    if query.search.len() > SEARCH_BYTES_MAX {
        return invalid_field("search", format!("at most {SEARCH_BYTES_MAX} bytes"));
    }
    if query.skip > SKIP_MAX {
        return invalid_field("skip", format!("at most {SKIP_MAX}; use a search instead"));
    }
    let words = query.search.to_lowercase();
    Ok(FleetFilter {
        tenant,
        status,
        words: words.split_whitespace().map(str::to_owned).collect(),
        detector: query.detector,
        min_action,
    })
}

fn invalid_field<T>(field: &str, why: String) -> Result<T, HttpError> {
    let message = format!("{field}: {why}");
    Err(HttpError::new(
        StatusCode::BAD_REQUEST,
        "FIELD_INVALID",
        message,
    ))
}

/// Removes what a row of the table does not show: all verdicts but the last, and
/// their details.
fn summarize_session(mut session: pb::Session) -> pb::Session {
    let last = session.last_verdicts.pop();
    session.last_verdicts = last.map(summarize_verdict).into_iter().collect();
    session.termination = session.termination.map(summarize_verdict);
    session.abstentions.clear();
    session
}

fn summarize_verdict(verdict: pb::Verdict) -> pb::Verdict {
    pb::Verdict {
        correction: String::new(),
        members: Vec::new(),
        evidence: None,
        ..verdict
    }
}
