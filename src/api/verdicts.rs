//! WatchVerdicts and ListVerdicts: live verdicts, and the audit log.

use std::sync::Arc;

use tonic::{Response, Status};

use super::{
    Api, InvalidArgument, convert,
    paging::{collect_page, decode_page_token, encode_page_token, parse_page_size},
    present,
    sessions::RpcResult,
};
use crate::{
    auth::Caller,
    domain::{Tenant, Verdict, VerdictId},
    feed::{Feed, FeedError, VerdictFilter},
    pb,
    server::{
        blocking,
        response_queue::{self, ResponseSender, ResponseStream},
    },
    store::ReadError,
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

    /// Opens the feed that a watch asks for.
    pub fn open_feed(
        &self,
        caller: &Caller,
        request: pb::WatchVerdictsRequest,
    ) -> Result<Feed, Status> {
        let (filter, after) = convert::parse_watch(&caller.tenant, request)
            .map_err(|invalid| self.count_rejected(invalid))?;
        let (store, draining) = (self.store.clone(), self.server.draining.clone());
        if let Some(cluster) = &self.cluster {
            let cluster = cluster.clone();
            return Ok(Feed::of_cluster(cluster, filter, after, false, draining));
        }
        Ok(Feed::new(store, filter, after, draining)?)
    }

    /// Forwards verdicts until the feed ends or the watcher disconnects. A verdict
    /// is taken from the feed only when the queue has room, so that the feed
    /// notices a slow watcher.
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

    /// The status of a watch whose feed has ended.
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
        // Every verdict that was sent in a response must be in the page.
        self.store
            .wait_until_settled_or_timeout(self.store.last_verdict_id())
            .await;
        let (store, tenant) = (self.store.clone(), caller.tenant.clone());
        let (page, feedback) = blocking::read_log(move || {
            let page = if query.newest_first {
                store.read_audit_log_reverse(query.after, query.size, &query.filter)?
            } else {
                store.read_audit_log(query.after, query.size, &query.filter)?
            };
            let ids: Vec<VerdictId> = page.verdicts.iter().map(|it| it.verdict.id).collect();
            let feedback = store.feedback(&tenant, &ids)?;
            Ok::<_, ReadError>((page, feedback))
        })
        .await
        .map_err(|error| self.server.blocking_failed(&error))??;
        let found = page.verdicts.len();
        let verdicts = collect_page(page.verdicts.iter().map(|record| {
            let feedback = feedback.get(&record.verdict.id);
            pb::Verdict {
                feedback: feedback.map(present::feedback_to_pb),
                ..self.present_verdict(&self.with_text(&record.verdict))
            }
        }));
        let truncated_after = verdicts.last().filter(|_| verdicts.len() < found);
        let next_page_token = match truncated_after {
            Some(last) => encode_page_token(&last.verdict_id),
            None if page.at_end => String::new(),
            None => encode_page_token(&page.cursor.to_string()),
        };
        Ok(Response::new(pb::ListVerdictsResponse {
            verdicts,
            next_page_token,
        }))
    }

    /// The verdict with the text that is not on disk, while it is in memory.
    fn with_text(&self, verdict: &Arc<Verdict>) -> Arc<Verdict> {
        let recent = self.store.recent_verdict(verdict.id);
        recent
            .map(|record| record.verdict)
            .or_else(|| self.engine.known_verdict(&verdict.session, verdict.id))
            .unwrap_or_else(|| verdict.clone())
    }
}

/// The parameters of ListVerdicts.
struct VerdictListQuery {
    filter: VerdictFilter,
    /// The last verdict of the previous page.
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
            min_action,
            start_time,
            end_time,
            newest_first,
            rated_only,
        } = request;
        let watch = pb::WatchVerdictsRequest {
            session_id,
            labels,
            detector,
            min_action,
            after_verdict_id: String::new(),
        };
        let (filter, _) = convert::parse_watch(tenant, watch)?;
        let filter = VerdictFilter {
            start: start_time
                .map(|time| convert::parse_time("start_time", time))
                .transpose()?,
            end: end_time
                .map(|time| convert::parse_time("end_time", time))
                .transpose()?,
            rated_only,
            ..filter
        };
        Ok(Self {
            filter,
            after: decode_page_token(&page_token, VerdictId::parse)?,
            newest_first,
            size: parse_page_size(page_size)?,
        })
    }
}
