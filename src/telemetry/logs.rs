use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use super::Traces;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line, for programs.
    Json,
}

/// Logs go to standard error, at level `info` unless `RUST_LOG` says otherwise;
/// spans go where `traces` says. A second call in one process changes nothing.
pub fn init(format: LogFormat, traces: &Traces) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(ansi).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut layers = vec![lines.with_filter(filter).boxed()];
    layers.extend(traces.layer().map(Layer::boxed));
    // An earlier subscriber stays: there is nobody to tell.
    let _ = tracing_subscriber::registry().with(layers).try_init();
}

/// A panic says where it happened and nothing else: its message may quote what
/// an agent wrote.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place = ?place, "a bug: something panicked");
    }));
}
