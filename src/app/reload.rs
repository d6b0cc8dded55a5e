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
    /// The configuration that was reloaded last. Its keys that need a restart are not in
    /// force.
    layers: Layers,
    /// The configuration that the service was started with: its keys that need a restart
    /// are in force.
    started: Layers,
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
            started: layers.clone(),
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
            Ok(ChangedKeys {
                reloaded,
                restart_required,
            }) => {
                tracing::info!(changed = ?reloaded, "the configuration was reloaded");
                if !restart_required.is_empty() {
                    tracing::warn!(keys = ?restart_required, "a restart is needed for these keys");
                }
                // Counted last: a reader of the metric finds the lines in the log.
                self.metrics
                    .count_config_reload(ConfigReloadOutcome::Applied);
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

    /// Everything that can fail is done before anything is changed. Keys that need a
    /// restart are checked too, so that the restart succeeds.
    fn apply(
        &mut self,
        layers: Result<Layers, ConfigError>,
    ) -> Result<ChangedKeys, ConfigReloadError> {
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
        let mut changed = ChangedKeys::new(&self.started, &self.layers, &layers);
        // Of `[[notify]]` only the secrets are applied.
        if self.webhook_keys.are_for(&config.notify) {
            changed.restart_required.retain(|key| key != NOTIFY_KEY);
        }
        self.layers = layers;
        Ok(changed)
    }
}

/// The parts of the service that a reload changes.
#[derive(Debug, PartialEq, Eq)]
struct ChangedKeys {
    /// The keys that have changed since the previous reload and are in force.
    reloaded: Vec<String>,
    /// The keys that differ from those at the start and need a restart. A change stays
    /// listed until the restart, or until it is taken back.
    restart_required: Vec<String>,
}

impl ChangedKeys {
    fn new(started: &Layers, previous: &Layers, layers: &Layers) -> Self {
        let mut reloaded = config::changed_keys(previous, layers);
        reloaded.retain(|key| is_reloadable(key));
        let mut restart_required = config::changed_keys(started, layers);
        restart_required.retain(|key| !is_reloadable(key));
        Self {
            reloaded,
            restart_required,
        }
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

    #[test]
    fn a_change_that_needs_a_restart_is_listed_until_it_is_taken_back() {
        let layers = |batch_max: u32, count: u32| {
            let variables = [
                ("UNSTUCK__LIMITS__BATCH_MAX", batch_max),
                ("UNSTUCK__DETECT__EXACT_REPEAT__COUNT", count),
            ];
            let variables = variables.map(|(key, value)| (key.to_owned(), value.to_string()));
            Layers::load(DEFAULTS, &[], None, variables).unwrap()
        };
        let start = layers(256, 3);
        let changed = layers(7, 4);
        let listed = |previous: &Layers, layers: &Layers| {
            let keys = ChangedKeys::new(&start, previous, layers);
            (keys.reloaded.join(" "), keys.restart_required.join(" "))
        };
        let pair = |reloaded: &str, restart: &str| (reloaded.to_owned(), restart.to_owned());
        let (count, batch_max) = ("detect.exact_repeat.count", "limits.batch_max");
        assert_eq!(listed(&start, &changed), pair(count, batch_max));
        assert_eq!(listed(&changed, &changed), pair("", batch_max));
        assert_eq!(listed(&changed, &start), pair(count, ""));
    }

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
