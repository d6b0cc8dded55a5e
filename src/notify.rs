//! Tells others of verdicts: webhooks.
//!
//! A notifier is a watcher like any other: it reads the feed, delivers, and
//! remembers how far it has come. Nothing waits for it. With a store its place is
//! kept there, so that a restart loses no notice; it may deliver one twice, under
//! the same id.
//!
//! Uses: domain, store, feed.

mod address;
mod endpoint;
mod message;
mod settings;
mod worker;

use std::{sync::Arc, time::SystemTime};

use serde_json::Value;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use endpoint::{DeliveryEvent, DeliveryOutcome, EndpointError};
pub use settings::{Format, SecretError, SecretSource, Settings, TextOrSecret};

use crate::{
    domain::{Verdict, VerdictId},
    store::Store,
};
use endpoint::Endpoint;
use worker::DeliveryWorker;

/// What those who notify find around them.
#[derive(Clone)]
pub struct NotifierContext {
    pub store: Arc<Store>,
    /// Who has never been told of anything is told of what comes after this.
    pub start_after: VerdictId,
    /// Shows a verdict as the API has it.
    pub render_verdict: fn(&Verdict) -> Value,
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
    TooManyEndpoints(usize),
    #[error("[{0}].name: {1:?} is not 1 to 32 letters, digits, `-` or `_`")]
    InvalidName(usize, String),
    #[error("[{0}].name: {1:?} is taken by another entry")]
    DuplicateName(usize, String),
    #[error("[{0}].{1}")]
    Endpoint(usize, #[source] EndpointError),
}

/// Every receiver reads the feed by itself.
const ENDPOINTS_MAX: usize = 32;

impl Notifier {
    pub fn new(entries: Vec<Settings>) -> Result<Self, NotifyError> {
        if entries.len() > ENDPOINTS_MAX {
            return Err(NotifyError::TooManyEndpoints(entries.len()));
        }
        install_crypto_provider();
        let mut endpoints: Vec<Arc<Endpoint>> = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            if !is_valid_name(&entry.name) {
                return Err(NotifyError::InvalidName(index, entry.name));
            }
            if endpoints.iter().any(|known| known.name == entry.name) {
                return Err(NotifyError::DuplicateName(index, entry.name));
            }
            let endpoint = Endpoint::new(entry);
            let endpoint = endpoint.map_err(|error| NotifyError::Endpoint(index, error))?;
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
        context: NotifierContext,
        on_event: impl Fn(usize, DeliveryEvent) + Clone + Send + Sync + 'static,
    ) {
        let mut workers = JoinSet::new();
        for (index, endpoint) in self.endpoints.into_iter().enumerate() {
            let worker = DeliveryWorker {
                endpoint,
                context: context.clone(),
            };
            let on_event = on_event.clone();
            workers.spawn(worker.run(move |event| on_event(index, event)));
        }
        workers.join_all().await;
        // Where there is nobody to tell, the part of the service goes on.
        context.draining.cancelled().await;
    }
}

/// It is a metric's label, and part of a file's name.
fn is_valid_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(is_allowed)
}

/// TLS needs to be told once whose cryptography it is to use. An error says that
/// it was told before.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
