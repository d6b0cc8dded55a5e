//! Webhooks: sends notifications of verdicts to configured endpoints.
//!
//! A notifier is an ordinary subscriber of the feed: it reads, delivers, and
//! advances its cursor. Nothing waits for it. With a store the cursor is saved to
//! disk, so that a restart loses no notification; one may be delivered twice, with
//! the same id.
//!
//! Uses: atomic_file, domain, store, cluster, feed.

mod address;
mod endpoint;
mod message;
mod pending;
mod settings;
mod signing;
mod worker;

use std::{sync::Arc, time::SystemTime};

use serde_json::Value;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use endpoint::{DeliveryEvent, DeliveryOutcome, EndpointError};
pub use settings::{Format, SecretError, SecretSource, SecretSources, Settings, TextOrSecret};

use crate::{
    cluster::Cluster,
    domain::{Verdict, VerdictId},
    store::Store,
};
use endpoint::Endpoint;
use signing::SigningKeys;
use worker::DeliveryWorker;

/// The dependencies of every delivery worker.
#[derive(Clone)]
pub struct NotifierContext {
    pub store: Arc<Store>,
    /// With other replicas, one at a time delivers the verdicts of all.
    pub cluster: Option<Arc<Cluster>>,
    /// The cursor of an endpoint without a saved one.
    pub start_after: VerdictId,
    /// Renders a verdict as the API does.
    pub render_verdict: fn(&Verdict) -> Value,
    /// The service's clock, for the age of a notification.
    pub now: fn() -> SystemTime,
    /// The wall clock, for signatures.
    pub wall_now: fn() -> SystemTime,
    pub draining: CancellationToken,
}

/// The validated endpoints.
#[derive(Default)]
pub struct Notifier {
    endpoints: Vec<Arc<Endpoint>>,
    console_url: Arc<str>,
}

/// Why an entry of `[[notify]]` is invalid.
#[derive(Debug, Error)]
pub enum NotifyError {
    #[error("{0} entries, at most {ENDPOINTS_MAX}")]
    TooManyEndpoints(usize),
    #[error("[{0}].name: {1:?} is not 1 to 32 letters, digits, `-` or `_`")]
    InvalidName(usize, String),
    #[error("[{0}].name: {1:?} is used by another entry")]
    DuplicateName(usize, String),
    #[error("[{0}].{1}")]
    Endpoint(usize, #[source] EndpointError),
}

/// Bounds the feed subscriptions: each endpoint has its own.
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
            let endpoint =
                Endpoint::new(entry).map_err(|error| NotifyError::Endpoint(index, error))?;
            endpoints.push(Arc::new(endpoint));
        }
        Ok(Self {
            endpoints,
            console_url: Arc::default(),
        })
    }

    /// Adds links to verdicts on this console. Empty: no links.
    pub fn with_console_url(self, url: &str) -> Self {
        Self {
            console_url: url.into(),
            ..self
        }
    }

    /// The endpoints' names, in the order of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|endpoint| endpoint.name.as_str())
    }

    /// The signing keys of the endpoints, to be replaced while the notifier runs.
    pub fn webhook_keys(&self) -> WebhookKeys {
        let endpoints = self.endpoints.clone();
        WebhookKeys { endpoints }
    }

    /// Saves where delivery begins, for endpoints that have not been notified before.
    pub async fn save_first_cursors(&self, store: &Store, start_after: VerdictId) {
        for name in self.names() {
            worker::save_first_cursor(store.dir(), name, start_after).await;
        }
    }

    /// Delivers until the service drains. `on_event` gets the index of the endpoint
    /// and each delivery event.
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
                console_url: self.console_url.clone(),
            };
            let on_event = on_event.clone();
            workers.spawn(worker.run(move |event| on_event(index, event)));
        }
        workers.join_all().await;
        // Without endpoints, wait for the drain: the task must not end early.
        context.draining.cancelled().await;
    }
}

/// Replaces the signing keys of a running notifier. Its other settings need a restart.
pub struct WebhookKeys {
    endpoints: Vec<Arc<Endpoint>>,
}

/// Keys that have been read and are not in force yet.
pub struct PendingKeys(Vec<(Arc<Endpoint>, SigningKeys)>);

impl WebhookKeys {
    /// Reads the secrets of the entries that have a running endpoint, by name.
    pub fn read(&self, entries: &[Settings]) -> Result<PendingKeys, NotifyError> {
        let mut pending = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let running = self.endpoints.iter().find(|it| it.name == entry.name);
            if let Some(endpoint) = running {
                let keys = Endpoint::read_signing_keys(entry)
                    .map_err(|error| NotifyError::Endpoint(index, error))?;
                pending.push((endpoint.clone(), keys));
            }
        }
        Ok(PendingKeys(pending))
    }

    pub fn apply(&self, PendingKeys(pending): PendingKeys) {
        for (endpoint, keys) in pending {
            endpoint.replace_signing_keys(keys);
        }
    }

    /// Whether the running endpoints are these entries, apart from their secrets.
    pub fn are_for(&self, entries: &[Settings]) -> bool {
        self.endpoints.len() == entries.len()
            && self
                .endpoints
                .iter()
                .zip(entries)
                .all(|(endpoint, entry)| endpoint.settings().differs_only_in_secret(entry))
    }
}

/// The name is a metric label and part of a file name.
fn is_valid_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(is_allowed)
}

/// Installs the process-wide TLS crypto provider. An error means that it is already
/// installed.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
