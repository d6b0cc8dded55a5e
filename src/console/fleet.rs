//! The sessions, the worst first, a page at a time.

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
};
use crate::{
    domain::{Action, SessionStatus, Tenant},
    engine::{FleetFilter, RankedSessions},
    pb,
    server::blocking,
};

/// What is looked for.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FleetQuery {
    /// By name. Empty: any.
    status: String,
    /// Words, each of which must be found.
    search: String,
    detector: String,
    /// By name, this and stronger. Empty: any.
    least_action: String,
    skip: usize,
    most: usize,
}

impl Default for FleetQuery {
    fn default() -> Self {
        Self {
            status: String::new(),
            search: String::new(),
            detector: String::new(),
            least_action: String::new(),
            skip: 0,
            most: 50,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct FleetPage {
    sessions: Vec<pb::Session>,
    /// How many were found, by status.
    counts: BTreeMap<&'static str, usize>,
}

/// As many as a page shows, and no more than a browser draws at once.
const PAGE_ROWS_MAX: usize = 200;
/// So many places from the top are sorted; who looks further down, searches.
const SKIP_MAX: usize = 20_000;
const SEARCH_BYTES_MAX: usize = 512;

pub(super) async fn list_fleet(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<FleetPage> {
    let caller = console.admit(&headers, &path("ListSessions"))?;
    let query: FleetQuery = parse_body(&headers, &body)?;
    let (skip, most) = (query.skip, query.most.min(PAGE_ROWS_MAX));
    let search = build_search(caller.tenant, query)?;
    // The engine's locks are held for microseconds each, but there may be many.
    let engine = console.engine.clone();
    let scan = move || engine.rank_sessions(&search, skip, most);
    let found = blocking::scan_sessions(scan).await;
    let draining = |_| HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "DRAINING", "shutting down");
    let RankedSessions { sessions, counts } = found.map_err(draining)?;
    let mut rows = Vec::with_capacity(sessions.len());
    for view in &sessions {
        rows.push(summarize_session(console.api.present_session(view).await));
    }
    Ok(Json(FleetPage {
        sessions: rows,
        counts,
    }))
}

fn build_search(tenant: Tenant, query: FleetQuery) -> Result<FleetFilter, HttpError> {
    let invalid_field = |field: &str, why: String| {
        let message = format!("{field}: {why}");
        Err(HttpError::new(
            StatusCode::BAD_REQUEST,
            "FIELD_INVALID",
            message,
        ))
    };
    let mut statuses = SessionStatus::ALL.into_iter();
    let status = match query.status.as_str() {
        "" => None,
        name => match statuses.find(|status| status.name() == name) {
            Some(status) => Some(status),
            None => return invalid_field("status", format!("{name:?} is not one")),
        },
    };
    let least_action = match query.least_action.as_str() {
        "" => None,
        name => match name.parse::<Action>() {
            Ok(action) => Some(action),
            Err(error) => return invalid_field("least_action", error.to_string()),
        },
    };
    if query.search.len() > SEARCH_BYTES_MAX {
        return invalid_field("search", format!("at most {SEARCH_BYTES_MAX} bytes"));
    }
    if query.skip > SKIP_MAX {
        return invalid_field("skip", format!("at most {SKIP_MAX}; search instead"));
    }
    let words = query.search.to_lowercase();
    Ok(FleetFilter {
        tenant,
        status,
        words: words.split_whitespace().map(str::to_owned).collect(),
        detector: query.detector,
        min_action: least_action,
    })
}

/// What a row of the table shows: of the verdicts the last, without what only
/// its own page tells.
fn summarize_session(session: pb::Session) -> pb::Session {
    let mut session = session;
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
