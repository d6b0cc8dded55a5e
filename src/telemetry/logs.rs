//! Log lines on standard error, written by a separate thread.

use std::{sync::mpsc, thread, time::Duration};

use clap::ValueEnum;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use super::Traces;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// Lines that wait to be written, about 2 MiB. Further lines are dropped and counted:
/// the reader of standard error may hang, and the service must not wait for it.
const QUEUED_LINES_MAX: usize = 8_192;
/// How long `shutdown` waits for the last lines. If standard error is not read, the
/// writer gives up after half of it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The thread that writes the lines.
pub struct LogWriter {
    writer: WorkerGuard,
    dropped_lines: ErrorCounter,
}

impl LogWriter {
    /// The counter of dropped lines.
    pub fn dropped_lines(&self) -> ErrorCounter {
        self.dropped_lines.clone()
    }

    /// Waits until the last lines are written, at most `FLUSH_TIMEOUT`.
    pub fn shutdown(self) {
        let (done_sender, done_receiver) = mpsc::channel();
        thread::spawn(move || {
            drop(self.writer);
            // The receiver is gone after the timeout.
            let _ = done_sender.send(());
        });
        let _ = done_receiver.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Logs to standard error, at level `info` unless `RUST_LOG` is set, and sends spans
/// to `traces`. A second call in one process changes nothing.
pub fn init(format: LogFormat, traces: &Traces) -> LogWriter {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none();
    let (stderr, writer) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUED_LINES_MAX)
        .lossy(true)
        .thread_name("logs")
        .finish(std::io::stderr());
    let dropped_lines = stderr.error_counter();
    let lines = fmt::layer().with_writer(stderr);
    let formatted = match format {
        LogFormat::Text => lines.with_ansi(ansi).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut layers = vec![formatted.with_filter(filter).boxed()];
    layers.extend(traces.layer().map(Layer::boxed));
    // Fails if a subscriber is installed already; that one stays.
    let _ = tracing_subscriber::registry().with(layers).try_init();
    LogWriter {
        writer,
        dropped_lines,
    }
}

/// Logs only the location of a panic, because its message may quote agent text.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(?location, "panic: this is a bug");
    }));
}
