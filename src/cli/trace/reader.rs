//! Opens trace files, with a progress bar for long ones.

use std::{
    fs::File,
    io::{self, BufReader, IsTerminal, Read},
    path::Path,
};

use indicatif::{ProgressBar, ProgressStyle};

/// An open trace file.
pub(in crate::cli) struct TraceSource {
    pub reader: BufReader<Box<dyn Read>>,
    /// Hidden for short files and without a terminal.
    pub progress: ProgressBar,
    /// Another process may be writing the input and waiting for the output.
    pub live: bool,
}

/// One system call and one step of the progress bar per thousand lines or so.
const BUFFER_BYTES: usize = 256 * 1024;
/// A shorter file is read before a person would notice the bar.
const PROGRESS_BYTES_MIN: u64 = 8 * 1024 * 1024;

impl TraceSource {
    pub fn stdin() -> Self {
        Self {
            reader: buffer_reader(Box::new(io::stdin().lock())),
            progress: ProgressBar::hidden(),
            live: true,
        }
    }

    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let progress = progress_bar(file.metadata()?.len());
        Ok(Self {
            reader: buffer_reader(Box::new(progress.wrap_read(file))),
            progress,
            live: false,
        })
    }
}

fn buffer_reader(reader: Box<dyn Read>) -> BufReader<Box<dyn Read>> {
    BufReader::with_capacity(BUFFER_BYTES, reader)
}

/// Hidden for little work and without a terminal.
pub(in crate::cli) fn progress_bar(bytes: u64) -> ProgressBar {
    if bytes < PROGRESS_BYTES_MIN || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {bytes} of {total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─");
    ProgressBar::new(bytes).with_style(style)
}
