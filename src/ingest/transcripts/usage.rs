//! The usage of models, by name.

use std::sync::Arc;

use super::ModelUsage;
use crate::domain::sanitize;

/// Adds the usage to that of its model.
pub(super) fn count_usage(totals: &mut Vec<ModelUsage>, usage: ModelUsage) {
    let usage = usage.bounded();
    if usage.is_empty() {
        return;
    }
    match totals.iter_mut().find(|total| total.model == usage.model) {
        Some(total) => total.add(&usage),
        None => totals.push(usage),
    }
}

/// The names of models, each kept once: every response has one.
#[derive(Default)]
pub(super) struct ModelNames(Vec<Arc<str>>);

/// The bytes of a model's name that are kept.
const MODEL_BYTES_MAX: usize = 128;

impl ModelNames {
    pub fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| ***known == *name) {
            return known.clone();
        }
        let visible = sanitize::strip_invisible(name);
        let kept: Arc<str> = sanitize::prefix(&visible, MODEL_BYTES_MAX).into();
        self.0.push(kept.clone());
        kept
    }
}
