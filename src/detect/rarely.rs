use super::{Detector, History};
use crate::domain::{Look, Observation};

/// A detector that most sessions give nothing to count: until something does it
/// takes no room.
pub struct Rarely<D> {
    begun: Option<Box<D>>,
}

impl<D> Default for Rarely<D> {
    fn default() -> Self {
        Self { begun: None }
    }
}

impl<D: Detector> Rarely<D> {
    #[inline]
    pub fn observe(&mut self, now: &Observation, past: &History, settings: &D::Settings) -> Look {
        if self.begun.is_none()
            && let Some(look) = D::glance(now)
        {
            return look;
        }
        let detector = self.begun.get_or_insert_default();
        detector.observe(now, past, settings)
    }

    pub fn spend(&mut self, cited: &[i32]) {
        if let Some(detector) = &mut self.begun {
            detector.spend(cited);
        }
    }

    pub fn reset(&mut self) {
        if let Some(detector) = &mut self.begun {
            detector.reset();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let begun = |detector: &D| size_of::<D>() + detector.heap_bytes();
        self.begun.as_deref().map_or(0, begun)
    }
}
