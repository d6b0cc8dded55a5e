//! The sessions of all replicas, the worst first.

use tonic::{Response, Status, metadata::MetadataMap};

use super::{Api, convert, paging::parse_page_size, peers::Peers, present, sessions::RpcResult};
use crate::{
    auth::Caller,
    domain::{Action, Tenant},
    engine::{FleetFilter, RankedSessions},
    pb,
    server::blocking,
};

/// The sessions of a ranking as messages, and their number by status.
pub struct FleetList {
    pub sessions: Vec<pb::Session>,
    pub counts: Vec<(String, usize)>,
}

/// The sessions that are fetched of another replica at most. Further down a list over
/// several replicas has those of this one only, and users search.
const PEER_SESSIONS_MAX: usize = 1_000;

impl Api {
    /// One page of the sessions of all replicas.
    pub async fn rank_fleet(
        &self,
        filter: FleetFilter,
        (skip, limit): (usize, usize),
        metadata: &MetadataMap,
    ) -> Result<FleetList, Status> {
        let Some(peers) = Peers::new(self.cluster.as_ref(), metadata) else {
            return self.rank_own(filter, skip, limit).await;
        };
        let request = pb::ListSessionsRequest {
            page_size: i32::try_from((skip + limit).min(PEER_SESSIONS_MAX)).unwrap_or(i32::MAX),
            status: filter
                .status
                .map_or(0, |status| present::status_to_pb(status).into()),
            worst_first: true,
            search: filter.words.join(" "),
            detector: filter.detector.clone(),
            min_action: present::action_to_pb(filter.min_action).into(),
            ..pb::ListSessionsRequest::default()
        };
        let own = self.rank_own(filter, 0, skip + limit).await?;
        let page = own.into_response();
        let merged = peers.merge_worst(&request, page, skip + limit).await;
        let counts = merged.counts.into_iter();
        Ok(FleetList {
            sessions: merged.sessions.into_iter().skip(skip).collect(),
            counts: counts
                .map(|(status, count)| (status, usize::try_from(count).unwrap_or_default()))
                .collect(),
        })
    }

    async fn rank_own(
        &self,
        filter: FleetFilter,
        skip: usize,
        limit: usize,
    ) -> Result<FleetList, Status> {
        // A scan takes many locks, for microseconds each.
        let engine = self.engine.clone();
        let RankedSessions { sessions, counts } =
            blocking::scan_sessions(move || engine.rank_sessions(&filter, skip, limit))
                .await
                .map_err(|error| self.server.blocking_failed(&error))?;
        let replica = self.cluster.as_ref().map_or("", |cluster| cluster.name());
        let mut rows = Vec::with_capacity(sessions.len());
        for view in &sessions {
            rows.push(pb::Session {
                replica: replica.to_owned(),
                ..self.present_session(view).await
            });
        }
        let counts = counts.into_iter();
        Ok(FleetList {
            sessions: rows,
            counts: counts
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        })
    }

    /// ListSessions with `worst_first`.
    pub(super) async fn list_worst_sessions(
        &self,
        caller: &Caller,
        request: pb::ListSessionsRequest,
        peers: Option<Peers>,
    ) -> RpcResult<pb::ListSessionsResponse> {
        let size =
            parse_page_size(request.page_size).map_err(|invalid| self.count_rejected(invalid))?;
        let filter = parse_filter(caller.tenant.clone(), &request)
            .map_err(|invalid| self.count_rejected(invalid))?;
        let own = self.rank_own(filter, 0, size).await?.into_response();
        Ok(Response::new(match peers {
            Some(peers) => peers.merge_worst(&request, own, size).await,
            None => own,
        }))
    }
}

impl FleetList {
    fn into_response(self) -> pb::ListSessionsResponse {
        let counts = self.counts.into_iter();
        pb::ListSessionsResponse {
            sessions: self.sessions,
            counts: counts
                .map(|(status, count)| (status, i32::try_from(count).unwrap_or(i32::MAX)))
                .collect(),
            ..pb::ListSessionsResponse::default()
        }
    }
}

fn parse_filter(
    tenant: Tenant,
    request: &pb::ListSessionsRequest,
) -> Result<FleetFilter, convert::InvalidArgument> {
    let watch = pb::WatchVerdictsRequest {
        min_action: request.min_action,
        ..pb::WatchVerdictsRequest::default()
    };
    let (verdicts, _) = convert::parse_watch(&tenant, watch)?;
    let min_action: Option<Action> = verdicts.min_action;
    let words = request.search.to_lowercase();
    Ok(FleetFilter {
        tenant,
        status: convert::parse_status(request.status)?,
        words: words.split_whitespace().map(str::to_owned).collect(),
        detector: request.detector.clone(),
        min_action,
    })
}
