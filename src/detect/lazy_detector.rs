//! A wrapper that allocates a detector on first use.

use super::{Detector, History};
use crate::domain::{DetectorOutcome, Observation};

/// A detector whose state is allocated by the first observation that
/// [`Detector::quick_check`] cannot answer. Most sessions never need it.
pub struct LazyDetector<D> {
    state: Option<Box<D>>,
}

impl<D> Default for LazyDetector<D> {
    fn default() -> Self {
        Self { state: None }
    }
}

impl<D: Detector> LazyDetector<D> {
    #[inline]
    pub fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &D::Settings,
    ) -> DetectorOutcome {
        if self.state.is_none()
            && let Some(outcome) = D::quick_check(now)
        {
            return outcome;
        }
        let detector = self.state.get_or_insert_default();
        detector.observe(now, past, settings)
    }

    pub fn consume(&mut self, cited: &[i32]) {
        if let Some(detector) = &mut self.state {
            detector.consume(cited);
        }
    }

    pub fn reset(&mut self) {
        if let Some(detector) = &mut self.state {
            detector.reset();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.state
            .as_ref()
            .map_or(0, |detector| size_of::<D>() + detector.heap_bytes())
    }
}
