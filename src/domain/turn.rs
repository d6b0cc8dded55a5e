//! The facts of a turn: its sketch, by which turns are compared, and the phrases in
//! it.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Sig, TextRepetition};

/// The facts of an agent's turn.
#[derive(Clone, Debug, Default)]
pub struct TurnFacts {
    pub sketch: Sketch,
    /// The number of characters.
    pub chars: usize,
    /// The number of words, not only of distinct ones.
    pub words: u32,
    /// The text contains an action: a fenced command, or a call that is written as text.
    pub acts: bool,
    /// The first occurrence of each known phrase.
    pub phrase_matches: SmallVec<[PhraseMatch; 2]>,
    /// A repetition in the text that was not reported while it was streamed.
    pub repetition: Option<TextRepetition>,
    /// The search for repetitions skipped a step, because the text causes too much work.
    pub is_work_limited: bool,
}

impl TurnFacts {
    /// The number of words before the first occurrence of any of the phrases.
    pub fn words_before_first(&self, phrases: &Phrases) -> Option<u32> {
        self.phrase_matches
            .iter()
            .filter(|found| phrases.contains(found.phrase))
            .map(|found| found.words_before)
            .min()
    }
}

/// A measure of the similarity of two turns.
pub trait SimilarityMeasure: Debug + Send + Sync {
    /// Computes the sketch by which a turn is compared.
    fn sketch(&self, text: &str) -> Sketch;

    /// The similarity of two turns, from 0 to 1.
    fn similarity(&self, a: &Sketch, b: &Sketch) -> f64;

    /// The similarity if it is at least `minimum`.
    fn similarity_at_least(&self, a: &Sketch, b: &Sketch, minimum: f64) -> Option<f64> {
        let similarity = self.similarity(a, b);
        (similarity >= minimum).then_some(similarity)
    }
}

/// The stored form of a turn: its distinct tokens (lower case, split at white
/// space) as sorted hashes; tokens with a digit are a separate list. Up to
/// [`Sketch::WORDS_MAX`] the sets are complete and comparisons exact. Of a longer
/// turn the smallest hashes are stored, which are a uniform sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sketch {
    pub words: Box<[u32]>,
    pub numbers: Box<[u32]>,
    /// The stems of the meaningful words, which survive when a sentence is reworded.
    /// Unsorted, because they are rarely compared; 16 bits each, because the share of
    /// common stems need not be exact.
    pub stems: Box<[u16]>,
    /// The embedding of a model, of length 1; empty without a model.
    pub vector: Box<[f32]>,
}

impl Sketch {
    /// 2 KiB per turn. The standard error of the overlap of longer turns is below
    /// two percent.
    pub const WORDS_MAX: usize = 512;
    /// A turn with more numbers is a table.
    pub const NUMBERS_MAX: usize = 128;
    /// The stems of a paragraph; a reworded turn is usually shorter. Of a longer turn the
    /// lowest hashes are stored.
    pub const STEMS_MAX: usize = 64;

    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.numbers.is_empty()
    }

    /// The share of common tokens among all tokens (Jaccard index); 0 for two empty
    /// turns.
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

    /// The overlap if it is at least `minimum`. Most turns differ, and comparing two
    /// such turns stops early.
    pub fn overlap_at_least(&self, other: &Self, minimum: f64) -> Option<f64> {
        let overlap = if self.is_sample() || other.is_sample() {
            self.overlap(other)
        } else {
            let all = self.token_count() + other.token_count();
            let (numbers, _) = count_shared_and_union(&self.numbers, &other.numbers, usize::MAX);
            // For an overlap s, n and m tokens must share s · (n + m) / (1 + s).
            let needed = (minimum * all as f64 / (1.0 + minimum)).floor() as usize;
            let needed_words = needed.saturating_sub(numbers as usize);
            let words = count_shared_at_least(&self.words, &other.words, needed_words)?;
            let shared = words + numbers as usize;
            shared as f64 / (all - shared).max(1) as f64
        };
        (overlap >= minimum).then_some(overlap)
    }

    /// Whether the turn may have more tokens than the sketch.
    fn is_sample(&self) -> bool {
        self.words.len() == Self::WORDS_MAX || self.numbers.len() == Self::NUMBERS_MAX
    }

    /// The number of tokens of the smaller turn, and whether the larger turn contains
    /// all of them.
    pub fn containment(&self, other: &Self) -> (usize, bool) {
        let (small, large) = if self.token_count() <= other.token_count() {
            (self, other)
        } else {
            (other, self)
        };
        let contains_all =
            is_superset(&large.words, &small.words) && is_superset(&large.numbers, &small.numbers);
        (small.token_count(), contains_all)
    }

    /// The share of common stems among those of the turn with fewer stems, and how
    /// many stems that turn has.
    pub fn stem_overlap(&self, other: &Self) -> (f64, usize) {
        let (mut own, mut others) = (self.sorted_stems(), other.sorted_stems());
        // Above the highest stem of a sample it is unknown which stems the turn has.
        let known_max = self.known_stem_max(&own).min(other.known_stem_max(&others));
        for stems in [&mut own, &mut others] {
            stems.truncate(stems.partition_point(|stem| *stem <= known_max));
        }
        let fewer = own.len().min(others.len());
        if fewer == 0 {
            return (0.0, 0);
        }
        let shared = own
            .iter()
            .filter(|stem| others.binary_search(stem).is_ok())
            .count();
        (shared as f64 / fewer as f64, fewer)
    }

    /// The highest stem up to which the sorted stems are complete.
    fn known_stem_max(&self, sorted: &Stems) -> u16 {
        match sorted.last() {
            Some(highest) if self.stems.len() >= Self::STEMS_MAX => *highest,
            _ => u16::MAX,
        }
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

    /// Equal for turns with equal tokens. An unkeyed hasher is enough, because the
    /// tokens are keyed hashes.
    pub fn signature(&self) -> Sig {
        let mut hasher = DefaultHasher::new();
        self.words.hash(&mut hasher);
        self.numbers.hash(&mut hasher);
        Sig::new(hasher.finish())
    }

    /// The number of distinct tokens that are stored.
    pub fn token_count(&self) -> usize {
        self.words.len() + self.numbers.len()
    }

    pub fn heap_bytes(&self) -> usize {
        (self.words.len() + self.numbers.len()) * size_of::<u32>()
            + self.stems.len() * size_of::<u16>()
            + self.vector.len() * size_of::<f32>()
    }
}

