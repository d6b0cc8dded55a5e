//! Tells others of verdicts: webhooks.
//!
//! A notifier is a watcher like any other: it reads the feed, delivers, and
//! remembers how far it has come. Nothing waits for it. With a store its place is
//! kept there, so that a restart loses no notice; it may deliver one twice, under
//! the same id.
//!
//! Uses: domain.

mod address;
mod endpoint;
mod message;
mod settings;

pub use endpoint::{Delivery, EndpointError};
pub use settings::{Format, Secret, SecretError, Settings, Text};

/// TLS needs to be told once whose cryptography it is to use. An error says that
/// it was told before.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
