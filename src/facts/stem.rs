/// The beginning of a word, which stays when the word is inflected: "inspect",
/// "inspected" and "inspection" begin alike. Cheaper than a stemmer that knows a
/// language, and as good for telling whether two turns are about the same.
#[derive(Clone, Copy, Default)]
pub(super) struct Stem {
    /// The first letters, the latest lowest.
    letters: u128,
    /// Letters of the whole word.
    count: u32,
}

impl Stem {
    /// So many letters stand for a word; five tell "config" from "connect".
    const LETTERS: u32 = 5;
    /// Shorter words ("the", "now", "run") say little about what a turn is about.
    const LETTERS_MIN: u32 = 4;
    /// No letter needs more.
    const LETTER_BITS: u32 = 21;

    /// Takes in a character of the word, in lower case.
    pub fn push(&mut self, c: char) {
        if !c.is_alphabetic() {
            return;
        }
        if self.count < Self::LETTERS {
            self.letters = (self.letters << Self::LETTER_BITS) | u128::from(u32::from(c));
        }
        self.count = self.count.saturating_add(1);
    }

    /// `None`: the word carries no meaning of its own.
    pub fn hash(self) -> Option<u32> {
        if self.count < Self::LETTERS_MIN
            || COMMON.binary_search(&(self.letters, self.count)).is_ok()
        {
            return None;
        }
        // Any mixing does: who makes stems collide makes only its own turns alike.
        let folded = (self.letters as u64) ^ ((self.letters >> 64) as u64);
        Some((folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
    }

    const fn of(word: &str) -> (u128, u32) {
        let bytes = word.as_bytes();
        let (mut letters, mut n) = (0, 0);
        while n < bytes.len() && n < Self::LETTERS as usize {
            letters = (letters << Self::LETTER_BITS) | bytes[n] as u128;
            n += 1;
        }
        (letters, bytes.len() as u32)
    }
}

/// Words of four letters and more that every text has.
const WORDS: [&str; 60] = [
    "about", "after", "again", "also", "been", "before", "both", "could", "does", "doing", "done",
    "each", "every", "from", "have", "having", "here", "into", "just", "like", "make", "more",
    "most", "much", "must", "need", "only", "other", "over", "same", "shall", "should", "some",
    "such", "than", "that", "their", "them", "then", "there", "these", "they", "this", "those",
    "through", "very", "want", "were", "what", "when", "where", "which", "while", "will", "with",
    "would", "your", "thought", "still", "because",
];

/// The same as stems with the lengths of their words, sorted.
const COMMON: [(u128, u32); WORDS.len()] = sorted(WORDS);

const fn sorted<const N: usize>(words: [&str; N]) -> [(u128, u32); N] {
    let mut stems = [(0, 0); N];
    let mut n = 0;
    while n < N {
        let stem = Stem::of(words[n]);
        let mut at = n;
        while at > 0 && is_after(stems[at - 1], stem) {
            stems[at] = stems[at - 1];
            at -= 1;
        }
        stems[at] = stem;
        n += 1;
    }
    stems
}

const fn is_after(a: (u128, u32), b: (u128, u32)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1 > b.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stem(word: &str) -> Option<u32> {
        let mut stem = Stem::default();
        word.chars().for_each(|c| stem.push(c));
        stem.hash()
    }

    #[test]
    fn inflected_words_have_one_stem_and_others_another() {
        assert_eq!(stem("inspecting"), stem("inspected,"));
        assert_eq!(stem("migrate"), stem("migration"));
        assert_ne!(stem("config"), stem("connect"));
        assert_ne!(stem("größer"), stem("grotte"));
    }

    #[test]
    fn short_and_common_words_have_none() {
        for word in WORDS.iter().chain(&["the", "a", "—"]) {
            assert_eq!(stem(word), None, "{word}");
        }
        assert!(
            stem("aboutness").is_some(),
            "it only begins like a common one"
        );
    }
}
