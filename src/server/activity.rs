//! Whether the service is in use, for a local service that stops when it is idle.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time};

/// The number of open connections.
#[derive(Default)]
pub struct Activity(watch::Sender<usize>);

/// An open connection.
pub struct ActivityGuard(Arc<Activity>);

impl Activity {
    pub fn track(self: &Arc<Self>) -> ActivityGuard {
        self.0.send_modify(|open| *open += 1);
        ActivityGuard(self.clone())
    }

    /// Waits until there was no connection for this time.
    pub async fn wait_until_idle(&self, idle: Duration) {
        let mut open = self.0.subscribe();
        loop {
            // Waiting fails only without a sender, which is `self`.
            let _ = open.wait_for(|open| *open == 0).await;
            open.mark_unchanged();
            if time::timeout(idle, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_keeps_the_service_and_its_end_starts_the_time_again() {
        const IDLE: Duration = Duration::from_secs(1_800);
        let activity = Arc::new(Activity::default());
        let start = Instant::now();
        let of_others = activity.clone();
        let used = async {
            time::sleep(Duration::from_secs(1_700)).await;
            drop(of_others.track());
            time::sleep(Duration::from_secs(1_000)).await;
            let open = of_others.track();
            time::sleep(Duration::from_secs(5_000)).await;
            drop(open);
        };
        tokio::join!(activity.wait_until_idle(IDLE), used);
        assert_eq!(start.elapsed().as_secs(), 1_700 + 1_000 + 5_000 + 1_800);
    }
}
