//! How similar two turns are: by their words, or by a model that was loaded.

#[cfg(feature = "embeddings")]
mod static_embeddings;

use std::{path::PathBuf, sync::Arc};

use thiserror::Error;

use crate::{
    domain::{SimilarityMeasure, Sketch},
    text::{PhraseMatcher, Sketcher},
};

/// A loaded model, shared by all sessions.
pub type Model = Arc<dyn SimilarityMeasure>;

/// The similarity of two turns is the overlap of their words: shared words divided by all
/// words.
#[derive(Clone, Copy, Debug)]
pub struct WordOverlap;

impl SimilarityMeasure for WordOverlap {
    fn sketch(&self, text: &str) -> Sketch {
        let matcher = PhraseMatcher::default();
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &matcher);
        sketcher.finish(&matcher).sketch
    }

    fn similarity(&self, a: &Sketch, b: &Sketch) -> f64 {
        a.overlap(b)
    }

    fn similarity_at_least(&self, a: &Sketch, b: &Sketch, least: f64) -> Option<f64> {
        a.overlap_at_least(b, least)
    }
}

/// Why a model cannot be used.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error(
        "this build has no embeddings: build it with `--features embeddings`, or leave the key empty"
    )]
    NotBuilt,
    #[error("cannot read {}: {why}", file.display())]
    Unreadable { file: PathBuf, why: String },
    #[error("{} is not a static embedding model: {why}", file.display())]
    Invalid { file: PathBuf, why: String },
}

/// Loads the model of a directory: static embeddings, a table of vectors by token
/// (`model.safetensors`) with its tokenizer (`tokenizer.json`).
#[cfg(feature = "embeddings")]
pub fn load_model(dir: &std::path::Path) -> Result<Model, ModelError> {
    Ok(Arc::new(static_embeddings::StaticEmbeddings::load(dir)?))
}

/// The default build has no models.
#[cfg(not(feature = "embeddings"))]
pub fn load_model(_dir: &std::path::Path) -> Result<Model, ModelError> {
    Err(ModelError::NotBuilt)
}
