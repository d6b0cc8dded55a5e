use std::{sync::mpsc, thread, time::Duration};

use clap::ValueEnum;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
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

/// Lines that wait to be written, some 2 MiB. Beyond it they are let go of: whoever
/// reads standard error may hang, and nobody else is to wait for that.
const LINES_MAX: usize = 8_192;
/// So long the last lines are waited for; where nobody reads them, half of it.
const END_MAX: Duration = Duration::from_secs(2);

/// The thread that writes the lines.
pub struct Logs {
    writer: WorkerGuard,
    lost: ErrorCounter,
}

impl Logs {
    /// Counts the lines that were let go of.
    pub fn lost(&self) -> ErrorCounter {
        self.lost.clone()
    }

    /// Waits for the last lines, as long as that is worth it.
    pub fn end(self) {
        let (written, are_written) = mpsc::channel();
        thread::spawn(move || {
            drop(self.writer);
            // Who waits may have given up.
            let _ = written.send(());
        });
        let _ = are_written.recv_timeout(END_MAX);
    }
}

/// Logs go to standard error, at level `info` unless `RUST_LOG` says otherwise;
/// spans go where `traces` says. A second call in one process changes nothing.
pub fn init(format: LogFormat, traces: &Traces) -> Logs {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none();
    let (stderr, writer) = NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_MAX)
        .lossy(true)
        .thread_name("logs")
        .finish(std::io::stderr());
    let lost = stderr.error_counter();
    let lines = fmt::layer().with_writer(stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(ansi).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut layers = vec![lines.with_filter(filter).boxed()];
    layers.extend(traces.layer().map(Layer::boxed));
    // An earlier subscriber stays: there is nobody to tell.
    let _ = tracing_subscriber::registry().with(layers).try_init();
    Logs { writer, lost }
}

/// A panic says where it happened and nothing else: its message may quote what
/// an agent wrote.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place = ?place, "a bug: something panicked");
    }));
}
