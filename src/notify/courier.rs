//! Carries verdicts from the feed to one receiver, and remembers how far it
//! has come.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::{StreamExt, stream::FuturesOrdered};

use super::{Delivery, Step, Surroundings, endpoint::Endpoint};
use crate::{
    domain::{Issued, VerdictId},
    feed::{Ended, Feed},
};

/// So many are under way at a time, so that a slow receiver is not waited for
/// one by one.
const UNDER_WAY_MAX: usize = 8;

pub(super) struct Courier {
    pub endpoint: Arc<Endpoint>,
    pub around: Surroundings,
}

impl Courier {
    /// Delivers until the service drains. What is under way then, and whatever
    /// follows it, is delivered after the next start.
    pub async fn run(self, count: impl Fn(Step)) {
        let place = Place::new(self.around.store.dir(), &self.endpoint.name);
        let known = place.read().unwrap_or(self.around.from);
        place.keep(known).await;
        let mut reached = known;
        let mut under_way = FuturesOrdered::new();
        while let Some(mut feed) = self.feed(reached) {
            under_way.clear();
            loop {
                tokio::select! {
                    Some((id, delivery)) = under_way.next() => {
                        count(Step::Ended(delivery));
                        reached = id;
                        place.keep(id).await;
                    }
                    issued = feed.next_issued(), if under_way.len() < UNDER_WAY_MAX => match issued {
                        Ok(issued) => under_way.push_back(self.deliver(issued, &count)),
                        Err(Ended::Draining) => return,
                        // What was read and not delivered is read again.
                        Err(Ended::TooSlow(_)) => break,
                        Err(error) => {
                            let endpoint = &self.endpoint.name;
                            tracing::error!(endpoint, %error, "notices are lost");
                            reached = self.around.store.last();
                            break;
                        }
                    },
                }
            }
        }
    }

    async fn deliver(&self, issued: Issued, count: &impl Fn(Step)) -> (VerdictId, Delivery) {
        let shown = (self.around.show)(&issued.verdict);
        let retried = || count(Step::Retried);
        let delivery = self
            .endpoint
            .deliver(&issued, shown, self.around.now, retried);
        (issued.verdict.id, delivery.await)
    }

    /// `None`: nobody writes to the store any more. A place that is no longer
    /// kept is one that nothing wanted has followed for long; one that is not
    /// known is of another store.
    fn feed(&self, reached: VerdictId) -> Option<Feed> {
        let (store, watch) = (self.around.store.clone(), self.endpoint.watch());
        let after = reached.min(store.last()).max(store.horizon());
        Feed::new(store, watch, Some(after), self.around.draining.clone()).ok()
    }
}

/// How far it has come, on disk where there is a store. It is written without a
/// sync: a place that is lost to a crash is an earlier one, and what follows it
/// is delivered twice, under the same ids.
struct Place(Option<PathBuf>);

impl Place {
    fn new(dir: Option<&Path>, endpoint: &str) -> Self {
        Self(dir.map(|dir| dir.join(format!("notify-{endpoint}"))))
    }

    fn read(&self) -> Option<VerdictId> {
        let text = fs::read_to_string(self.0.as_ref()?).ok()?;
        VerdictId::parse(text.trim())
    }

    async fn keep(&self, reached: VerdictId) {
        let Some(path) = self.0.clone() else { return };
        let kept = tokio::task::spawn_blocking(move || replace(&path, reached)).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, "cannot keep how far notices have come");
        }
    }
}

/// In one step: nobody finds half of it.
fn replace(path: &Path, reached: VerdictId) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, reached.to_string())?;
    fs::rename(&new, path)
}
