use crate::{
    domain::{Measure, Sketch},
    text::{Listener, Sketcher},
};

/// Turns are as alike as their words overlap: shared words by all words.
#[derive(Clone, Copy, Debug)]
pub struct WordOverlap;

impl Measure for WordOverlap {
    fn sketch(&self, text: &str) -> Sketch {
        let listener = Listener::default();
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &listener);
        sketcher.finish(&listener).sketch
    }

    fn similarity(&self, a: &Sketch, b: &Sketch) -> f64 {
        a.overlap(b)
    }

    fn similarity_of(&self, a: &Sketch, b: &Sketch, least: f64) -> Option<f64> {
        a.overlap_of(b, least)
    }
}
