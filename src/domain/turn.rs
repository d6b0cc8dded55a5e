use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::Deserialize;
use smallvec::SmallVec;

use super::{Sig, TextRepetition};

/// A turn of an agent.
#[derive(Clone, Debug, Default)]
pub struct TurnFacts {
    pub sketch: Sketch,
    /// How many characters it has.
    pub chars: usize,
    /// The known phrases in it, each where it comes first.
    pub phrase_matches: SmallVec<[PhraseMatch; 2]>,
    /// Its text repeats itself, and nothing was said of that while it was
    /// written.
    pub repetition: Option<TextRepetition>,
}

impl TurnFacts {
    /// Where any of the phrases first comes: after so many words.
    pub fn words_before_first(&self, phrases: &Phrases) -> Option<u32> {
        let of_them = self
            .phrase_matches
            .iter()
            .filter(|heard| phrases.contains(heard.phrase));
        of_them.map(|heard| heard.words_before).min()
    }
}

/// A way to say how alike two turns are.
pub trait SimilarityMeasure: Debug + Send + Sync {
    /// What is kept of a turn to compare it by.
    fn sketch(&self, text: &str) -> Sketch;

    /// How alike two turns are, from 0 to 1.
    fn similarity(&self, a: &Sketch, b: &Sketch) -> f64;

    /// The same where it is `least` or more: what a detector asks for.
    fn similarity_at_least(&self, a: &Sketch, b: &Sketch, least: f64) -> Option<f64> {
        let similarity = self.similarity(a, b);
        (similarity >= least).then_some(similarity)
    }
}

/// What is kept of a turn: its distinct tokens (lower case, split at white
/// space) as sorted hashes, those with a digit apart. Up to
/// [`Sketch::WORDS_MAX`] the sets are whole and comparisons exact; of a longer
/// turn the smallest hashes are kept, which is a fair sample of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    pub words: Box<[u32]>,
    pub numbers: Box<[u32]>,
    /// The beginnings of the words that carry meaning: what stays of a sentence
    /// that is put in other words. In no order, since they are rarely compared,
    /// and shorter, since a share of them says enough.
    pub stems: Box<[u16]>,
    /// What a model makes of it, of length 1; empty without one.
    pub vector: Box<[f32]>,
}

