//! Live verdicts as server-sent events.
//!
//! `verdict` carries a verdict, with its id as the event id. `live` follows the
//! backlog. `end` says why the stream ends.

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
    Console, ConsoleDependencies,
    calls::{parse_body, path},
    http_error::HttpError,
};
use crate::{
    api::Api,
    auth::{Auth, AuthError, Caller},
    feed::Feed,
    pb,
    server::quota::Permit,
    telemetry::{Rejection, StreamRpc},
};

/// A new watcher first gets this many recent verdicts.
const RECENT_VERDICTS: usize = 100;
/// Proxies close a connection that is idle for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn watch_verdicts(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<impl IntoResponse, HttpError> {
    let caller = console.admit(&headers, &path("WatchVerdicts"))?;
    // Start after the last event that the page has seen, or with recent verdicts.
    let mut request: pb::WatchVerdictsRequest = parse_body(&headers, &body)?;
    if let Some(last) = headers.get("last-event-id") {
        request.after_verdict_id = last.to_str().unwrap_or("?").to_owned();
    }
    if request.after_verdict_id.is_empty() {
        request.after_verdict_id = console
            .deps
            .store
            .cursor_before_last(RECENT_VERDICTS)
            .to_string();
    }
    // Take a permit of the tenant's share.
    let ConsoleDependencies {
        auth, api, metrics, ..
    } = console.deps;
    let permit = console
        .watcher_quota
        .try_acquire(&caller.tenant)
        .map_err(|share| {
            metrics.count_rejection(Rejection::ConsoleWatchersMax);
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let message = format!("{share} pages are watching (limits.console_watchers_max)");
            HttpError::new(status, "CONSOLE_WATCHERS_MAX", message)
        })?;
    let open = metrics.track_stream(StreamRpc::WatchVerdicts);
    // Send each verdict as an event.
    let live = LiveFeed {
        feed: api.open_feed(&caller, request)?,
        api,
        auth,
        caller,
        is_catching_up: true,
        _guards: (permit, open),
    };
    let events = stream::unfold(Some(live), |live| async {
        let mut live = live?;
        let (event, has_more) = live.next().await;
        Some((Ok::<_, Infallible>(event), has_more.then_some(live)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

struct LiveFeed<G> {
    feed: Feed,
    api: Api,
    auth: Arc<Auth>,
    caller: Caller,
    /// Part of the backlog is still to be sent.
    is_catching_up: bool,
    _guards: (Permit, G),
}

impl<G> LiveFeed<G> {
    /// The next event, and whether more may follow.
    async fn next(&mut self) -> (Event, bool) {
        let next_verdict = async {
            if self.is_catching_up {
                self.feed.next_from_backlog().await
            } else {
                self.feed.next().await.map(Some)
            }
        };
        let result = tokio::select! {
            next = next_verdict => next.map_err(|ended| self.api.feed_end_status(ended)),
            () = self.auth.wait_until_revoked(&self.caller) => Err(AuthError::UnknownToken.into()),
        };
        match result {
            Ok(Some(verdict)) => {
                let message = self.api.present_verdict(&verdict);
                (sse_event("verdict", &message).id(message.verdict_id), true)
            }
            Ok(None) => {
                self.is_catching_up = false;
                (sse_event("live", &()), true)
            }
            Err(ended) => (sse_event("end", HttpError::from(ended).error()), false),
        }
    }
}

fn sse_event(name: &str, data: &impl Serialize) -> Event {
    // JSON on one line: a line break would end the event.
    let json = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(json)
}
