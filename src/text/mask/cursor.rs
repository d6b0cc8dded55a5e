//! A position in cleaned text that recognisers advance. The type is `Copy`: a
//! recogniser tries an alternative on a copy and discards it on failure. Past the end
//! every byte reads as 0, which cleaned text never contains, so no bounds check is
//! needed by callers.

#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    text: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at }
    }

    /// The same text at another offset.
    #[inline]
    pub fn with_offset(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// The byte `ahead` bytes after this position.
    #[inline]
    pub fn peek(self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// The byte `back` bytes before this position; 1 is the previous byte.
    #[inline]
    pub fn peek_back(self, back: usize) -> u8 {
        let index = self.at.checked_sub(back);
        index.and_then(|i| self.text.get(i)).copied().unwrap_or(0)
    }

    pub fn rest(self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub fn slice_from(self, start: usize) -> &'a [u8] {
        self.text.get(start..self.at).unwrap_or_default()
    }

    #[inline]
    pub fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek(0) == byte;
        self.at += usize::from(hit);
        hit
    }

    #[inline]
    pub fn eat_any(&mut self, set: &[u8]) -> bool {
        let here = self.peek(0);
        // Sets have a few bytes. `contains` would be compiled to a slower vector
        // search.
        let hit = set.iter().fold(false, |hit, byte| hit | (*byte == here));
        self.at += usize::from(hit);
        hit
    }

    pub fn eat_bytes(&mut self, bytes: &[u8]) -> bool {
        let hit = self.rest().starts_with(bytes);
        self.at += if hit { bytes.len() } else { 0 };
        hit
    }

    /// Skips all bytes for which `is` holds. Returns their number.
    pub fn skip_while(&mut self, is: impl Fn(u8) -> bool) -> usize {
        let count = self.rest().iter().take_while(|b| is(**b)).count();
        self.at += count;
        count
    }

    pub fn eat_letters(&mut self) -> &'a [u8] {
        let start = self.at;
        self.skip_while(|b| b.is_ascii_alphabetic());
        self.slice_from(start)
    }

    /// Parses all digits here as one number. Returns `None` unless there are
    /// `digits_min` to `digits_max` of them and the number is in `range`.
    pub fn eat_number(
        &mut self,
        digits_min: usize,
        digits_max: usize,
        range: std::ops::RangeInclusive<u32>,
    ) -> Option<u32> {
        let digits = self.rest().iter().take(digits_max + 1);
        let digits = digits.take_while(|b| b.is_ascii_digit()).count();
        if digits < digits_min || digits > digits_max {
            return None;
        }
        let start = self.at;
        self.at += digits;
        let value = self.slice_from(start).iter().fold(0u32, |n, b| {
            n.saturating_mul(10).saturating_add(u32::from(b - b'0'))
        });
        range.contains(&value).then_some(value)
    }

    /// Whether a word ends at this position.
    pub fn is_word_end(self) -> bool {
        !self.peek(0).is_ascii_alphanumeric() && self.peek(0) != b'_'
    }
}
