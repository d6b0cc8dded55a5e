//! A wrapper that allocates a detector on first use.

use serde::{Deserialize, Serialize};

use super::{Detector, History};
use crate::domain::{DetectorOutcome, LazyBox, Observation};

/// A detector whose state is allocated by the first observation that
/// [`Detector::quick_check`] cannot answer. Most sessions never need it.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub struct LazyDetector<D> {
    state: LazyBox<D>,
}

impl<D> Default for LazyDetector<D> {
    fn default() -> Self {
        Self {
            state: LazyBox::default(),
        }
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
        if self.state.get().is_none()
            && let Some(outcome) = D::quick_check(now)
        {
            return outcome;
        }
        let detector = self.state.get_or_insert_default();
        detector.observe(now, past, settings)
    }

    pub fn consume(&mut self, cited: &[i32]) {
        if let Some(detector) = self.state.get_mut() {
            detector.consume(cited);
        }
    }

    pub fn reset(&mut self) {
        if let Some(detector) = self.state.get_mut() {
            detector.reset();
        }
    }

    pub fn reset_for_user(&mut self) {
        if let Some(detector) = self.state.get_mut() {
            detector.reset_for_user();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.state.heap_bytes(D::heap_bytes)
    }
}
