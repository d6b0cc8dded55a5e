//! What of a configuration is only known to be sound once it was made: it names
//! files, secrets and templates. The start, a reload and `unstuck config check`
//! ask the same.

use std::net::SocketAddr;

use super::StartError;
use crate::{
    auth::Auth,
    config::Config,
    notify::Notifier,
    server::{Settings, Tls},
};

/// Made of a configuration, and not in use yet.
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
            notifier: Notifier::new(config.notify.clone())?,
        })
    }
}

/// Whether the service would start with this configuration, where its ports are
/// free and its store is sound: neither is touched. `insecure`: it may listen
/// where everybody reaches it.
pub fn check_startup(config: &Config, insecure: bool) -> Result<(), StartError> {
    match find_exposed_key(config).filter(|_| !insecure) {
        Some(key) => Err(StartError::Exposed(key)),
        None => Resources::new(config).map(drop),
    }
}

/// The address that other machines reach, where they need no token or can be
/// read along.
pub fn find_exposed_key(config: &Config) -> Option<&'static str> {
    if config.tls.is_on() && config.auth.is_on() {
        return None;
    }
    let Settings { grpc, http, .. } = &config.server;
    let addresses = [("server.grpc", grpc), ("server.http", http)];
    let is_open = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
    let mut open = addresses.iter().filter(|(_, address)| is_open(address));
    open.next().map(|(key, _)| *key)
}
