//! The audit log, and watching it grow.

use std::time::SystemTime;

use tonic::{Response, Status};

use super::{
    Api, Invalid, convert,
    sessions::{Answer, fitting, page_size, page_token, read_page_token},
};
use crate::{
    auth::Caller,
    domain::{Issued, Tenant, VerdictId},
    feed::{Ended, Feed, Watch},
    pb,
    server::{
        aside,
        outbound::{self, Outbound, Responses},
    },
    telemetry::Rejection,
};

impl Api {
    pub(super) fn watch(
        &self,
        caller: Caller,
        request: pb::WatchVerdictsRequest,
    ) -> Answer<Outbound<pb::WatchVerdictsResponse>> {
        let feed = self.feed(&caller, request)?;
        let api = self.clone();
        let served = outbound::serve(self.terms(), |responses| async move {
            let stream = api.pass_on(feed, responses);
            api.server.run_while_authorized(&caller, stream).await
        });
        Ok(Response::new(served))
    }

    /// What somebody watches.
    pub fn feed(&self, caller: &Caller, request: pb::WatchVerdictsRequest) -> Result<Feed, Status> {
        let watch = convert::watch(&caller.tenant, request);
        let (watch, after) = watch.map_err(|invalid| self.reject(invalid))?;
        let (store, draining) = (self.store.clone(), self.server.draining.clone());
        Ok(Feed::new(store, watch, after, draining)?)
    }

    /// Passes verdicts on until the feed is over or the watcher is gone. Only a
    /// verdict that has its place is taken from the feed, which notices who is
    /// slow.
    async fn pass_on(
        &self,
        mut feed: Feed,
        responses: Responses<pb::WatchVerdictsResponse>,
    ) -> Result<(), Status> {
        loop {
            if let Err(over) = responses.room().await {
                return self.over(over);
            }
            let verdict = tokio::select! {
                next = feed.next() => next.map_err(|ended| self.ended(ended))?,
                () = responses.gone() => return Ok(()),
            };
            responses.send(pb::WatchVerdictsResponse {
                verdict: Some(self.shown(&verdict)),
            });
        }
    }

    /// How a watch ends whose feed is over.
    pub fn ended(&self, ended: Ended) -> Status {
        if let Ended::TooSlow(_) = ended {
            self.server.metrics.rejected(Rejection::WatcherTooSlow);
        }
        ended.into()
    }

    pub(super) async fn audit(
        &self,
        caller: &Caller,
        request: pb::ListVerdictsRequest,
    ) -> Answer<pb::ListVerdictsResponse> {
        let part = Part::parse(&caller.tenant, request).map_err(|invalid| self.reject(invalid))?;
        // All that was answered before is in it.
        self.store.settled(self.store.last()).await;
        let store = self.store.clone();
        let read = move || {
            let wants = |issued: &Issued| part.wants(issued);
            match part.newest_first {
                true => store.audit_back(part.place, part.size, wants),
                false => store.audit(part.place, part.size, wants),
            }
        };
        let page = aside::read(read).await;
        let page = page.map_err(|error| self.server.blocking_failed(&error))??;
        let found = page.verdicts.len();
        let shown = page
            .verdicts
            .iter()
            .map(|issued| self.shown(&issued.verdict));
        let verdicts = fitting(shown);
        let cut = verdicts.last().filter(|_| verdicts.len() < found);
        let next = match cut {
            Some(last) => page_token(&last.verdict_id),
            None if page.end => String::new(),
            None => page_token(&page.last.to_string()),
        };
        Ok(Response::new(pb::ListVerdictsResponse {
            verdicts,
            next_page_token: next,
        }))
    }
}

/// What part of the audit log is asked for.
struct Part {
    watch: Watch,
    start: Option<SystemTime>,
    end: Option<SystemTime>,
    /// The end of the page before.
    place: Option<VerdictId>,
    newest_first: bool,
    size: usize,
}

impl Part {
    fn parse(tenant: &Tenant, request: pb::ListVerdictsRequest) -> Result<Self, Invalid> {
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
        let (watch, _) = convert::watch(tenant, request)?;
        let time = |field: &str, time: Option<pbjson_types::Timestamp>| {
            time.map(|time| convert::time(field, time)).transpose()
        };
        Ok(Self {
            watch,
            start: time("start_time", start_time)?,
            end: time("end_time", end_time)?,
            place: read_page_token(&page_token, VerdictId::parse)?,
            newest_first,
            size: self::page_size(page_size)?,
        })
    }

    fn wants(&self, issued: &Issued) -> bool {
        let time = issued.verdict.time;
        self.start.is_none_or(|start| time >= start)
            && self.end.is_none_or(|end| time < end)
            && self.watch.wants(issued)
    }
}
