//! Records the results of each agent's hooks for `unstuck doctor`: an agent that gets no reply
//! continues without a message.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::HookFailure;
use crate::{
    cli::local_service::{LocalDirs, create_private_dir},
    domain::clock,
};

/// A larger log is replaced by an empty one.
const LOG_BYTES_MAX: u64 = 256 * 1024;

/// The hooks of one agent.
pub(in crate::cli) struct Journal {
    dir: PathBuf,
    agent: String,
}

/// The last of its hooks. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct JournalEntry {
    /// The last event of the agent.
    pub seen_at: u64,
    /// The last one that was answered, and the time that it took.
    pub answered_at: u64,
    pub answer_ms: u64,
    /// The last one that was not, and why.
    pub failed_at: u64,
    pub failure: String,
    /// Those without an answer since the last answer.
    pub failures: u64,
}

impl Journal {
    pub fn new(dirs: &LocalDirs, agent: &str) -> Self {
        Self {
            dir: dirs.state.join("hooks"),
            agent: agent.to_owned(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(format!("{}.json", self.agent))
    }

    /// Empty if there is no readable journal.
    pub fn read(&self) -> JournalEntry {
        let text = fs::read(self.path()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Ignores errors: an agent must not wait for its journal.
    pub fn record(&self, outcome: &Result<(), HookFailure>, duration: Duration) {
        let now = clock::now();
        let millis = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let millis = u64::try_from(millis.as_millis()).unwrap_or(u64::MAX);
        let mut entry = self.read();
        entry.seen_at = millis;
        match outcome {
            Ok(()) => {
                entry.answered_at = millis;
                entry.answer_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                entry.failures = 0;
            }
            Err(failure) => {
                // The first hook after a pause starts the service. That is no failure.
                if !matches!(failure, HookFailure::Started) {
                    entry.failed_at = millis;
                    entry.failure = failure.to_string();
                    entry.failures += 1;
                }
                let time = Timestamp::try_from(now).unwrap_or_default();
                let line = format!("{time:.3} {}: {failure}\n", self.agent);
                let _ = self.append_log(&line);
            }
        }
        let _ = self.replace(&entry);
    }

    /// As a whole: several hooks may run at a time.
    fn replace(&self, entry: &JournalEntry) -> io::Result<()> {
        let temporary = self
            .dir
            .join(format!("{}.{}.tmp", self.agent, process::id()));
        let text = serde_json::to_vec(entry)?;
        let written = write_private(&temporary, &text);
        let written = match written {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_private_dir(&self.dir)?;
                write_private(&temporary, &text)
            }
            written => written,
        };
        written.and_then(|()| fs::rename(&temporary, self.path()))
    }

    fn append_log(&self, line: &str) -> io::Result<()> {
        create_private_dir(&self.dir)?;
        let path = self.dir.join("hooks.log");
        let is_large = fs::metadata(&path).is_ok_and(|file| file.len() > LOG_BYTES_MAX);
        if is_large {
            fs::remove_file(&path)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(path)?;
        file.write_all(line.as_bytes())
    }
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text)
}