impl Sketch {
    /// 2 KiB a turn. The standard error of the overlap of longer turns is below
    /// two percent.
    pub const WORDS_MAX: usize = 512;
    /// A turn with more numbers than that is a table.
    pub const NUMBERS_MAX: usize = 128;
    /// As many as a paragraph of text has, and who says the same in other words
    /// says it in fewer; of more the lowest, too.
    pub const STEMS_MAX: usize = 64;

    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.numbers.is_empty()
    }

    /// Shared tokens by all tokens (Jaccard); 0 for two empty turns.
    pub fn overlap(&self, other: &Self) -> f64 {
        let (shared_words, all_words) =
            count_shared_and_union(&self.words, &other.words, Self::WORDS_MAX);
        let (shared_numbers, all_numbers) =
            count_shared_and_union(&self.numbers, &other.numbers, Self::NUMBERS_MAX);
        let all = all_words + all_numbers;
        if all == 0 {
            return 0.0;
        }
        f64::from(shared_words + shared_numbers) / f64::from(all)
    }

    /// The overlap where it is `least` or more. Most turns are unlike, and show
    /// it soon.
    pub fn overlap_at_least(&self, other: &Self, least: f64) -> Option<f64> {
        let is_sample = |sketch: &Self| {
            sketch.words.len() == Self::WORDS_MAX || sketch.numbers.len() == Self::NUMBERS_MAX
        };
        let overlap = if is_sample(self) || is_sample(other) {
            self.overlap(other)
        } else {
            let all = self.token_count() + other.token_count();
            let (numbers, _) = count_shared_and_union(&self.numbers, &other.numbers, usize::MAX);
            // Of n and m tokens s · (n + m) / (1 + s) must be shared.
            let needed = (least * all as f64 / (1.0 + least)).floor() as usize;
            let needed = needed.saturating_sub(numbers as usize);
            let both = count_shared_at_least(&self.words, &other.words, needed)? + numbers as usize;
            both as f64 / (all - both).max(1) as f64
        };
        (overlap >= least).then_some(overlap)
    }

    /// How many tokens the smaller of the two turns has, and whether the larger
    /// one has them all.
    pub fn containment(&self, other: &Self) -> (usize, bool) {
        let (small, large) = if self.token_count() <= other.token_count() {
            (self, other)
        } else {
            (other, self)
        };
        let whole =
            is_superset(&large.words, &small.words) && is_superset(&large.numbers, &small.numbers);
        (small.token_count(), whole)
    }

    /// How much of the meaning of one turn is in the other: shared stems by
    /// those of the turn with fewer. Second, how many that one has.
    pub fn stem_overlap(&self, other: &Self) -> (f64, usize) {
        let (mut own, mut of_other) = (self.sorted_stems(), other.sorted_stems());
        // What a sample would have above its highest nobody knows.
        let highest = |sketch: &Self, stems: &Stems| match stems.last() {
            Some(highest) if sketch.stems.len() >= Self::STEMS_MAX => *highest,
            _ => u16::MAX,
        };
        let known = highest(self, &own).min(highest(other, &of_other));
        for stems in [&mut own, &mut of_other] {
            stems.truncate(stems.partition_point(|stem| *stem <= known));
        }
        let few = own.len().min(of_other.len());
        if few == 0 {
            return (0.0, 0);
        }
        let shared = own
            .iter()
            .filter(|stem| of_other.binary_search(stem).is_ok());
        (shared.count() as f64 / few as f64, few)
    }

    fn sorted_stems(&self) -> Stems {
        let mut stems = Stems::from_slice(&self.stems);
        stems.sort_unstable();
        stems.dedup();
        stems
    }

    pub fn differs_in_numbers_only(&self, other: &Self) -> bool {
        self.words == other.words && self.numbers != other.numbers
    }

    /// Equal for turns of equal tokens. (These are hashes already.)
    pub fn signature(&self) -> Sig {
        let mut hasher = DefaultHasher::new();
        self.words.hash(&mut hasher);
        self.numbers.hash(&mut hasher);
        Sig::new(hasher.finish())
    }

    fn token_count(&self) -> usize {
        self.words.len() + self.numbers.len()
    }

    pub fn heap_bytes(&self) -> usize {
        (self.words.len() + self.numbers.len()) * size_of::<u32>()
            + self.stems.len() * size_of::<u16>()
            + self.vector.len() * size_of::<f32>()
    }
}

type Stems = SmallVec<[u16; Sketch::STEMS_MAX]>;

/// How many hashes two sorted lists share and how many they have together. A
/// full list is a sample, so only the lowest `sample` of the union count.
fn count_shared_and_union(a: &[u32], b: &[u32], sample: usize) -> (u32, u32) {
    let limit = if a.len() == sample || b.len() == sample {
        sample
    } else {
        usize::MAX
    };
    let (mut i, mut j, mut shared) = (0, 0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if i + j - shared >= limit {
            break;
        }
        shared += usize::from(x == y);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    let all = (a.len() + b.len() - shared).min(limit);
    (shared as u32, all as u32)
}

/// How many hashes two sorted lists share; `None`: fewer than `needed`, which is
/// known as soon as too many of the first are alone.
fn count_shared_at_least(a: &[u32], b: &[u32], needed: usize) -> Option<usize> {
    let spare = a.len().checked_sub(needed)?;
    let (mut i, mut j, mut shared) = (0, 0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        shared += usize::from(x == y);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
        if i - shared > spare {
            return None;
        }
    }
    (shared >= needed).then_some(shared)
}

/// Whether a sorted list holds all of another.
fn is_superset(large: &[u32], small: &[u32]) -> bool {
    count_shared_and_union(large, small, usize::MAX).0 as usize == small.len()
}

/// A phrase to listen for in turns, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct Phrase {
    pub id: PhraseId,
    pub text: String,
}

