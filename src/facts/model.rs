use std::{path::PathBuf, sync::Arc};

use thiserror::Error;

use crate::domain::SimilarityMeasure;

/// A measure that was loaded, shared by all sessions.
pub type Model = Arc<dyn SimilarityMeasure>;

#[cfg(feature = "embeddings")]
mod static_embeddings;

/// Why a model cannot be used.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error(
        "this build has no embeddings: build it with `--features embeddings`, or leave the key empty"
    )]
    NotBuilt,
    #[error("cannot read {}: {why}", file.display())]
    Unreadable { file: PathBuf, why: String },
    #[error("{} is no model of this kind: {why}", file.display())]
    Invalid { file: PathBuf, why: String },
}

/// The model in a folder: static embeddings, a table of vectors by token
/// (`model.safetensors`) with its tokenizer (`tokenizer.json`).
#[cfg(feature = "embeddings")]
pub fn load_model(folder: &std::path::Path) -> Result<Model, ModelError> {
    Ok(Arc::new(static_embeddings::StaticEmbeddings::load(folder)?))
}

/// The default build has no models.
#[cfg(not(feature = "embeddings"))]
pub fn load_model(_folder: &std::path::Path) -> Result<Model, ModelError> {
    Err(ModelError::NotBuilt)
}
