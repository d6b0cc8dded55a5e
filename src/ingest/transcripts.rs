//! Readers of the transcripts that agents write: one file per format. A reader turns a
//! transcript into the events that the agent's hooks would have sent.
//!
//! A reader passes [`TranscriptItem`]s to a sink, one session after the other. Files are
//! opened for reading only and read up to the length that they have when they are opened.
//! A part that cannot be read is a [`ReadProblem`]: it is reported, skipped, and never fatal.

mod atif;
mod claude_code;
mod claude_content;
mod cline;
mod codex;
mod copilot;
mod files;
mod gemini;
mod json;
mod lenient;
mod mini_swe_agent;
mod opencode;
mod openhands;
mod otlp;
mod pi;
mod qwen;
mod response;
mod session;
mod swe_agent;
mod time;
mod usage;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use files::FileHead;
pub use files::Homes;

use super::{find_agent, input::TOKENS_MAX};
use crate::domain::{Cost, Event};

/// A format of transcripts.
#[derive(Debug)]
pub struct TranscriptFormat {
    /// The name of `--format`, and the label `agent`.
    pub name: &'static str,
    /// The name for people.
    pub title: &'static str,
    /// Their usual places: directories, or a file.
    places: fn(&Homes) -> Vec<PathBuf>,
    /// Whether a file in these directories is one, by its name.
    has_name: fn(&str) -> bool,
    /// Groups the files that are read together. `None`: each is read by itself.
    group: Option<fn(Vec<PathBuf>) -> Vec<Transcript>>,
    /// Whether a file is in this format.
    recognises: fn(&FileHead) -> bool,
    read: fn(&Transcript, &mut Sink),
}

/// All formats, in the order in which a file is tried.
pub const FORMATS: &[&TranscriptFormat] = &[
    &opencode::FORMAT,
    &cline::FORMAT,
    &codex::FORMAT,
    &copilot::FORMAT,
    &pi::FORMAT,
    &gemini::FORMAT,
    &qwen::FORMAT,
    &claude_code::FORMAT,
    &atif::FORMAT,
    &openhands::FORMAT,
    &mini_swe_agent::FORMAT,
    &swe_agent::FORMAT,
    &otlp::FORMAT,
];

/// The format with this name, or with this alias of its agent.
pub fn find_format(name: &str) -> Option<&'static TranscriptFormat> {
    let mut formats = FORMATS.iter().copied();
    formats.find(|format| format.name == name || format.aliases().contains(&name))
}

/// The format of a file, by its name and its first bytes.
pub fn detect_format(path: &Path) -> Option<&'static TranscriptFormat> {
    let head = FileHead::read(path)?;
    let mut formats = FORMATS.iter().copied();
    formats.find(|format| (format.recognises)(&head))
}

impl TranscriptFormat {
    /// Other names of its agent.
    pub fn aliases(&self) -> &'static [&'static str] {
        find_agent(self.name).map_or(&[], |agent| agent.aliases)
    }

    fn find(&self, homes: &Homes) -> Vec<PathBuf> {
        let places = (self.places)(homes).into_iter();
        let files = places.flat_map(|place| match place.is_file() {
            true => vec![place],
            false => files::files_below(&place, self.has_name),
        });
        files.collect()
    }

    fn group(&'static self, files: Vec<PathBuf>) -> Vec<Transcript> {
        match self.group {
            Some(group) => group(files),
            None => files
                .into_iter()
                .map(|file| Transcript::new(self, vec![file]))
                .collect(),
        }
    }
}

/// The transcripts of one format, or of all, in their usual places.
pub fn find_transcripts(homes: &Homes, format: Option<&TranscriptFormat>) -> Vec<Transcript> {
    let formats = FORMATS.iter().copied();
    formats
        .filter(|known| format.is_none_or(|wanted| wanted.name == known.name))
        .flat_map(|known| known.group(known.find(homes)))
        .collect()
}

/// The usual places of one format, or of all.
pub fn usual_places(homes: &Homes, format: Option<&TranscriptFormat>) -> Vec<PathBuf> {
    let formats = FORMATS.iter().copied();
    formats
        .filter(|known| format.is_none_or(|wanted| wanted.name == known.name))
        .flat_map(|known| (known.places)(homes))
        .collect()
}

/// The transcripts at a path: the file, or those below the directory. Files of unknown
/// formats are left out.
pub fn transcripts_at(path: &Path, format: Option<&'static TranscriptFormat>) -> Vec<Transcript> {
    if !path.is_dir() {
        let known = format.or_else(|| detect_format(path));
        return known.map_or_else(Vec::new, |known| known.group(vec![path.to_owned()]));
    }
    let files = files::files_below(path, |_| true).into_iter();
    let mut known: Vec<_> = files
        .filter_map(|file| Some((detect_format(&file)?, file)))
        .filter(|(found, _)| format.is_none_or(|wanted| wanted.name == found.name))
        .collect();
    let formats = FORMATS.iter().copied();
    formats
        .flat_map(|format| {
            let of_format = known.extract_if(.., |(found, _)| found.name == format.name);
            format.group(of_format.map(|(_, file)| file).collect())
        })
        .collect()
}

/// The files of a session: one, or several that repeat each other's lines.
#[derive(Clone, Debug)]
pub struct Transcript {
    pub format: &'static TranscriptFormat,
    /// In the order in which they were written.
    pub paths: Vec<PathBuf>,
    pub bytes: u64,
    /// When the newest of them was last written.
    pub modified: Option<SystemTime>,
}

