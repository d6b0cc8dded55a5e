//! Records the results of each agent's hooks for `unstuck doctor`: an agent that gets no reply
//! continues without a message.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::HookFailure;
use crate::{
    atomic_file::{self, Durability},
    cli::local_service::{LocalDirs, create_private_dir},
    domain::clock,
};

/// A larger log is replaced by an empty one.
const LOG_BYTES_MAX: u64 = 256 * 1024;

/// The file that describes the hooks of one agent.
pub(in crate::cli) struct Journal {
    dir: PathBuf,
    agent: String,
}

/// The last hooks of an agent. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct JournalEntry {
    /// When the agent last called a hook.
    pub seen_at: u64,
    /// When a hook was last answered, and how long that took.
    pub answered_at: u64,
    pub answer_ms: u64,
    /// When a hook last got no answer, and why.
    pub failed_at: u64,
    pub failure: String,
    /// The number of hooks without an answer since the last answer.
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
        let millis = clock::millis(now);
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

    /// Replaces the file as a whole, because several hooks may run at a time. It is not
    /// synced: an agent waits for its hook.
    fn replace(&self, entry: &JournalEntry) -> io::Result<()> {
        let text = serde_json::to_vec(entry)?;
        let write = || atomic_file::replace(&self.path(), &text, 0o600, Durability::Unsynced);
        match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_private_dir(&self.dir)?;
                write()
            }
            result => result,
        }
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
