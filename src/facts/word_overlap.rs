use crate::{
    domain::{SimilarityMeasure, Sketch},
    text::{PhraseMatcher, Sketcher},
};

/// Turns are as alike as their words overlap: shared words by all words.
#[derive(Clone, Copy, Debug)]
pub struct WordOverlap;

impl SimilarityMeasure for WordOverlap {
    fn sketch(&self, text: &str) -> Sketch {
        let listener = PhraseMatcher::default();
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &listener);
        sketcher.finish(&listener).sketch
    }

    fn similarity(&self, a: &Sketch, b: &Sketch) -> f64 {
        a.overlap(b)
    }

    fn similarity_at_least(&self, a: &Sketch, b: &Sketch, least: f64) -> Option<f64> {
        a.overlap_at_least(b, least)
    }
}
