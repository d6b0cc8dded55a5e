//! What a number means is said by the word before it.

use std::ops::Range;

/// What may stand between a word and the number that belongs to it: "attempt
/// #4", "pid=12", "exit code: -1", "expected: <3>".
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

/// The word, or the comparison, that was seen last.
#[derive(Default)]
pub struct PrecedingWord {
    word: Range<usize>,
    /// Where a number beside it may begin: the word's end, or that of the number
    /// before, in a list.
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

    /// What lies between the word and the number at `number`, if that belongs to it.
    pub fn gap_to<'a>(&self, text: &'a [u8], number: usize) -> Option<&'a [u8]> {
        let gap = text.get(self.end..number)?;
        let belongs = |b: &u8| is_separator(*b) || *b == b',' && self.is_list();
        (gap.len() <= SEPARATOR_BYTES_MAX && gap.iter().all(belongs)).then_some(gap)
    }

    /// The number that ends at `end` belongs to the word, and the next one may too.
    pub fn extend_to(&mut self, end: usize) {
        self.end = end;
    }

    /// A list ends with its line.
    pub fn end_line(&mut self) {
        if self.is_list() {
            *self = Self::default();
        }
    }

    fn is_list(&self) -> bool {
        self.end > self.word.end
    }
}
