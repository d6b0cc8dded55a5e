//! Changes of a running service: the configuration is reloaded on SIGHUP, the tokens
//! when their file changes.

use std::{sync::Arc, time::Duration};

use thiserror::Error;
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::{App, RunError, StartError, resources::check_startup};
use crate::{
    auth::{Auth, TokensError},
    config::{self, Config, ConfigError, Layers},
    engine::{self, Engine},
    notify::WebhookKeys,
    server::{Tls, TlsError},
    store::Store,
    telemetry::{ConfigReloadOutcome, Metrics},
};

/// How often the file of tokens is checked for changes.
const TOKENS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The keys that a reload applies, with all keys below them. Every other key needs a
/// restart.
const RELOADABLE_KEYS: &[&str] = &[
    "detect",
    "policy",
    "profiles",
    "tools",
    "rules",
    "breaker",
    "limits.sessions_max",
    "limits.state_bytes_max",
    "limits.idle_secs_max",
    "limits.pressure_idle_secs_min",
    "limits.agents_max",
    "limits.event_ids_max",
    "limits.tombstones_max",
    "limits.tombstone_bytes_max",
    "limits.post_mortem_bytes_max",
];

/// The endpoints of notifications, one value for all of them.
const NOTIFY_KEY: &str = "notify";

/// Why a configuration is not applied.
#[derive(Debug, Error)]
pub enum ConfigReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The service would not start with it.
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot use the tokens ([auth] tokens): {0}")]
    Tokens(#[from] TokensError),
    #[error("cannot use TLS ([tls]): {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Engine(#[from] engine::EngineReloadError),
}

/// Reloads the configuration of a running service.
pub struct Reloader {
    /// The configuration in force. Keys that need a restart may not be in force yet.
    layers: Layers,
    engine: Arc<Engine>,
    auth: Arc<Auth>,
    tls: Option<Arc<Tls>>,
    webhook_keys: Arc<WebhookKeys>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    insecure: bool,
}

impl App {
    /// `layers` is the configuration that the service was started with. `insecure`: it may
    /// listen on a public address without TLS and tokens.
    pub fn reloader(&self, layers: Layers, insecure: bool) -> Reloader {
        Reloader {
            layers,
            insecure,
            engine: self.engine.clone(),
            auth: self.auth.clone(),
            tls: self.tls.clone(),
            webhook_keys: self.webhook_keys.clone(),
            store: self.store.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl Reloader {
    /// Applies a configuration. If anything in it is wrong, the old one stays in force
    /// as a whole.
    pub fn reload(&mut self, layers: Result<Layers, ConfigError>) {
        match self.apply(layers) {
            Ok(changed) => {
                self.metrics
                    .count_config_reload(ConfigReloadOutcome::Applied);
                let (reloaded, restart_required): (Vec<_>, Vec<_>) =
                    changed.into_iter().partition(|key| is_reloadable(key));
                tracing::info!(changed = ?reloaded, "the configuration was reloaded");
                if !restart_required.is_empty() {
                    tracing::warn!(keys = ?restart_required, "a restart is needed for these keys");
                }
            }
            Err(error) => {
                self.metrics
                    .count_config_reload(ConfigReloadOutcome::Refused);
                let error = error.to_string();
                tracing::error!(
                    ?error,
                    "cannot reload the configuration; the old one stays in force"
                );
            }
        }
    }

    /// Returns the changed keys. Everything that can fail is done before anything is
    /// changed. Keys that need a restart are checked too, so that the restart succeeds.
    fn apply(
        &mut self,
        layers: Result<Layers, ConfigError>,
    ) -> Result<Vec<String>, ConfigReloadError> {
        let layers = layers?;
        let config = Config::new(&layers)?;
        check_startup(&config, self.insecure)?;
        let tokens = self.auth.read_tokens()?;
        let certificates = self.tls.as_ref().map(|tls| tls.load_files()).transpose()?;
        let keys = self.webhook_keys.read(&config.notify);
        let keys = keys.map_err(StartError::from)?;
        let tombstones_max = config.engine.tombstones_max;
        self.engine
            .reload(config.profiles, config.tools, config.engine)?;
        self.store.set_tombstones_max(tombstones_max);
        self.auth.apply_tokens(tokens);
        self.engine.set_tenant_count(self.auth.tenant_count());
        if let Some((tls, certificates)) = self.tls.as_ref().zip(certificates) {
            tls.apply(certificates);
        }
        self.webhook_keys.apply(keys);
        let mut changed = config::changed_keys(&self.layers, &layers);
        // Of `[[notify]]` only the secrets are applied.
        if self.webhook_keys.are_for(&config.notify) {
            changed.retain(|key| key != NOTIFY_KEY);
        }
        self.layers = layers;
        Ok(changed)
    }
}

fn is_reloadable(key: &str) -> bool {
    RELOADABLE_KEYS.iter().any(|prefix| {
        let rest = key.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Reloads the tokens when their file has changed.
pub(super) async fn watch_tokens(
    auth: Arc<Auth>,
    engine: Arc<Engine>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let mut ticks = time::interval(TOKENS_CHECK_INTERVAL);
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        match auth.reload_if_changed() {
            None => {}
            Some(Ok(())) => {
                engine.set_tenant_count(auth.tenant_count());
                tracing::info!(tokens = auth.len(), "the tokens were reloaded");
            }
            Some(Err(error)) => {
                let error = error.to_string();
                tracing::error!(
                    ?error,
                    "cannot reload the tokens; the old ones stay in force"
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULTS;

    /// The engine's limits with this variable set.
    fn engine_limits(variable: Option<(String, String)>) -> String {
        let layers = Layers::load(DEFAULTS, &[], None, variable).unwrap();
        let limits: engine::Limits = layers.section("limits").unwrap();
        format!("{limits:?}")
    }

    #[test]
    fn exactly_the_limits_of_the_engine_are_reloadable_and_the_docs_list_them() {
        let page = include_str!("../../docs/security.md");
        let list = page
            .lines()
            .find(|line| line.contains("**At once"))
            .unwrap();
        let is_listed = |name: &str| list.contains(&format!("`{name}`"));
        let layers = Layers::load(DEFAULTS, &[], None, []).unwrap();
        let defaults: toml::Table = layers.to_toml().parse().unwrap();
        for key in defaults["limits"].as_table().unwrap().keys() {
            let variable = format!("UNSTUCK__LIMITS__{}", key.to_uppercase());
            let is_engine_limit =
                engine_limits(Some((variable, "1".to_owned()))) != engine_limits(None);
            // The store uses it too, so the engine keeps the old value until a restart.
            let expected = is_engine_limit && key != "tombstone_secs_max";
            assert_eq!(is_reloadable(&format!("limits.{key}")), expected, "{key}");
            assert_eq!(is_listed(key), expected, "docs/security.md: {key}");
        }
        for section in RELOADABLE_KEYS.iter().filter(|key| !key.contains('.')) {
            assert!(
                is_listed(&format!("[{section}]")) || is_listed(&format!("[[{section}]]")),
                "docs/security.md: {section}"
            );
        }
    }
}
