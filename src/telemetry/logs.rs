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
const QUEUED_LINES_MAX: usize = 8_192;
/// So long the last lines are waited for; where nobody reads them, half of it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The thread that writes the lines.
pub struct LogWriter {
    writer: WorkerGuard,
    dropped_lines: ErrorCounter,
}

impl LogWriter {
    /// Counts the lines that were let go of.
    pub fn dropped_lines(&self) -> ErrorCounter {
        self.dropped_lines.clone()
    }

    /// Waits for the last lines, as long as that is worth it.
    pub fn shutdown(self) {
        let (done_sender, done_receiver) = mpsc::channel();
        thread::spawn(move || {
            drop(self.writer);
            // Who waits may have given up.
            let _ = done_sender.send(());
        });
        let _ = done_receiver.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Logs go to standard error, at level `info` unless `RUST_LOG` says otherwise;
/// spans go where `traces` says. A second call in one process changes nothing.
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
    let lines = match format {
        LogFormat::Text => lines.with_ansi(ansi).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut layers = vec![lines.with_filter(filter).boxed()];
    layers.extend(traces.layer().map(Layer::boxed));
    // An earlier subscriber stays: there is nobody to tell.
    let _ = tracing_subscriber::registry().with(layers).try_init();
    LogWriter {
        writer,
        dropped_lines,
    }
}

/// A panic says where it happened and nothing else: its message may quote what
/// an agent wrote.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(place = ?location, "a bug: something panicked");
    }));
}
