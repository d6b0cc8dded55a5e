//! The audit log, and watching it grow.

use std::time::SystemTime;

use tonic::{Response, Status};

use super::{
    Api, InvalidArgument, convert,
    sessions::{RpcResult, collect_page, decode_page_token, encode_page_token, parse_page_size},
};
use crate::{
    auth::Caller,
    domain::{Tenant, VerdictId, VerdictRecord},
    feed::{Feed, FeedError, VerdictFilter},
    pb,
    server::{
        blocking,
        response_queue::{self, ResponseSender, ResponseStream},
    },
    telemetry::Rejection,
};

impl Api {
    pub(super) fn serve_watch(
        &self,
        caller: Caller,
        request: pb::WatchVerdictsRequest,
    ) -> RpcResult<ResponseStream<pb::WatchVerdictsResponse>> {
        let feed = self.open_feed(&caller, request)?;
        let api = self.clone();
        let served = response_queue::serve(self.stream_context(), |responses| async move {
            let stream = api.forward_verdicts(feed, responses);
            api.server.run_while_authorized(&caller, stream).await
        });
        Ok(Response::new(served))
    }

    /// What somebody watches.
    pub fn open_feed(
        &self,
        caller: &Caller,
        request: pb::WatchVerdictsRequest,
    ) -> Result<Feed, Status> {
        let watch = convert::parse_watch(&caller.tenant, request);
        let (watch, after) = watch.map_err(|invalid| self.count_rejected(invalid))?;
        let (store, draining) = (self.store.clone(), self.server.draining.clone());
        Ok(Feed::new(store, watch, after, draining)?)
    }

    /// Passes verdicts on until the feed is over or the watcher is gone. Only a
    /// verdict that has its place is taken from the feed, which notices who is
    /// slow.
    async fn forward_verdicts(
        &self,
        mut feed: Feed,
        responses: ResponseSender<pb::WatchVerdictsResponse>,
    ) -> Result<(), Status> {
        loop {
            if let Err(closed) = responses.wait_for_room().await {
                return self.close_status(closed);
            }
            let verdict = tokio::select! {
                next = feed.next() => next.map_err(|ended| self.feed_end_status(ended))?,
                () = responses.wait_for_disconnect() => return Ok(()),
            };
            responses.send(pb::WatchVerdictsResponse {
                verdict: Some(self.present_verdict(&verdict)),
            });
        }
    }

    /// How a watch ends whose feed is over.
    pub fn feed_end_status(&self, ended: FeedError) -> Status {
        if let FeedError::TooSlow(_) = ended {
            self.server
                .metrics
                .count_rejection(Rejection::WatcherTooSlow);
        }
        ended.into()
    }

    pub(super) async fn query_audit_log(
        &self,
        caller: &Caller,
        request: pb::ListVerdictsRequest,
    ) -> RpcResult<pb::ListVerdictsResponse> {
        let query = VerdictListQuery::parse(&caller.tenant, request)
            .map_err(|invalid| self.count_rejected(invalid))?;
        // All that was answered before is in it.
        self.store
            .wait_until_settled(self.store.last_verdict_id())
            .await;
        let store = self.store.clone();
        let read = move || {
            let matches_query = |issued: &VerdictRecord| query.matches(issued);
            match query.newest_first {
                true => store.read_audit_log_reverse(query.after, query.size, matches_query),
                false => store.read_audit_log(query.after, query.size, matches_query),
            }
        };
        let page = blocking::read_log(read).await;
        let page = page.map_err(|error| self.server.blocking_failed(&error))??;
        let found = page.verdicts.len();
        let messages = page
            .verdicts
            .iter()
            .map(|issued| self.present_verdict(&issued.verdict));
        let verdicts = collect_page(messages);
        let truncated_after = verdicts.last().filter(|_| verdicts.len() < found);
        let next = match truncated_after {
            Some(last) => encode_page_token(&last.verdict_id),
            None if page.at_end => String::new(),
            None => encode_page_token(&page.cursor.to_string()),
        };
        Ok(Response::new(pb::ListVerdictsResponse {
            verdicts,
            next_page_token: next,
        }))
    }
}

/// What part of the audit log is asked for.
struct VerdictListQuery {
    watch: VerdictFilter,
    start: Option<SystemTime>,
    end: Option<SystemTime>,
    /// The end of the page before.
    after: Option<VerdictId>,
    newest_first: bool,
    size: usize,
}

impl VerdictListQuery {
    fn parse(tenant: &Tenant, request: pb::ListVerdictsRequest) -> Result<Self, InvalidArgument> {
        let pb::ListVerdictsRequest {
            page_size,
            page_token,
            session_id,
            labels,
            detector,
            least_action,
            start_time,
            end_time,
            newest_first,
        } = request;
        let request = pb::WatchVerdictsRequest {
            session_id,
            labels,
            detector,
            least_action,
            after_verdict_id: String::new(),
        };
        let (watch, _) = convert::parse_watch(tenant, request)?;
        let time = |field: &str, time: Option<pbjson_types::Timestamp>| {
            time.map(|time| convert::parse_time(field, time))
                .transpose()
        };
        Ok(Self {
            watch,
            start: time("start_time", start_time)?,
            end: time("end_time", end_time)?,
            after: decode_page_token(&page_token, VerdictId::parse)?,
            newest_first,
            size: self::parse_page_size(page_size)?,
        })
    }

    fn matches(&self, issued: &VerdictRecord) -> bool {
        let time = issued.verdict.time;
        self.start.is_none_or(|start| time >= start)
            && self.end.is_none_or(|end| time < end)
            && self.watch.matches(issued)
    }
}
