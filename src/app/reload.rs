//! What changes while the service runs: the configuration on SIGHUP, the tokens
//! when their file does.

use std::{sync::Arc, time::Duration};

use thiserror::Error;
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::{App, RunError, StartError, resources::check_startup};
use crate::{
    auth::{Auth, TokensError},
    config::{self, Config, ConfigError, Layers},
    engine::{self, Engine},
    server::{Tls, TlsError},
    store::Store,
    telemetry::{ConfigReloadOutcome, Metrics},
};

/// How soon a changed file of tokens is noticed.
const TOKENS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a reload changes: these keys, and all that begin with them and a dot.
/// Every other needs a restart.
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

/// Why the configuration stays as it was.
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

/// Reads the configuration of a running service anew.
pub struct Reloader {
    /// What is in force, save what waits for a restart.
    layers: Layers,
    engine: Arc<Engine>,
    auth: Arc<Auth>,
    tls: Option<Arc<Tls>>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    insecure: bool,
}

impl App {
    /// `layers` are those that the service was started with. `insecure`: it was
    /// told that it may listen where everybody reaches it.
    pub fn reloader(&self, layers: Layers, insecure: bool) -> Reloader {
        Reloader {
            layers,
            insecure,
            engine: self.engine.clone(),
            auth: self.auth.clone(),
            tls: self.tls.clone(),
            store: self.store.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl Reloader {
    /// Goes by this configuration from now on, or, where anything in it is
    /// wrong, by the old one.
    pub fn reload(&mut self, layers: Result<Layers, ConfigError>) {
        match self.apply(layers) {
            Ok(changed) => {
                self.metrics
                    .count_config_reload(ConfigReloadOutcome::Applied);
                let (reloaded, restart_required): (Vec<_>, Vec<_>) =
                    changed.into_iter().partition(|key| is_reloadable(key));
                tracing::info!(changed = ?reloaded, "the configuration was read anew");
                if !restart_required.is_empty() {
                    tracing::warn!(keys = ?restart_required, "a restart is needed for these keys");
                }
            }
            Err(error) => {
                self.metrics
                    .count_config_reload(ConfigReloadOutcome::Refused);
                let error = error.to_string();
                tracing::error!(?error, "the configuration stays as it was");
            }
        }
    }

    /// The keys that were changed. Whatever can fail is done before anything is
    /// changed, and what waits for a restart must be fit for one.
    fn apply(
        &mut self,
        layers: Result<Layers, ConfigError>,
    ) -> Result<Vec<String>, ConfigReloadError> {
        let layers = layers?;
        let config = Config::new(&layers)?;
        check_startup(&config, self.insecure)?;
        let tokens = self.auth.read_tokens()?;
        let certificates = self.tls.as_ref().map(|tls| tls.load_files()).transpose()?;
        let tombstones_max = config.engine.tombstones_max;
        self.engine
            .reload(config.profiles, config.tools, config.engine)?;
        self.store.set_tombstones_max(tombstones_max);
        self.auth.apply_tokens(tokens);
        self.engine.set_tenant_count(self.auth.tenant_count());
        if let Some((tls, certificates)) = self.tls.as_ref().zip(certificates) {
            tls.apply(certificates);
        }
        let changed = config::changed_keys(&self.layers, &layers);
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

/// Reads the tokens anew when their file has changed.
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
                tracing::info!(tokens = auth.len(), "the tokens were read anew");
            }
            Some(Err(error)) => {
                let error = error.to_string();
                tracing::error!(?error, "the tokens stay as they were");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULTS;

    /// What the engine, which takes its limits anew, reads with this variable set.
    fn read(variable: Option<(String, String)>) -> String {
        let layers = Layers::load(DEFAULTS, &[], None, variable).unwrap();
        let limits: engine::Limits = layers.section("limits").unwrap();
        format!("{limits:?}")
    }

    #[test]
    fn what_the_engine_takes_anew_is_live_and_nothing_else_and_the_page_says_so() {
        let page = include_str!("../../docs/security.md");
        let page = page.lines().find(|line| line.contains("**At once"));
        let is_said = |name: &str| page.unwrap().contains(&format!("`{name}`"));
        let layers = Layers::load(DEFAULTS, &[], None, []).unwrap();
        let defaults: toml::Table = layers.to_toml().parse().unwrap();
        for key in defaults["limits"].as_table().unwrap().keys() {
            let variable = format!("UNSTUCK__LIMITS__{}", key.to_uppercase());
            let is_read = read(Some((variable, "1".to_owned()))) != read(None);
            // The store goes by it too, so the engine keeps the old one.
            let taken = is_read && key != "tombstone_secs_max";
            assert_eq!(is_reloadable(&format!("limits.{key}")), taken, "{key}");
            assert_eq!(is_said(key), taken, "docs/security.md: {key}");
        }
        for live in RELOADABLE_KEYS.iter().filter(|live| !live.contains('.')) {
            let said = is_said(&format!("[{live}]")) || is_said(&format!("[[{live}]]"));
            assert!(said, "docs/security.md: {live}");
        }
    }
}
