//! Set-up shared by unit tests: a configuration, a store, an engine.

use std::{sync::Arc, time::UNIX_EPOCH};

use crate::{
    config::{Config, DEFAULTS, Layers},
    domain::{
        Action, AgentId, Effect, Evidence, Labels, SessionId, Verdict, VerdictId, VerdictRecord,
        VerdictSink, Waste,
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
    let verdict = Verdict {
        id: VerdictId(id),
        session: SessionId::parse(session).unwrap(),
        agent: AgentId::default(),
        time: UNIX_EPOCH,
        event_index: None,
        action: Some(action),
        detector: "read_loop".into(),
        other_detectors: Vec::new(),
        pattern: String::new(),
        reason: String::new(),
        confidence: 1.0,
        correction: String::new(),
        loop_id: None,
        members: Vec::new(),
        trend: None,
        evidence: Evidence::default(),
        wasted: Waste::default(),
        retry_after: None,
        durable: false,
        shadow: false,
        operator: String::new(),
    };
    VerdictRecord {
        verdict: Arc::new(verdict),
        labels: Arc::new(Labels::default()),
        profile: "default".into(),
        effect: Effect::None,
        position: None,
    }
}
