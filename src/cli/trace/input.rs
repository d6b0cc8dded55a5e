use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    mem::take,
    ops::Range,
    path::Path,
};

use indicatif::{ProgressBar, ProgressStyle};
use memchr::memchr;

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

/// The lines of a file that are not empty.
pub(in crate::cli) struct Lines<R> {
    reader: R,
    /// The line, where it does not lie in the reader's buffer as a whole.
    buffer: Vec<u8>,
    /// So many bytes of the reader's buffer are the line, where it does.
    lent: usize,
    /// The line without white space around it, such as the CR of a CRLF.
    text: Range<usize>,
    number: u64,
}

/// A line and its number, from 1.
pub(in crate::cli) type Numbered<'a> = (u64, Result<&'a [u8], Fault>);

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What was found at the reader's place.
enum Found {
    Line,
    TooLong,
    End,
}

impl<R: BufRead> Lines<R> {
    /// More than the server takes in a message, as a batch may be one; less than
    /// what a file without any line break would make us hold.
    pub const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

    pub fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            lent: 0,
            text: 0..0,
            number: 0,
        }
    }

    pub fn next(&mut self) -> io::Result<Option<Numbered<'_>>> {
        loop {
            match self.read()? {
                Found::End => return Ok(None),
                Found::TooLong => {
                    let fault = Fault::TooLong(Self::LINE_BYTES_MAX);
                    return Ok(Some((self.number, Err(fault))));
                }
                Found::Line if self.text.is_empty() => {}
                Found::Line => break,
            }
        }
        let line = match self.lent {
            0 => &*self.buffer,
            // What is in its buffer the reader gives without reading.
            _ => self.reader.fill_buf()?,
        };
        let text = line.get(self.text.clone()).unwrap_or_default();
        Ok(Some((self.number, Ok(text))))
    }

    /// Reads a line, with its break.
    fn read(&mut self) -> io::Result<Found> {
        self.reader.consume(take(&mut self.lent));
        self.buffer.clear();
        self.number += 1;
        // Nearly all lines lie in the reader's buffer, and are not copied.
        match self
            .reader
            .fill_buf()
            .map(|ahead| (memchr(b'\n', ahead), ahead))
        {
            Ok((_, [])) => return Ok(Found::End),
            Ok((Some(end), ahead)) if end <= Self::LINE_BYTES_MAX => {
                self.text = trimmed(&ahead[..end], self.number);
                self.lent = end + 1;
                return Ok(Found::Line);
            }
            // An error comes again, or was an interruption.
            Ok(_) | Err(_) => {}
        }
        // A break, and one byte to know a line that is longer.
        let bytes_max = Self::LINE_BYTES_MAX as u64 + 1;
        let mut bounded = self.reader.by_ref().take(bytes_max);
        let bytes = bounded.read_until(b'\n', &mut self.buffer)?;
        if bytes > Self::LINE_BYTES_MAX && !self.buffer.ends_with(b"\n") {
            self.buffer = Vec::new();
            self.reader.skip_until(b'\n')?;
            return Ok(Found::TooLong);
        }
        self.text = trimmed(&self.buffer, self.number);
        Ok(if bytes > 0 { Found::Line } else { Found::End })
    }
}

/// Where the text of a line is.
fn trimmed(line: &[u8], number: u64) -> Range<usize> {
    let has_mark = number == 1 && line.starts_with(BOM);
    let start = if has_mark { BOM.len() } else { 0 };
    let text = line[start..].trim_ascii_end();
    let end = start + text.len();
    end - text.trim_ascii_start().len()..end
}
