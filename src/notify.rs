//! Tells others of verdicts: webhooks.
//!
//! A notifier is a watcher like any other: it reads the feed, delivers, and
//! remembers how far it has come. Nothing waits for it. With a store its place is
//! kept there, so that a restart loses no notice; it may deliver one twice, under
//! the same id.
//!
//! Uses: domain, store, feed.

mod address;
mod courier;
mod endpoint;
mod message;
mod settings;

use std::{sync::Arc, time::SystemTime};

use serde_json::Value;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use endpoint::{Delivery, EndpointError, Step};
pub use settings::{Format, Secret, SecretError, Settings, Text};

use crate::{
    domain::{Verdict, VerdictId},
    store::Store,
};
use courier::Courier;
use endpoint::Endpoint;

/// What those who notify find around them.
#[derive(Clone)]
pub struct Surroundings {
    pub store: Arc<Store>,
    /// Who has never been told of anything is told of what comes after this.
    pub from: VerdictId,
    /// Shows a verdict as the API has it.
    pub show: fn(&Verdict) -> Value,
    /// The clock.
    pub now: fn() -> SystemTime,
    pub draining: CancellationToken,
}

/// The receivers, checked and ready.
#[derive(Default)]
pub struct Notifier {
    endpoints: Vec<Arc<Endpoint>>,
}

/// An entry of `[[notify]]` that is refused.
#[derive(Debug, Error)]
pub enum NotifyError {
    #[error("{0} entries, at most {ENDPOINTS_MAX}")]
    TooMany(usize),
    #[error("[{0}].name: {1:?} is not 1 to 32 letters, digits, `-` or `_`")]
    Name(usize, String),
    #[error("[{0}].name: {1:?} is taken by another entry")]
    Taken(usize, String),
    #[error("[{0}].{1}")]
    Endpoint(usize, #[source] EndpointError),
}

/// Every receiver reads the feed by itself.
const ENDPOINTS_MAX: usize = 32;

impl Notifier {
    pub fn new(entries: Vec<Settings>) -> Result<Self, NotifyError> {
        if entries.len() > ENDPOINTS_MAX {
            return Err(NotifyError::TooMany(entries.len()));
        }
        install_tls();
        let mut endpoints: Vec<Arc<Endpoint>> = Vec::new();
        for (position, entry) in entries.into_iter().enumerate() {
            if !is_name(&entry.name) {
                return Err(NotifyError::Name(position, entry.name));
            }
            if endpoints.iter().any(|known| known.name == entry.name) {
                return Err(NotifyError::Taken(position, entry.name));
            }
            let endpoint = Endpoint::new(entry);
            let endpoint = endpoint.map_err(|error| NotifyError::Endpoint(position, error))?;
            endpoints.push(Arc::new(endpoint));
        }
        Ok(Self { endpoints })
    }

    /// Their names, in the order of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|endpoint| endpoint.name.as_str())
    }

    /// Delivers until the service drains; `count` is told how it went with a
    /// notice, and of which receiver.
    pub async fn run(
        self,
        around: Surroundings,
        count: impl Fn(usize, Step) + Clone + Send + Sync + 'static,
    ) {
        let mut couriers = JoinSet::new();
        for (position, endpoint) in self.endpoints.into_iter().enumerate() {
            let courier = Courier {
                endpoint,
                around: around.clone(),
            };
            let count = count.clone();
            couriers.spawn(courier.run(move |step| count(position, step)));
        }
        couriers.join_all().await;
        // Where there is nobody to tell, the part of the service goes on.
        around.draining.cancelled().await;
    }
}

/// It is a metric's label, and part of a file's name.
fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(fits)
}

/// TLS needs to be told once whose cryptography it is to use. An error says that
/// it was told before.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
