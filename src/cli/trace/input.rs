use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::Path,
};

use indicatif::{ProgressBar, ProgressStyle};

use super::line::Fault;

/// A file that is being read.
pub(in crate::cli) struct Source {
    pub reader: BufReader<Box<dyn Read>>,
    /// Hidden where nobody would see it or it would be over at once.
    pub progress: ProgressBar,
    /// Somebody may be writing it right now, and waiting for an answer.
    pub live: bool,
}

/// One system call and one step of the progress bar for about a thousand lines.
const BUFFER_BYTES: usize = 256 * 1024;
/// A shorter file is read in the time it takes to notice a bar.
const PROGRESS_BYTES_MIN: u64 = 8 * 1024 * 1024;

impl Source {
    pub fn stdin() -> Self {
        Self {
            reader: buffered(Box::new(io::stdin().lock())),
            progress: ProgressBar::hidden(),
            live: true,
        }
    }

    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let progress = progress(file.metadata()?.len());
        Ok(Self {
            reader: buffered(Box::new(progress.wrap_read(file))),
            progress,
            live: false,
        })
    }
}

fn buffered(reader: Box<dyn Read>) -> BufReader<Box<dyn Read>> {
    BufReader::with_capacity(BUFFER_BYTES, reader)
}

fn progress(bytes: u64) -> ProgressBar {
    if bytes < PROGRESS_BYTES_MIN || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {bytes} of {total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─");
    ProgressBar::new(bytes).with_style(style)
}

/// The lines of a file that are not empty, each in the same buffer.
pub(in crate::cli) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    number: u64,
    too_long: bool,
}

/// A line and its number, from 1.
pub(in crate::cli) type Numbered<'a> = (u64, Result<&'a [u8], Fault>);

const BOM: &[u8] = b"\xef\xbb\xbf";

impl<R: BufRead> Lines<R> {
    /// More than the server takes in a message, as a batch may be one; less than
    /// what a file without any line break would make us hold.
    pub const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

    pub fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            number: 0,
            too_long: false,
        }
    }

    pub fn next(&mut self) -> io::Result<Option<Numbered<'_>>> {
        loop {
            if !self.read()? {
                return Ok(None);
            }
            if self.too_long || !self.text().is_empty() {
                break;
            }
        }
        let line = if self.too_long {
            Err(Fault::TooLong(Self::LINE_BYTES_MAX))
        } else {
            Ok(self.text())
        };
        Ok(Some((self.number, line)))
    }

    /// The line without white space around it, such as the CR of a CRLF.
    fn text(&self) -> &[u8] {
        let text = &*self.buffer;
        let text = match text.strip_prefix(BOM) {
            Some(text) if self.number == 1 => text,
            _ => text,
        };
        text.trim_ascii()
    }

    /// Reads a line into the buffer; false at the end of the file.
    fn read(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        // A break, and one byte to know a line that is longer.
        let bytes_max = Self::LINE_BYTES_MAX as u64 + 1;
        let mut bounded = self.reader.by_ref().take(bytes_max);
        let bytes = bounded.read_until(b'\n', &mut self.buffer)?;
        self.number += 1;
        self.too_long = bytes > Self::LINE_BYTES_MAX && !self.buffer.ends_with(b"\n");
        if self.too_long {
            self.buffer = Vec::new();
            self.reader.skip_until(b'\n')?;
        }
        Ok(bytes > 0)
    }
}