impl Transcript {
    pub fn new(format: &'static TranscriptFormat, paths: Vec<PathBuf>) -> Self {
        let metadata: Vec<_> = paths
            .iter()
            .filter_map(|path| path.metadata().ok())
            .collect();
        Self {
            format,
            paths,
            bytes: metadata.iter().map(std::fs::Metadata::len).sum(),
            modified: metadata
                .iter()
                .filter_map(|file| file.modified().ok())
                .max(),
        }
    }

    /// Reads it to the end.
    pub fn read(&self, sink: &mut Sink) {
        (self.format.read)(self, sink);
    }
}

/// Receives the items of a reader.
pub type Sink<'a> = dyn FnMut(TranscriptItem) + 'a;

/// An item of a transcript, in this order: a session's start, its events, its end. Problems
/// are in between.
#[derive(Clone, Debug)]
pub enum TranscriptItem {
    Start(SessionStart),
    Event(TranscriptEvent),
    End(SessionEnd),
    Problem(ReadProblem),
}

/// A session, as far as it is known at its first event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStart {
    pub session_id: String,
    /// The name of the format.
    pub agent: &'static str,
    pub path: PathBuf,
    /// The working directory; empty if it is unknown.
    pub cwd: String,
    /// The last part of `cwd`.
    pub project: String,
    /// The version of the program that wrote it; empty if it is unknown.
    pub version: String,
    /// The command that opens it again; empty if there is none.
    pub reopen: String,
}

/// An event with its time, and the model's usage for it.
#[derive(Clone, Debug)]
pub struct TranscriptEvent {
    /// Its cost is the sum of `usage`. Dollars are only those that the transcript has.
    pub event: Event,
    /// The responses of the model that led to it: mostly one or none.
    pub usage: Vec<ModelUsage>,
}

/// The usage of a response of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelUsage {
    /// Empty: unknown.
    pub model: Arc<str>,
    /// All input tokens, including those read from the cache and written to it.
    pub input_tokens: i64,
    /// The part of `input_tokens` that was read from the cache.
    pub cached_input_tokens: i64,
    /// The part of `input_tokens` that was written to the cache.
    pub cache_write_tokens: i64,
    /// The part of `cache_write_tokens` that is kept for an hour, which costs more.
    pub cache_write_1h_tokens: i64,
    pub output_tokens: i64,
    /// `None`: the transcript does not say.
    pub cost_usd: Option<f64>,
}

impl ModelUsage {
    /// Corrects impossible counts: the cached tokens are part of the input.
    fn bounded(self) -> Self {
        let bound = |tokens: i64| tokens.clamp(0, TOKENS_MAX);
        let input_tokens = bound(self.input_tokens);
        let cached_input_tokens = bound(self.cached_input_tokens).min(input_tokens);
        let rest = input_tokens - cached_input_tokens;
        let cache_write_tokens = bound(self.cache_write_tokens).min(rest);
        Self {
            model: self.model,
            input_tokens,
            cached_input_tokens,
            cache_write_tokens,
            cache_write_1h_tokens: bound(self.cache_write_1h_tokens).min(cache_write_tokens),
            output_tokens: bound(self.output_tokens),
            cost_usd: self
                .cost_usd
                .filter(|usd| usd.is_finite() && (0.0..=COST_USD_MAX).contains(usd)),
        }
    }

    fn is_empty(&self) -> bool {
        self.input_tokens == 0 && self.output_tokens == 0 && self.cost_usd.is_none()
    }

    pub fn cost(&self) -> Cost {
        Cost {
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cached_input_tokens: self.cached_input_tokens,
            usd: self.cost_usd.unwrap_or_default(),
        }
    }

    /// Adds another response of the same model.
    fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.cached_input_tokens = self
            .cached_input_tokens
            .saturating_add(other.cached_input_tokens);
        self.cache_write_tokens = self
            .cache_write_tokens
            .saturating_add(other.cache_write_tokens);
        self.cache_write_1h_tokens = self
            .cache_write_1h_tokens
            .saturating_add(other.cache_write_1h_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cost_usd = match (self.cost_usd, other.cost_usd) {
            (Some(usd), Some(more)) => Some(usd + more),
            (usd, more) => usd.or(more),
        };
    }
}

/// A higher cost of a response or a session is an error of the agent.
const COST_USD_MAX: f64 = 1_000_000.0;

/// The totals of a session, at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionEnd {
    /// What the user asked first, on one line; empty if it is not in the transcript.
    pub first_prompt: String,
    /// The usage of each model, in the order of first use. It includes responses that led to no
    /// event.
    pub usage: Vec<ModelUsage>,
    /// The responses that led to no event. They are in `usage` too.
    pub other_responses: Vec<ModelUsage>,
    /// The cost of the session as the agent recorded it.
    pub recorded_cost_usd: Option<f64>,
    pub first_event: Option<SystemTime>,
    pub last_event: Option<SystemTime>,
    pub events: u64,
    pub calls: u64,
    pub compactions: u64,
}

impl SessionEnd {
    /// The model that wrote most; empty if none is known.
    pub fn main_model(&self) -> Arc<str> {
        let known = self.usage.iter().filter(|usage| !usage.model.is_empty());
        let most = known.max_by_key(|usage| (usage.output_tokens, usage.input_tokens));
        most.map(|usage| usage.model.clone()).unwrap_or_default()
    }
}

/// A part that could not be read and was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadProblem {
    pub path: PathBuf,
    /// From 1. 0: the file as a whole.
    pub line: u64,
    pub what: String,
}

/// The command that opens a session of this agent again.
fn reopen_command(format: &TranscriptFormat, session_id: &str) -> String {
    let agent = find_agent(format.name);
    agent.map_or_else(String::new, |agent| agent.resume_command(session_id))
}

#[cfg(test)]
mod tests;
