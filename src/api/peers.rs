//! Lists over all replicas: each is asked for its page, with the caller's own token, and the
//! pages are merged.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use thiserror::Error;
use tokio::time::error::Elapsed;
use tonic::{
    Request, Status,
    metadata::MetadataMap,
    transport::{self, ClientTlsConfig, Endpoint},
};

use crate::{
    cluster::{Cluster, Replica},
    pb::{self, session_service_client::SessionServiceClient},
};

/// In the metadata of a call between replicas: the answer has the callee's sessions only.
const ONE_REPLICA: &str = "unstuck-one-replica";
/// A replica that takes longer is left out, and said to be.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// As for the command line: a thousand sessions with their verdicts.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
const UNREACHED: &str = "not reached";

/// Why a replica is not in a list.
#[derive(Debug, Error)]
enum PeerError {
    #[error("its address cannot be used: {0}")]
    Address(#[from] transport::Error),
    #[error("it has refused: {}", .0.message())]
    Refused(#[from] Status),
    #[error("it has not answered in time")]
    Late(#[from] Elapsed),
}

/// The other replicas, for a call of a client.
pub(super) struct Peers {
    cluster: Arc<Cluster>,
    metadata: MetadataMap,
}

impl Peers {
    /// `None`: there are none, or the call is from another replica.
    pub fn new(cluster: Option<&Arc<Cluster>>, metadata: &MetadataMap) -> Option<Self> {
        let cluster = cluster?.clone();
        if metadata.contains_key(ONE_REPLICA) {
            return None;
        }
        let mut forwarded = MetadataMap::new();
        forwarded.insert(
            ONE_REPLICA,
            tonic::metadata::MetadataValue::from_static("1"),
        );
        if let Some(token) = metadata.get("authorization") {
            forwarded.insert("authorization", token.clone());
        }
        Some(Self {
            cluster,
            metadata: forwarded,
        })
    }

    /// Adds the pages of the others to ours. The token of the next page is the last id.
    pub async fn merge_sessions(
        &self,
        request: &pb::ListSessionsRequest,
        own: pb::ListSessionsResponse,
        size: usize,
        next_token: impl Fn(&str) -> String,
    ) -> pb::ListSessionsResponse {
        let (replicas, pages) = self.fetch_pages(request).await;
        let mut pages: Vec<_> = pages.into_iter().chain([own]).collect();
        let mut has_more = pages.iter().any(|page| !page.next_page_token.is_empty());
        let data_since = pages.iter().find_map(|page| page.data_since);
        let by_id = newest_by_id(&mut pages);
        has_more |= by_id.len() > size;
        let sessions: Vec<pb::Session> = by_id.into_values().take(size).collect();
        let last = sessions.last().filter(|_| has_more);
        pb::ListSessionsResponse {
            next_page_token: last.map_or_else(String::new, |it| next_token(&it.session_id)),
            replicas,
            data_since,
            counts: Default::default(),
            sessions,
        }
    }

    /// The same for a list that has the worst first.
    pub async fn merge_worst(
        &self,
        request: &pb::ListSessionsRequest,
        own: pb::ListSessionsResponse,
        size: usize,
    ) -> pb::ListSessionsResponse {
        let (replicas, pages) = self.fetch_pages(request).await;
        let mut pages: Vec<_> = pages.into_iter().chain([own]).collect();
        let mut counts: HashMap<String, i32> = HashMap::new();
        for (status, count) in pages.iter().flat_map(|page| &page.counts) {
            let all = counts.entry(status.clone()).or_default();
            // All replicas know of a termination.
            *all = match status.as_str() {
                "terminated" => (*count).max(*all),
                _ => all.saturating_add(*count),
            };
        }
        let mut sessions: Vec<_> = newest_by_id(&mut pages).into_values().collect();
        sessions.sort_by_key(|session| Reverse(severity_key(session)));
        sessions.truncate(size);
        pb::ListSessionsResponse {
            sessions,
            replicas,
            counts,
            ..pb::ListSessionsResponse::default()
        }
    }

    /// The pages of the others, and what is known of all replicas.
    async fn fetch_pages(
        &self,
        request: &pb::ListSessionsRequest,
    ) -> (Vec<pb::Replica>, Vec<pb::ListSessionsResponse>) {
        let own = self.cluster.name();
        let replicas = self.cluster.known_replicas();
        let calls = replicas.iter().map(|replica| async {
            if replica.name == own || replica.address.is_empty() {
                return None;
            }
            let address = replica.address.clone();
            Some(self.list_sessions(address, request.clone()).await)
        });
        let answers = join_all(calls).await;
        let mut pages = Vec::new();
        let described = replicas.into_iter().zip(answers).map(|(replica, answer)| {
            let mut replica = replica_to_pb(replica);
            match answer {
                Some(Ok(page)) => pages.push(page),
                Some(Err(error)) => {
                    tracing::debug!(%error, "a replica has not answered");
                    UNREACHED.clone_into(&mut replica.health);
                }
                None => {}
            }
            replica
        });
        let described = described.collect();
        (described, pages)
    }

    async fn list_sessions(
        &self,
        address: String,
        message: pb::ListSessionsRequest,
    ) -> Result<pb::ListSessionsResponse, PeerError> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        let called = async {
            let uri = if address.contains("://") {
                address
            } else {
                format!("http://{address}")
            };
            let is_encrypted = uri.starts_with("https://");
            let mut endpoint = Endpoint::from_shared(uri)?;
            if is_encrypted {
                let tls = ClientTlsConfig::new().with_enabled_roots();
                endpoint = endpoint.tls_config(tls)?;
            }
            let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy();
            let mut client =
                SessionServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(client.list_sessions(request).await?.into_inner())
        };
        tokio::time::timeout(CALL_TIMEOUT, called).await?
    }
}

/// One session may be on several replicas; the copy that has seen most is the owner's.
fn newest_by_id(pages: &mut [pb::ListSessionsResponse]) -> BTreeMap<String, pb::Session> {
    let rank = |it: &pb::Session| {
        let seen = it.last_event_time.as_ref().map(|at| (at.seconds, at.nanos));
        (it.events, Reverse(seen))
    };
    let mut by_id: BTreeMap<String, pb::Session> = BTreeMap::new();
    for session in pages.iter_mut().flat_map(|page| page.sessions.drain(..)) {
        match by_id.get(&session.session_id) {
            Some(known) if rank(known) >= rank(&session) => {}
            _ => drop(by_id.insert(session.session_id.clone(), session)),
        }
    }
    by_id
}

/// How badly a session is stuck, as the engine ranks its own: by status, action, trend and
/// waste.
fn severity_key(session: &pb::Session) -> (u8, i32, u64, u64, i32) {
    let has_disobeyed = session.disobeyed.unwrap_or_default().events > 0;
    let status = match session.status() {
        pb::SessionStatus::Looping | pb::SessionStatus::Quarantined => 3,
        _ if has_disobeyed => 3,
        pb::SessionStatus::Active => 2,
        pb::SessionStatus::Terminated => 1,
        pb::SessionStatus::Ended | pb::SessionStatus::Unspecified => 0,
    };
    let last = session
        .termination
        .as_ref()
        .or(session.last_verdicts.last());
    let action = last
        .filter(|verdict| !verdict.shadow)
        .map_or(0, |it| it.action);
    let trends = session.trends.iter().filter_map(|it| it.trend);
    let trend = trends.map(|it| it.ema).fold(0.0, f64::max);
    let wasted = session.wasted.unwrap_or_default();
    // `as` saturates at the bounds of the type.
    let (trend, usd) = ((trend * 1e3) as u64, (wasted.cost_usd * 1e6) as u64);
    (status, action, trend, usd, wasted.tokens)
}

fn replica_to_pb(replica: Replica) -> pb::Replica {
    let Replica {
        name,
        address,
        version,
        sessions,
        events_per_sec,
        health,
    } = replica;
    pb::Replica {
        name,
        address,
        version,
        sessions: i32::try_from(sessions).unwrap_or(i32::MAX),
        events_per_second: i32::try_from(events_per_sec).unwrap_or(i32::MAX),
        health,
    }
}
