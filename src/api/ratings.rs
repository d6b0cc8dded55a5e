//! RateVerdict: what operators say of verdicts.

use tonic::Response;

use super::{
    Api, InvalidArgument, convert, now, present,
    sessions::{Operator, RpcResult},
    status,
};
use crate::{
    domain::{Effect, Feedback, OPERATOR, Rating, VerdictId},
    engine::OperatorRequest,
    pb,
    server::blocking,
};

impl Api {
    pub(super) async fn record_rating(
        &self,
        operator: Operator,
        request: pb::RateVerdictRequest,
    ) -> RpcResult<pb::RateVerdictResponse> {
        let Operator { caller, name } = operator;
        let rating =
            RatingRequest::parse(request).map_err(|invalid| self.count_rejected(invalid))?;
        self.check_store_writable()?;

        // Find the verdict. One that was sent in a response must be found.
        let id = rating.verdict;
        if id <= self.store.last_verdict_id() {
            self.store.wait_until_settled_or_timeout(id).await;
        }
        let (store, tenant) = (self.store.clone(), caller.tenant.clone());
        let rated = blocking::read_log(move || store.find_verdict(&tenant, id))
            .await
            .map_err(|error| self.server.blocking_failed(&error))??
            .ok_or_else(status::verdict_not_found)?;
        if &*rated.verdict.detector == OPERATOR || rated.effect == Effect::Disobeyed {
            return Err(status::not_rateable());
        }

        // Record the rating.
        let feedback = Feedback {
            rating: rating.rating,
            operator: name,
            reason: rating.reason,
            time: now(),
        };
        let request = OperatorRequest {
            reason: &feedback.reason,
            operator: &feedback.operator,
        };
        let issued = self
            .engine
            .issue_rating(&rated, feedback.rating, &request, feedback.time);
        self.await_durable(&issued).await?;
        self.store.apply_rating(&rated.verdict, feedback.clone());
        tracing::info!(
            session = ?rated.verdict.session,
            detector = &*rated.verdict.detector,
            operator = ?feedback.operator,
            reason = ?feedback.reason,
            rating = feedback.rating.name(),
            "an operator rated a verdict"
        );
        self.update_rating_metrics().await;

        let known = self.engine.known_verdict(&rated.verdict.session, id);
        let mut verdict = self.present_verdict(&known.unwrap_or(rated.verdict));
        verdict.feedback = Some(present::feedback_to_pb(&feedback));
        let verdict = Some(verdict);
        Ok(Response::new(pb::RateVerdictResponse { verdict }))
    }

    /// The counts are brought up to date every minute too, so an error is only logged.
    async fn update_rating_metrics(&self) {
        let store = self.store.clone();
        match blocking::read_log(move || store.rating_counts()).await {
            Ok(Ok(counts)) => self.server.metrics.set_rating_counts(&counts),
            Ok(Err(error)) => tracing::error!(%error, "cannot count the ratings"),
            // The service shuts down.
            Err(_) => {}
        }
    }
}

/// The parameters of RateVerdict.
struct RatingRequest {
    verdict: VerdictId,
    rating: Rating,
    reason: String,
}

impl RatingRequest {
    fn parse(request: pb::RateVerdictRequest) -> Result<Self, InvalidArgument> {
        let pb::RateVerdictRequest {
            verdict_id,
            rating,
            reason,
        } = request;
        if verdict_id.is_empty() {
            return Err(InvalidArgument::missing("verdict_id"));
        }
        let verdict = VerdictId::parse(&verdict_id)
            .ok_or_else(|| InvalidArgument::new("verdict_id", "is not the id of a verdict"))?;
        let rating = match convert::parse_enum::<pb::Rating>("rating", rating)? {
            pb::Rating::Unspecified => return Err(InvalidArgument::missing("rating")),
            pb::Rating::Right => Rating::Right,
            pb::Rating::FalseAlarm => Rating::FalseAlarm,
        };
        Ok(Self {
            verdict,
            rating,
            reason: convert::parse_optional_reason(reason)?,
        })
    }
}
