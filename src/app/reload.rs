//! What changes while the service runs.

use std::{sync::Arc, time::Duration};

use tokio::time;
use tokio_util::sync::CancellationToken;

use super::RunError;
use crate::auth::Auth;

/// How soon a changed file of tokens is noticed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the tokens anew when their file has changed.
pub(super) async fn watch_tokens(
    auth: Arc<Auth>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let mut ticks = time::interval(LOOK_INTERVAL);
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        match auth.reload_if_changed() {
            None => {}
            Some(Ok(())) => tracing::info!(tokens = auth.len(), "the tokens were read anew"),
            Some(Err(error)) => {
                let error = error.to_string();
                tracing::error!(?error, "the tokens stay as they were");
            }
        }
    }
    Ok(())
}
