//! The default settings of `[detect.repetition]`, for tests and benchmarks.

use super::RepetitionSettings;

pub fn repetition_settings() -> RepetitionSettings {
    RepetitionSettings {
        count: 3,
        chars: 150,
        chunks: vec![50, 80, 120],
        chunk_count: 3,
        chunk_window: 0,
        chunks_only: false,
    }
}
