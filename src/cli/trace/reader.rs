use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    mem::take,
    ops::Range,
    path::Path,
};

use indicatif::{ProgressBar, ProgressStyle};
use memchr::memchr;

use super::line::TraceLineError;

/// A file that is being read.
pub(in crate::cli) struct TraceSource {
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

fn progress_bar(bytes: u64) -> ProgressBar {
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
pub(in crate::cli) struct NdjsonReader<R> {
    reader: R,
    /// The line, where it does not lie in the reader's buffer as a whole.
    buffer: Vec<u8>,
    /// So many bytes of the reader's buffer are the line, where it does.
    borrowed_bytes: usize,
    /// The line without white space around it, such as the CR of a CRLF.
    text_range: Range<usize>,
    line_number: u64,
}

/// A line and its number, from 1.
pub(in crate::cli) type NumberedLine<'a> = (u64, Result<&'a [u8], TraceLineError>);

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What was found at the reader's place.
enum LineStatus {
    Line,
    TooLong,
    End,
}

impl<R: BufRead> NdjsonReader<R> {
    /// More than the server takes in a message, as a batch may be one; less than
    /// what a file without any line break would make us hold.
    pub const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

    pub fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            borrowed_bytes: 0,
            text_range: 0..0,
            line_number: 0,
        }
    }

    pub fn next(&mut self) -> io::Result<Option<NumberedLine<'_>>> {
        loop {
            match self.read_line()? {
                LineStatus::End => return Ok(None),
                LineStatus::TooLong => {
                    let error = TraceLineError::TooLong(Self::LINE_BYTES_MAX);
                    return Ok(Some((self.line_number, Err(error))));
                }
                LineStatus::Line if self.text_range.is_empty() => {}
                LineStatus::Line => break,
            }
        }
        let line = match self.borrowed_bytes {
            0 => &*self.buffer,
            // What is in its buffer the reader gives without reading.
            _ => self.reader.fill_buf()?,
        };
        let text = line.get(self.text_range.clone()).unwrap_or_default();
        Ok(Some((self.line_number, Ok(text))))
    }

    /// Reads a line, with its break.
    fn read_line(&mut self) -> io::Result<LineStatus> {
        self.reader.consume(take(&mut self.borrowed_bytes));
        self.buffer.clear();
        self.line_number += 1;
        // Nearly all lines lie in the reader's buffer, and are not copied.
        match self
            .reader
            .fill_buf()
            .map(|buffered| (memchr(b'\n', buffered), buffered))
        {
            Ok((_, [])) => return Ok(LineStatus::End),
            Ok((Some(end), buffered)) if end <= Self::LINE_BYTES_MAX => {
                self.text_range = find_text_range(&buffered[..end], self.line_number);
                self.borrowed_bytes = end + 1;
                return Ok(LineStatus::Line);
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
            return Ok(LineStatus::TooLong);
        }
        self.text_range = find_text_range(&self.buffer, self.line_number);
        Ok(if bytes > 0 {
            LineStatus::Line
        } else {
            LineStatus::End
        })
    }
}

/// Where the text of a line is.
fn find_text_range(line: &[u8], number: u64) -> Range<usize> {
    let has_bom = number == 1 && line.starts_with(BOM);
    let start = if has_bom { BOM.len() } else { 0 };
    let text = line[start..].trim_ascii_end();
    let end = start + text.len();
    end - text.trim_ascii_start().len()..end
}