type Stems = SmallVec<[u16; Sketch::STEMS_MAX]>;

/// The sizes of the intersection and the union of two sorted lists. A list of
/// `sample_len` hashes is a sample, so only the lowest `sample_len` of the union
/// count then.
fn count_shared_and_union(a: &[u32], b: &[u32], sample_len: usize) -> (u32, u32) {
    let limit = if a.len() == sample_len || b.len() == sample_len {
        sample_len
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

/// The number of hashes that two sorted lists share; `None` if it is below `needed`,
/// which is known as soon as too many hashes of the first are not in the second.
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

/// Whether a sorted list contains all of another.
fn is_superset(large: &[u32], small: &[u32]) -> bool {
    count_shared_and_union(large, small, usize::MAX).0 as usize == small.len()
}

/// A phrase to search for in turns, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct Phrase {
    pub id: PhraseId,
    pub text: String,
}

/// A phrase's id: equal for equal phrases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PhraseId(u64);

impl From<String> for Phrase {
    fn from(text: String) -> Self {
        let lower = text.to_lowercase();
        let mut hasher = DefaultHasher::new();
        lower.hash(&mut hasher);
        Self {
            id: PhraseId(hasher.finish()),
            text: lower,
        }
    }
}

/// A list of phrases from the configuration, sorted by id.
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

/// A phrase that occurs in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhraseMatch {
    pub phrase: PhraseId,
    /// The number of words before it.
    pub words_before: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_intersection_and_union_are_counted() {
        assert_eq!(count_shared_and_union(&[1, 2, 3], &[2, 3, 4], 512), (2, 4));
        assert_eq!(count_shared_and_union(&[], &[], 512), (0, 0));
        assert_eq!(count_shared_and_union(&[1], &[], 512), (0, 1));
    }

    #[test]
    fn only_the_lowest_hashes_of_two_samples_count() {
        assert_eq!(count_shared_and_union(&[1, 2, 9], &[1, 2, 3, 4], 3), (2, 3));
        assert_eq!(count_shared_and_union(&[1, 2, 3], &[1, 2, 3], 3), (3, 3));
    }

    #[test]
    fn stems_are_compared_up_to_the_highest_of_a_sample() {
        let sketch = |stems: &[u16]| Sketch {
            stems: stems.into(),
            ..Sketch::default()
        };
        let few = sketch(&[9, 3, 3, 700]);
        assert_eq!(few.stem_overlap(&sketch(&[3, 9, 11, 800])), (2.0 / 3.0, 3));
        assert_eq!(few.stem_overlap(&sketch(&[])), (0.0, 0));
        // A full list is a sample of the lowest stems, so 700 may be missing from it.
        let many: Vec<u16> = (0..Sketch::STEMS_MAX as u16).collect();
        assert_eq!(few.stem_overlap(&sketch(&many)), (1.0, 2));
    }

    #[test]
    fn overlap_at_least_agrees_with_overlap() {
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
    fn a_superset_contains_all_hashes() {
        assert!(is_superset(&[1, 2, 3], &[1, 3]));
        assert!(!is_superset(&[1, 2, 3], &[1, 4]));
    }

    #[test]
    fn equal_phrases_have_one_id_whatever_their_case() {
        assert_eq!(
            Phrase::from("Start Over".to_owned()),
            Phrase::from("start over".to_owned())
        );
    }
}
