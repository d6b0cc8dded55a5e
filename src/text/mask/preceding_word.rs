//! Tracks the word before a number, because that word determines what the number means.

use std::ops::Range;

/// Bytes that may separate a word from its number: "attempt #4", "pid=12", "exit code:
/// -1", "expected: <3>".
static SEPARATORS: [bool; 256] = {
    let mut separators = [false; 256];
    let bytes = b" \n:=#([{<-_\"'`*/";
    let mut n = 0;
    while n < bytes.len() {
        separators[bytes[n] as usize] = true;
        n += 1;
    }
    separators
};
pub const SEPARATOR_BYTES_MAX: usize = 4;

pub fn is_separator(byte: u8) -> bool {
    SEPARATORS[usize::from(byte)]
}

/// The last word or comparison before the current position.
#[derive(Default)]
pub struct PrecedingWord {
    word: Range<usize>,
    /// The end of the word, or of the previous number in a list. The gap before the
    /// next number begins here.
    end: usize,
}

impl PrecedingWord {
    pub fn new(word: Range<usize>) -> Self {
        let end = word.end;
        Self { word, end }
    }

    pub fn word<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.word.clone()).unwrap_or_default()
    }

    /// The text between the word and the number at `number`, if the number belongs to
    /// the word.
    pub fn gap_to<'a>(&self, text: &'a [u8], number: usize) -> Option<&'a [u8]> {
        let gap = text.get(self.end..number)?;
        let belongs = |b: &u8| is_separator(*b) || *b == b',' && self.is_list();
        (gap.len() <= SEPARATOR_BYTES_MAX && gap.iter().all(belongs)).then_some(gap)
    }

    /// Marks the number that ends at `end` as belonging to the word. The next number
    /// may belong to it too.
    pub fn extend_to(&mut self, end: usize) {
        self.end = end;
    }

    /// A list ends at the end of its line.
    pub fn end_line(&mut self) {
        if self.is_list() {
            *self = Self::default();
        }
    }

    fn is_list(&self) -> bool {
        self.end > self.word.end
    }
}
