//! Set-up shared by unit tests: a configuration, a store, an engine.

use std::{sync::Arc, time::UNIX_EPOCH};

#[path = "../tests/setup/repetition_settings.rs"]
mod repetition_settings;

pub use repetition_settings::repetition_settings;

use crate::{
    config::{Config, DEFAULTS, Layers},
    domain::{
        Action, Effect, Labels, RepetitionSettings, SessionId, Verdict, VerdictId, VerdictRecord,
        VerdictSink,
    },
    engine::{Engine, RunMode},
    store::{Store, StoreOptions},
    telemetry::Metrics,
};

/// The built-in configuration with these environment variables. The store is in
/// memory, there is no key file, and the system picks the ports.
pub fn config(variables: &[(&str, &str)]) -> Config {
    const BASE: &[(&str, &str)] = &[
        ("UNSTUCK__SERVER__GRPC", "127.0.0.1:0"),
        ("UNSTUCK__SERVER__HTTP", "127.0.0.1:0"),
        ("UNSTUCK__STORE__DIR", ""),
        ("UNSTUCK__STORE__KEY_FILE", ""),
    ];
    let environment = BASE
        .iter()
        .chain(variables)
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Config::new(&Layers::load(DEFAULTS, &[], None, environment).unwrap()).unwrap()
}

pub fn store(config: &Config) -> Store {
    Store::open(StoreOptions::for_test(config)).unwrap().0
}

/// An engine with the metrics of its detectors.
pub fn engine(config: Config, run_mode: RunMode, sink: VerdictSink) -> Engine {
    let metrics = Metrics::new(config.profiles.detector_names()).unwrap();
    Engine::new(
        config.profiles,
        config.tools,
        config.engine,
        Arc::new(metrics),
        run_mode,
        sink,
    )
}

/// A detector's verdict as it is stored.
pub fn verdict_record(id: u128, session: &str, action: Action) -> VerdictRecord {
    let session = SessionId::parse(session).unwrap();
    let verdict = Verdict {
        id: VerdictId(id),
        action: Some(action),
        ..Verdict::without_loop(session, "read_loop".into(), UNIX_EPOCH)
    };
    VerdictRecord {
        verdict: Arc::new(verdict),
        labels: Arc::new(Labels::default()),
        profile: "default".into(),
        effect: Effect::None,
        position: None,
    }
}
