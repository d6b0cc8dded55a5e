//! Finds a verdict by its id, for the page to which notifications link.

use tonic::Status;

use super::{Api, present, status};
use crate::{auth::Caller, domain::VerdictId, pb, server::blocking, store::ReadError};

impl Api {
    /// A verdict of the caller's tenant, with its rating. An id of another tenant is not
    /// found, like one that does not exist.
    pub async fn find_verdict(
        &self,
        caller: &Caller,
        verdict_id: &str,
    ) -> Result<pb::Verdict, Status> {
        let id = VerdictId::parse(verdict_id).ok_or_else(status::verdict_not_found)?;
        // A verdict that was sent in a response must be found.
        if id <= self.store.last_verdict_id() {
            self.store.wait_until_settled_or_timeout(id).await;
        }
        let (store, tenant) = (self.store.clone(), caller.tenant.clone());
        let (found, feedback) = blocking::read_log(move || {
            let found = store.find_verdict(&tenant, id)?;
            let feedback = store.feedback(&tenant, &[id])?;
            Ok::<_, ReadError>((found, feedback))
        })
        .await
        .map_err(|error| self.server.blocking_failed(&error))??;
        let verdict = found.ok_or_else(status::verdict_not_found)?.verdict;
        // The session in memory has the texts that are not on disk.
        let known = self.engine.known_verdict(&verdict.session, id);
        let mut presented = self.present_verdict(&known.unwrap_or(verdict));
        presented.feedback = feedback.get(&id).map(present::feedback_to_pb);
        Ok(presented)
    }
}
