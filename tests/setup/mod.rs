//! A configuration, a store and an engine in the process: for tests, benchmarks and fuzz
//! targets.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each target uses some of it, and may panic"
)]

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use unstuck::{
    config::{Config, ConfigError, DEFAULTS, Layers, TABLE_KEYS},
    domain::VerdictSink,
    engine::{Engine, RunMode},
    store::StoreOptions,
    telemetry::Metrics,
};

/// The built-in configuration with these overrides. The environment is ignored.
pub fn config(toml: impl AsRef<[u8]>) -> Result<Config, ConfigError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, toml).unwrap();
    Config::new(&Layers::load(DEFAULTS, TABLE_KEYS, Some(file.path()), [])?)
}

/// The options of a store that must not fail.
pub fn store_options(config: &Config, now: SystemTime) -> StoreOptions<'_> {
    StoreOptions {
        settings: &config.store,
        audit: config.audit,
        tombstone_age_max: Duration::from_secs(config.engine.tombstone_secs_max),
        tombstones_max: config.engine.tombstones_max,
        now,
        on_fatal: Box::new(|error| panic!("{error}")),
    }
}

/// An engine and its metrics.
pub fn engine(config: Config, run_mode: RunMode, sink: VerdictSink) -> (Engine, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new(config.profiles.detector_names()).unwrap());
    let engine = Engine::new(
        config.profiles,
        config.tools,
        config.engine,
        metrics.clone(),
        run_mode,
        sink,
    );
    (engine, metrics)
}

/// An engine whose verdicts are in its answers only.
pub fn engine_without_sink(config: Config, run_mode: RunMode) -> Engine {
    engine(config, run_mode, Box::new(|_| {})).0
}
