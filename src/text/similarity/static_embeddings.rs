//! Static embeddings: a table with one vector per token.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use half::f16;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tokenizers::Tokenizer;

use super::ModelError;
use crate::{
    domain::{SimilarityMeasure, Sketch},
    text::WordOverlap,
};

/// The similarity of two turns is the cosine of the means of their tokens' vectors. Word
/// order does not matter; words of similar meaning count as similar.
pub(super) struct StaticEmbeddings {
    tokenizer: Tokenizer,
    /// One row per token.
    rows: Box<[f32]>,
    dimensions: usize,
}

impl StaticEmbeddings {
    const TABLE_FILE: &str = "model.safetensors";
    const TOKENIZER_FILE: &str = "tokenizer.json";
    /// The largest file that is read. Static tables have tens of MiB; a larger file is
    /// another kind of model.
    const FILE_BYTES_MAX: u64 = 512 * 1024 * 1024;

    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let (file, bytes) = read_file(dir, Self::TOKENIZER_FILE)?;
        let tokenizer =
            Tokenizer::from_bytes(bytes).map_err(|error| invalid_model(&file, error))?;
        let (file, bytes) = read_file(dir, Self::TABLE_FILE)?;
        let tensors =
            SafeTensors::deserialize(&bytes).map_err(|error| invalid_model(&file, error))?;
        let (table, dimensions) = find_table(&tensors).map_err(|why| invalid_model(&file, why))?;
        let rows = decode_floats(&table).map_err(|why| invalid_model(&file, why))?;
        let tokens = tokenizer.get_vocab_size(true);
        if tokens * dimensions > rows.len() {
            let why = format!(
                "{} rows, but {} knows {tokens} tokens",
                rows.len() / dimensions,
                Self::TOKENIZER_FILE
            );
            return Err(invalid_model(&file, why));
        }
        Ok(Self {
            tokenizer,
            rows,
            dimensions,
        })
    }

    /// The mean of the tokens' vectors, normalized to length 1; empty without tokens.
    fn embed(&self, text: &str) -> Box<[f32]> {
        let Ok(encoding) = self.tokenizer.encode_fast(text, false) else {
            return Box::default();
        };
        let mut sum = vec![0f32; self.dimensions];
        for id in encoding.get_ids() {
            let from = *id as usize * self.dimensions;
            let row = self.rows.get(from..from + self.dimensions);
            for (sum, value) in sum.iter_mut().zip(row.unwrap_or_default()) {
                *sum += value;
            }
        }
        let length = dot(&sum, &sum).sqrt();
        if length == 0.0 {
            return Box::default();
        }
        sum.iter_mut().for_each(|value| *value /= length);
        sum.into()
    }
}

impl SimilarityMeasure for StaticEmbeddings {
    fn sketch(&self, text: &str) -> Sketch {
        Sketch {
            vector: self.embed(text),
            ..WordOverlap.sketch(text)
        }
    }

    fn similarity(&self, a: &Sketch, b: &Sketch) -> f64 {
        f64::from(dot(&a.vector, &b.vector)).clamp(0.0, 1.0)
    }
}

impl fmt::Debug for StaticEmbeddings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StaticEmbeddings({} dimensions)", self.dimensions)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn read_file(dir: &Path, name: &str) -> Result<(PathBuf, Vec<u8>), ModelError> {
    let file = dir.join(name);
    let unreadable = |error: std::io::Error| ModelError::Unreadable {
        file: file.clone(),
        why: error.to_string(),
    };
    let bytes = fs::metadata(&file).map_err(unreadable)?.len();
    if bytes > StaticEmbeddings::FILE_BYTES_MAX {
        let bytes_max = StaticEmbeddings::FILE_BYTES_MAX;
        return Err(invalid_model(
            &file,
            format!("{bytes} bytes, at most {bytes_max}"),
        ));
    }
    let bytes = fs::read(&file).map_err(unreadable)?;
    Ok((file, bytes))
}

/// The only table in the file, and the length of its rows.
fn find_table<'a>(tensors: &SafeTensors<'a>) -> Result<(TensorView<'a>, usize), String> {
    let mut tables = tensors
        .iter()
        .filter(|(_, tensor)| tensor.shape().len() == 2);
    match (tables.next(), tables.next()) {
        (Some((_, table)), None) => match *table.shape() {
            [rows, dimensions] if rows > 0 && dimensions > 0 => Ok((table, dimensions)),
            _ => Err(format!("its table is empty: {:?}", table.shape())),
        },
        _ => {
            let shapes: Vec<_> = tensors
                .iter()
                .map(|(name, tensor)| format!("{name} {:?}", tensor.shape()))
                .collect();
            Err(format!(
                "one table of tokens by dimensions is needed, found {}",
                if shapes.is_empty() {
                    "nothing".to_owned()
                } else {
                    shapes.join(", ")
                }
            ))
        }
    }
}

fn decode_floats(table: &TensorView<'_>) -> Result<Box<[f32]>, String> {
    match table.dtype() {
        Dtype::F32 => {
            let (values, _) = table.data().as_chunks();
            Ok(values
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect())
        }
        Dtype::F16 => {
            let (values, _) = table.data().as_chunks();
            let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
            Ok(values.iter().map(value).collect())
        }
        other => Err(format!(
            "its table has values of type {other:?}, not F32 or F16"
        )),
    }
}

fn invalid_model(file: &Path, why: impl ToString) -> ModelError {
    ModelError::Invalid {
        file: file.to_owned(),
        why: why.to_string(),
    }
}
