//! Reads the lines of a file without copying them, within bounded memory.

use std::{
    io::{self, BufRead, Read},
    mem::take,
    ops::Range,
};

use memchr::memchr;
use thiserror::Error;

/// The non-empty lines of a file.
pub struct NdjsonReader<R> {
    reader: R,
    /// The line, if it is not whole in the reader's buffer.
    buffer: Vec<u8>,
    /// The length of the line in the reader's buffer; 0 if it is in `buffer`.
    borrowed_bytes: usize,
    /// The line without surrounding white space, such as the CR of a CRLF.
    text_range: Range<usize>,
    line_number: u64,
}

/// A line and its number, from 1.
pub type NumberedLine<'a> = (u64, Result<&'a [u8], LineTooLong>);

/// A line is longer than [`NdjsonReader::LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the line is longer than {} MiB", .0 / 1024 / 1024)]
pub struct LineTooLong(pub usize);

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The result of reading a line.
enum LineStatus {
    Line,
    TooLong,
    End,
}

impl<R: BufRead> NdjsonReader<R> {
    /// More than the service accepts in a message, because a line may be a batch.
    /// Bounds the memory for a file without line breaks.
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

    pub fn next_line(&mut self) -> io::Result<Option<NumberedLine<'_>>> {
        loop {
            match self.read_line()? {
                LineStatus::End => return Ok(None),
                LineStatus::TooLong => {
                    let error = LineTooLong(Self::LINE_BYTES_MAX);
                    return Ok(Some((self.line_number, Err(error))));
                }
                LineStatus::Line if self.text_range.is_empty() => {}
                LineStatus::Line => break,
            }
        }
        let line = match self.borrowed_bytes {
            0 => &*self.buffer,
            // A filled buffer is returned without reading.
            _ => self.reader.fill_buf()?,
        };
        let text = line.get(self.text_range.clone()).unwrap_or_default();
        Ok(Some((self.line_number, Ok(text))))
    }

    /// Reads a line with its line break.
    fn read_line(&mut self) -> io::Result<LineStatus> {
        self.reader.consume(take(&mut self.borrowed_bytes));
        self.buffer.clear();
        self.line_number += 1;
        // Nearly all lines are whole in the reader's buffer and are not copied.
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
            // An error occurs again below, or was an interruption.
            Ok(_) | Err(_) => {}
        }
        // The limit and one more byte: a line break, or proof that it is longer.
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

/// The range of a line without a byte order mark and white space.
fn find_text_range(line: &[u8], number: u64) -> Range<usize> {
    let has_bom = number == 1 && line.starts_with(BOM);
    let start = if has_bom { BOM.len() } else { 0 };
    let text = line[start..].trim_ascii_end();
    let end = start + text.len();
    end - text.trim_ascii_start().len()..end
}
