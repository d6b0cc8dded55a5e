use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::RunError;
use crate::{
    api,
    domain::{VerdictId, clock},
    notify::{Delivery, Notifier, Step, Surroundings},
    store::Store,
    telemetry::{Metrics, Notification},
};

/// Tells the receivers of verdicts.
pub(super) async fn tell(
    notifier: Notifier,
    store: Arc<Store>,
    from: VerdictId,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let count = move |endpoint, step| {
        let outcome = match step {
            Step::Retried => return metrics.notification_retried(endpoint),
            Step::Ended(Delivery::Unwanted) => return,
            Step::Ended(Delivery::Delivered) => Notification::Delivered,
            Step::Ended(Delivery::Refused) => Notification::Refused,
            Step::Ended(Delivery::Expired) => Notification::Expired,
        };
        metrics.notification(endpoint, outcome);
    };
    let around = Surroundings {
        store,
        from,
        show: api::shown,
        now: clock::now,
        draining,
    };
    notifier.run(around, count).await;
    Ok(())
}
