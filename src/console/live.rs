//! Verdicts as they happen, as server-sent events.
//!
//! `verdict` has a verdict, and its id as the event's; `live` says that what was
//! missed has been sent; `end` says why there is nothing more.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::Serialize;

use super::{
    Console,
    calls::{parsed, path},
    refusal::Refusal,
};
use crate::{
    api::Api,
    auth::{Auth, Caller, Denied},
    feed::Feed,
    pb,
    server::places::Place,
    telemetry::{Rejection, Rpc},
};

/// Who watches from now on is first shown these.
const RECENT: usize = 100;
/// Proxies give up on a connection that is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn watch_verdicts(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<impl IntoResponse, Refusal> {
    let caller = console.admit(&headers, &path("WatchVerdicts"))?;
    let mut request: pb::WatchVerdictsRequest = parsed(&headers, &body)?;
    if let Some(last) = headers.get("last-event-id") {
        request.after_verdict_id = last.to_str().unwrap_or("?").to_owned();
    }
    if request.after_verdict_id.is_empty() {
        request.after_verdict_id = console.store.before_last(RECENT).to_string();
    }
    let place = console.watchers.take(&caller.tenant).map_err(|share| {
        console.metrics.rejected(Rejection::ConsoleWatchersMax);
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let told = format!("{share} pages watch already (limits.console_watchers_max)");
        Refusal::new(status, "CONSOLE_WATCHERS_MAX", told)
    })?;
    let open = console.metrics.stream(Rpc::WatchVerdicts);
    let live = Live {
        feed: console.api.feed(&caller, request)?,
        api: console.api,
        auth: console.auth,
        caller,
        is_behind: true,
        _held: (place, open),
    };
    let events = stream::unfold(Some(live), |live| async {
        let mut live = live?;
        let (event, goes_on) = live.next().await;
        Some((Ok::<_, Infallible>(event), goes_on.then_some(live)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

struct Live<G> {
    feed: Feed,
    api: Api,
    auth: Arc<Auth>,
    caller: Caller,
    /// What was missed has not all been sent.
    is_behind: bool,
    _held: (Place, G),
}

impl<G> Live<G> {
    /// The next event, and whether more may come.
    async fn next(&mut self) -> (Event, bool) {
        let next = async {
            match self.is_behind {
                true => self.feed.next_missed().await,
                false => self.feed.next().await.map(Some),
            }
        };
        let next = tokio::select! {
            next = next => next.map_err(|ended| self.api.ended(ended)),
            () = self.auth.revoked(&self.caller) => Err(Denied::UnknownToken.into()),
        };
        match next {
            Ok(Some(verdict)) => {
                let shown = self.api.shown(&verdict);
                (event("verdict", &shown).id(shown.verdict_id), true)
            }
            Ok(None) => {
                self.is_behind = false;
                (event("live", &()), true)
            }
            Err(ended) => (event("end", Refusal::from(ended).error()), false),
        }
    }
}

fn event(name: &str, data: &impl Serialize) -> Event {
    // Printed on one line, with no line break that would end the event.
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(data)
}
