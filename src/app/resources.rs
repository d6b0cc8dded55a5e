//! The files, secrets and templates that a configuration refers to. Loading them is the
//! only way to check them, so startup, a reload and `unstuck config check` all do.

use super::StartError;
use crate::{
    auth::Auth,
    config::Config,
    notify::Notifier,
    server::{Settings, Tls},
};

/// Created from a configuration, not in use yet.
pub(super) struct Resources {
    pub auth: Auth,
    pub tls: Option<Tls>,
    pub notifier: Notifier,
}

impl Resources {
    pub fn new(config: &Config) -> Result<Self, StartError> {
        Ok(Self {
            auth: Auth::new(&config.auth)?,
            tls: Tls::new(&config.tls)?,
            notifier: Notifier::new(config.notify.clone())?
                .with_console_url(&config.server.console_url),
        })
    }
}

/// Checks that the service starts with this configuration. The ports are not bound and
/// the store is not opened. `insecure`: it may listen on a public address without TLS and
/// tokens.
pub fn check_startup(config: &Config, insecure: bool) -> Result<(), StartError> {
    match find_exposed_key(config).filter(|_| !insecure) {
        Some(key) => Err(StartError::Exposed(key)),
        None => Resources::new(config).map(drop),
    }
}

/// The key of an address that is not a loopback address while TLS or tokens are off.
pub fn find_exposed_key(config: &Config) -> Option<&'static str> {
    if config.tls.is_on() && config.auth.is_on() {
        return None;
    }
    let Settings { grpc, http, .. } = &config.server;
    let addresses = [("server.grpc", grpc), ("server.http", http)];
    let exposed = addresses
        .into_iter()
        .find(|(_, address)| !address.ip().to_canonical().is_loopback());
    exposed.map(|(key, _)| key)
}
