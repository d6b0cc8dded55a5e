//! A place in cleaned text that recognisers move along. It is `Copy`: to try
//! something, try it on a copy. Past the end every byte is 0, which cleaned text
//! does not hold.

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

    /// The same text at another place.
    #[inline]
    pub fn to(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// The byte `ahead` of here.
    #[inline]
    pub fn peek(self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// The byte `back` before here; 1 is the last one.
    #[inline]
    pub fn behind(self, back: usize) -> u8 {
        let index = self.at.checked_sub(back);
        index.and_then(|i| self.text.get(i)).copied().unwrap_or(0)
    }

    pub fn rest(self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub fn since(self, start: usize) -> &'a [u8] {
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
        // Sets of two or three: `contains` would look for a vector of them.
        let hit = set.iter().fold(false, |hit, byte| hit | (*byte == here));
        self.at += usize::from(hit);
        hit
    }

    pub fn eat_all(&mut self, bytes: &[u8]) -> bool {
        let hit = self.rest().starts_with(bytes);
        self.at += if hit { bytes.len() } else { 0 };
        hit
    }

    /// Goes past all bytes that `is`, and says how many there were.
    pub fn skip(&mut self, is: impl Fn(u8) -> bool) -> usize {
        let count = self.rest().iter().take_while(|b| is(**b)).count();
        self.at += count;
        count
    }

    pub fn letters(&mut self) -> &'a [u8] {
        let start = self.at;
        self.skip(|b| b.is_ascii_alphabetic());
        self.since(start)
    }

    /// All the digits here as one number, if there are `least` to `most` of them
    /// and it is in `range`.
    pub fn number(
        &mut self,
        least: usize,
        most: usize,
        range: std::ops::RangeInclusive<u32>,
    ) -> Option<u32> {
        let digits = self.rest().iter().take(most + 1);
        let digits = digits.take_while(|b| b.is_ascii_digit()).count();
        if digits < least || digits > most {
            return None;
        }
        let start = self.at;
        self.at += digits;
        let value = self.since(start).iter().fold(0u32, |n, b| {
            n.saturating_mul(10).saturating_add(u32::from(b - b'0'))
        });
        range.contains(&value).then_some(value)
    }

    /// Whether a word ends here.
    pub fn word_ends(self) -> bool {
        !self.peek(0).is_ascii_alphanumeric() && self.peek(0) != b'_'
    }
}
