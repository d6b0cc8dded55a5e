//! Runs the notifier as a task of the service, and counts its deliveries.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::RunError;
use crate::{
    api,
    cluster::Cluster,
    domain::{VerdictId, clock},
    notify::{DeliveryEvent, DeliveryOutcome, Notifier, NotifierContext},
    store::Store,
    telemetry::{Metrics, NotificationOutcome},
};

/// Notifies the endpoints of verdicts after `start_after`.
pub(super) async fn run_notifier(
    notifier: Notifier,
    (store, cluster): (Arc<Store>, Option<Arc<Cluster>>),
    start_after: VerdictId,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let count_delivery = move |endpoint, event| {
        let outcome = match event {
            DeliveryEvent::Retried => return metrics.count_notification_retry(endpoint),
            DeliveryEvent::Finished(DeliveryOutcome::Skipped) => return,
            DeliveryEvent::Finished(DeliveryOutcome::Delivered) => NotificationOutcome::Delivered,
            DeliveryEvent::Finished(DeliveryOutcome::Refused) => NotificationOutcome::Refused,
            DeliveryEvent::Finished(DeliveryOutcome::Expired) => NotificationOutcome::Expired,
        };
        metrics.count_notification(endpoint, outcome);
    };
    let context = NotifierContext {
        store,
        cluster,
        start_after,
        render_verdict: api::verdict_to_json,
        now: clock::now,
        wall_now: clock::wall_now,
        draining,
    };
    notifier.run(context, count_delivery).await;
    Ok(())
}
