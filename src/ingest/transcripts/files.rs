//! The places of transcripts, and how their files are opened: for reading only, and up to the
//! length that they have at that time.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::ingest::NdjsonReader;

/// The directories in which agents keep their transcripts. The caller takes them from its
/// environment.
#[derive(Clone, Debug, Default)]
pub struct Homes {
    pub home: PathBuf,
    /// `CLAUDE_CONFIG_DIR`: directories, separated by commas.
    pub claude: Option<String>,
    /// `CODEX_HOME`.
    pub codex: Option<PathBuf>,
    /// `COPILOT_HOME`.
    pub copilot: Option<PathBuf>,
    /// `CLINE_DIR`.
    pub cline: Option<PathBuf>,
    /// `PI_CODING_AGENT_DIR`.
    pub pi: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`.
    pub xdg_config: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub xdg_data: Option<PathBuf>,
}

impl Homes {
    /// The directories of this user; `variable` is a look-up in the environment.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        Self {
            home: path("HOME").unwrap_or_default(),
            claude: text("CLAUDE_CONFIG_DIR"),
            codex: path("CODEX_HOME"),
            copilot: path("COPILOT_HOME"),
            cline: path("CLINE_DIR"),
            pi: path("PI_CODING_AGENT_DIR"),
            xdg_config: path("XDG_CONFIG_HOME"),
            xdg_data: path("XDG_DATA_HOME"),
        }
    }

    pub(super) fn config_dir(&self) -> PathBuf {
        let default = || self.home.join(".config");
        self.xdg_config.clone().unwrap_or_else(default)
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        let default = || self.home.join(".local/share");
        self.xdg_data.clone().unwrap_or_else(default)
    }
}

/// The most levels of directories. Agents use five.
const DEPTH_MAX: usize = 12;

/// The files below a directory whose names `wanted` accepts, sorted. Symbolic links are
/// not followed, so that no file is read twice and no cycle is entered.
pub(super) fn files_below(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        for entry in entries {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() && depth < DEPTH_MAX {
                dirs.push((entry.path(), depth + 1));
            } else if kind.is_file() && entry.file_name().to_str().is_some_and(&wanted) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Whether a file has a JSON value on each line, by its name.
pub(super) fn is_ndjson(name: &str) -> bool {
    name.ends_with(".jsonl")
}

/// The size of the read buffer: few system calls per megabyte, and most lines fit.
const BUFFER_BYTES: usize = 256 * 1024;

/// Opens a file for reading up to its present length: its agent may be writing to it.
pub(super) fn open(path: &Path) -> io::Result<(u64, impl Read + use<>)> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    Ok((bytes, file.take(bytes)))
}

/// The lines of a file; `None`: the file is empty.
pub(super) fn open_lines(path: &Path) -> io::Result<Option<NdjsonReader<impl io::BufRead>>> {
    let (bytes, file) = open(path)?;
    let reader = BufReader::with_capacity(BUFFER_BYTES, file);
    Ok((bytes > 0).then(|| NdjsonReader::new(reader)))
}

/// The largest JSON document that is read. Parsed, it takes many times its size.
const DOCUMENT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A JSON document; the error is for a person.
pub(super) fn read_document(path: &Path) -> Result<Value, String> {
    let (bytes, mut file) = open(path).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes == 0 {
        return Err(EMPTY.to_owned());
    }
    if bytes > DOCUMENT_BYTES_MAX {
        let limit = DOCUMENT_BYTES_MAX / 1024 / 1024;
        return Err(format!("the document is longer than {limit} MiB"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|error| format!("cannot be read: {error}"))?;
    serde_json::from_str(&text).map_err(|error| describe_json_error(&error))
}

pub(super) const EMPTY: &str = "the file is empty";

/// A parser's message for a person: a transcript that is being written ends anywhere.
pub(super) fn describe_json_error(error: &serde_json::Error) -> String {
    if error.is_eof() {
        "cut off: the JSON ends too early".to_owned()
    } else {
        format!("not the expected JSON: {error}")
    }
}

/// The first bytes of a file, by which its format is recognised.
pub(super) struct FileHead {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    /// The first lines that are whole JSON objects.
    pub lines: Vec<Value>,
}

/// Enough for the first lines of every format.
const HEAD_BYTES: u64 = 64 * 1024;
/// Lines before the first that tells the format: summaries, snapshots.
const HEAD_LINES: usize = 16;

impl FileHead {
    pub fn read(path: &Path) -> Option<Self> {
        let (_, file) = open(path).ok()?;
        let mut bytes = Vec::new();
        file.take(HEAD_BYTES).read_to_end(&mut bytes).ok()?;
        let lines = bytes.split(|byte| *byte == b'\n').take(HEAD_LINES);
        let lines = lines.filter_map(|line| serde_json::from_slice(line).ok());
        Some(Self {
            path: path.to_owned(),
            lines: lines.filter(Value::is_object).collect(),
            bytes,
        })
    }

    pub fn name_ends_with(&self, end: &str) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(end))
    }

    pub fn contains(&self, text: &str) -> bool {
        memchr::memmem::find(&self.bytes, text.as_bytes()).is_some()
    }

    /// Whether `wanted` accepts one of the first lines.
    pub fn any_line(&self, wanted: impl Fn(&Value) -> bool) -> bool {
        self.lines.iter().any(wanted)
    }
}
