//! Lists over all replicas: each is asked for its page, with the caller's own token, and the
//! pages are merged.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tonic::{
    Request, Status,
    metadata::MetadataMap,
    transport::{ClientTlsConfig, Endpoint},
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
        let mut replicas = self.cluster.known_replicas();
        let others = replicas
            .iter()
            .filter(|it| it.name != self.cluster.name() && !it.address.is_empty());
        let calls = others.map(|it| self.list_sessions(it.address.clone(), request.clone()));
        let names: Vec<String> = replicas
            .iter()
            .filter(|it| it.name != self.cluster.name() && !it.address.is_empty())
            .map(|it| it.name.clone())
            .collect();
        let pages = join_all(calls).await;
        // One session may be on several replicas; the copy that has seen most is the owner's.
        let mut has_more = !own.next_page_token.is_empty();
        let mut data_since = own.data_since;
        let mut by_id: BTreeMap<String, pb::Session> = BTreeMap::new();
        let mut add = |session: pb::Session| {
            let rank = |it: &pb::Session| {
                let seen = it.last_event_time.as_ref().map(|at| (at.seconds, at.nanos));
                (it.events, Reverse(seen))
            };
            match by_id.get(&session.session_id) {
                Some(known) if rank(known) >= rank(&session) => {}
                _ => drop(by_id.insert(session.session_id.clone(), session)),
            }
        };
        own.sessions.into_iter().for_each(&mut add);
        for (name, page) in names.iter().zip(pages) {
            match page {
                Ok(page) => {
                    has_more |= !page.next_page_token.is_empty();
                    data_since = data_since.or(page.data_since);
                    page.sessions.into_iter().for_each(&mut add);
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), "a replica has not answered");
                    for replica in replicas.iter_mut().filter(|it| it.name == *name) {
                        UNREACHED.clone_into(&mut replica.health);
                    }
                }
            }
        }
        has_more |= by_id.len() > size;
        let sessions: Vec<pb::Session> = by_id.into_values().take(size).collect();
        let last = sessions.last().filter(|_| has_more);
        pb::ListSessionsResponse {
            next_page_token: last.map_or_else(String::new, |it| next_token(&it.session_id)),
            replicas: replicas.into_iter().map(replica_to_pb).collect(),
            data_since,
            sessions,
        }
    }

    async fn list_sessions(
        &self,
        address: String,
        message: pb::ListSessionsRequest,
    ) -> Result<pb::ListSessionsResponse, Status> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        let called = async {
            let uri = if address.contains("://") {
                address
            } else {
                format!("http://{address}")
            };
            let invalid = |_| Status::from_error("the address of a replica is invalid".into());
            let is_encrypted = uri.starts_with("https://");
            let mut endpoint = Endpoint::from_shared(uri).map_err(invalid)?;
            if is_encrypted {
                let tls = ClientTlsConfig::new().with_enabled_roots();
                endpoint = endpoint.tls_config(tls).map_err(invalid)?;
            }
            let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy();
            let mut client =
                SessionServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(client.list_sessions(request).await?.into_inner())
        };
        let late = |_| Status::from_error("a replica has not answered in time".into());
        tokio::time::timeout(CALL_TIMEOUT, called)
            .await
            .map_err(late)?
    }
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
