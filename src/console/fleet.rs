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
    calls::{parsed, path},
    refusal::{Answer, Json, Refusal},
};
use crate::{
    domain::{Action, Status, Tenant},
    engine::{Fleet, Search},
    pb,
    server::aside,
};

/// What is looked for.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Question {
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

impl Default for Question {
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
pub(super) struct Answered {
    sessions: Vec<pb::Session>,
    /// How many were found, by status.
    counts: BTreeMap<&'static str, usize>,
}

/// As many as a page shows, and no more than a browser draws at once.
const MOST_MAX: usize = 200;
/// So many places from the top are sorted; who looks further down, searches.
const SKIP_MAX: usize = 20_000;
const SEARCH_BYTES_MAX: usize = 512;

pub(super) async fn fleet(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Answered> {
    let caller = console.admit(&headers, &path("ListSessions"))?;
    let question: Question = parsed(&headers, &body)?;
    let (skip, most) = (question.skip, question.most.min(MOST_MAX));
    let search = search(caller.tenant, question)?;
    // The engine's locks are held for microseconds each, but there may be many.
    let engine = console.engine.clone();
    let look = move || engine.fleet(&search, skip, most);
    let found = aside::walk(look).await;
    let draining = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "DRAINING", "shutting down");
    let Fleet { sessions, counts } = found.map_err(draining)?;
    let mut rows = Vec::with_capacity(sessions.len());
    for view in &sessions {
        rows.push(row(console.api.session(view).await));
    }
    Ok(Json(Answered {
        sessions: rows,
        counts,
    }))
}

fn search(tenant: Tenant, question: Question) -> Result<Search, Refusal> {
    let refused = |field: &str, why: String| {
        let told = format!("{field}: {why}");
        Err(Refusal::new(StatusCode::BAD_REQUEST, "FIELD_INVALID", told))
    };
    let mut statuses = Status::ALL.into_iter();
    let status = match question.status.as_str() {
        "" => None,
        name => match statuses.find(|status| status.name() == name) {
            Some(status) => Some(status),
            None => return refused("status", format!("{name:?} is not one")),
        },
    };
    let least_action = match question.least_action.as_str() {
        "" => None,
        name => match name.parse::<Action>() {
            Ok(action) => Some(action),
            Err(error) => return refused("least_action", error.to_string()),
        },
    };
    if question.search.len() > SEARCH_BYTES_MAX {
        return refused("search", format!("at most {SEARCH_BYTES_MAX} bytes"));
    }
    if question.skip > SKIP_MAX {
        return refused("skip", format!("at most {SKIP_MAX}; search instead"));
    }
    let words = question.search.to_lowercase();
    Ok(Search {
        tenant,
        status,
        words: words.split_whitespace().map(str::to_owned).collect(),
        detector: question.detector,
        least_action,
    })
}

/// What a row of the table shows: of the verdicts the last, without what only
/// its own page tells.
fn row(session: pb::Session) -> pb::Session {
    let mut session = session;
    let last = session.last_verdicts.pop();
    session.last_verdicts = last.map(brief).into_iter().collect();
    session.termination = session.termination.map(brief);
    session.abstentions.clear();
    session
}

fn brief(verdict: pb::Verdict) -> pb::Verdict {
    pb::Verdict {
        correction: String::new(),
        members: Vec::new(),
        evidence: None,
        ..verdict
    }
}