/// Names a phrase: equal for equal phrases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PhraseId(u64);

impl From<String> for Phrase {
    fn from(text: String) -> Self {
        let text = text.to_lowercase();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self {
            id: PhraseId(hasher.finish()),
            text,
        }
    }
}

/// A list of phrases, as an operator gives it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Vec<Phrase>")]
pub struct Phrases(Box<[Phrase]>);

impl Phrases {
    pub fn iter(&self) -> impl Iterator<Item = &Phrase> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn contains(&self, id: PhraseId) -> bool {
        self.0.binary_search_by_key(&id, |phrase| phrase.id).is_ok()
    }
}

impl From<Vec<Phrase>> for Phrases {
    fn from(mut phrases: Vec<Phrase>) -> Self {
        phrases.sort_by_key(|phrase| phrase.id);
        phrases.dedup();
        Self(phrases.into())
    }
}

/// A phrase that is in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhraseMatch {
    pub phrase: PhraseId,
    /// Words that stand before it.
    pub words_before: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sorted_lists_share_what_both_have() {
        assert_eq!(count_shared_and_union(&[1, 2, 3], &[2, 3, 4], 512), (2, 4));
        assert_eq!(count_shared_and_union(&[], &[], 512), (0, 0));
        assert_eq!(count_shared_and_union(&[1], &[], 512), (0, 1));
    }

    #[test]
    fn of_a_sample_only_the_lowest_of_both_count() {
        assert_eq!(count_shared_and_union(&[1, 2, 9], &[1, 2, 3, 4], 3), (2, 3));
        assert_eq!(count_shared_and_union(&[1, 2, 3], &[1, 2, 3], 3), (3, 3));
    }

    #[test]
    fn stems_are_compared_as_far_as_a_sample_knows_them() {
        let sketch = |stems: &[u16]| Sketch {
            stems: stems.into(),
            ..Sketch::default()
        };
        let few = sketch(&[9, 3, 3, 700]);
        assert_eq!(few.stem_overlap(&sketch(&[3, 9, 11, 800])), (2.0 / 3.0, 3));
        assert_eq!(few.stem_overlap(&sketch(&[])), (0.0, 0));
        // Of 512 stems the lowest are kept: 700 may be among the others.
        let many: Vec<u16> = (0..Sketch::STEMS_MAX as u16).collect();
        assert_eq!(few.stem_overlap(&sketch(&many)), (1.0, 2));
    }

    #[test]
    fn an_overlap_that_is_asked_for_is_the_overlap() {
        let sketch = |words: &[u32], numbers: &[u32]| Sketch {
            words: words.into(),
            numbers: numbers.into(),
            ..Sketch::default()
        };
        let many = (0..512).collect::<Vec<u32>>();
        let sketches = [
            sketch(&[], &[]),
            sketch(&[1], &[]),
            sketch(&[1, 2, 3, 4, 5], &[]),
            sketch(&[1, 2, 3, 4, 5, 6], &[]),
            sketch(&[2, 3, 4, 5, 6], &[7]),
            sketch(&[1, 2, 3], &[7, 8, 9]),
            sketch(&many, &[]),
            sketch(&many[1..], &[7]),
        ];
        for a in &sketches {
            for b in &sketches {
                let overlap = a.overlap(b);
                for least in [0.1, 0.5, 5.0 / 6.0, 0.85, 1.0] {
                    let expected = (overlap >= least).then_some(overlap);
                    assert_eq!(
                        a.overlap_at_least(b, least),
                        expected,
                        "{a:?} {b:?} {least}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_list_contains_another_or_not() {
        assert!(is_superset(&[1, 2, 3], &[1, 3]));
        assert!(!is_superset(&[1, 2, 3], &[1, 4]));
    }

    #[test]
    fn equal_phrases_have_one_name_whatever_their_case() {
        assert_eq!(
            Phrase::from("Start Over".to_owned()),
            Phrase::from("start over".to_owned())
        );
    }
}
