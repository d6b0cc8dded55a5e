//! A change to one file: planned from what is there, shown as a diff, written as a whole.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use similar::TextDiff;

use super::{
    hook_file::{HookFile, is_own_file},
    settings_file::{HookEntry, SettingsFile},
};
use crate::{
    atomic_file::{self, Durability},
    domain::sanitize::is_invisible,
};

/// The backup of a file, with its content before our first change.
const BACKUP_SUFFIX: &str = ".unstuck-backup";
/// A larger file is not a settings file of an agent.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The most symbolic links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// A file before and after a change.
pub(super) struct FileChange {
    pub path: PathBuf,
    /// The agent's name for people. `None`: it is our own file.
    pub owner: Option<&'static str>,
    /// `None`: there is no file.
    before: Option<String>,
    after: Option<String>,
    /// The mode of a new file.
    mode: u32,
    backup: BackupChange,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BackupChange {
    Keep,
    /// The file has no entry of ours yet.
    Write,
    /// The file is again as before our first change.
    Delete,
}

/// A file that is not changed: the reason, and what a person may add by hand.
pub(super) struct RefusedFile {
    pub path: PathBuf,
    pub why: String,
    pub snippet: String,
}

impl FileChange {
    pub fn is_change(&self) -> bool {
        self.before != self.after
    }

    /// Plans the change of a file by `init`.
    pub fn install(file: &HookFile, agent: &str) -> Result<Self, RefusedFile> {
        match file {
            HookFile::Own { path, text, mode } => {
                let refuse = |why: &str| RefusedFile {
                    path: path.clone(),
                    why: why.to_owned(),
                    snippet: text.clone(),
                };
                let before = read(path).map_err(|error| refuse(&error.to_string()))?;
                if before.as_ref().is_some_and(|it| !is_own_file(path, it)) {
                    return Err(refuse("there is another file of this name"));
                }
                Ok(Self {
                    owner: None,
                    path: path.clone(),
                    before,
                    after: Some(text.clone()),
                    mode: *mode,
                    backup: BackupChange::Keep,
                })
            }
            HookFile::Settings {
                path,
                entries,
                has_switch,
            } => Self::edit(path, 0o644, |state| {
                state.install(agent, entries, *has_switch)
            })
            .map_err(|why| RefusedFile {
                path: path.clone(),
                why,
                snippet: snippet(agent, entries, *has_switch),
            }),
        }
    }

    /// Plans the change of a file by `init --remove`. `None`: it has no entry of ours.
    pub fn remove(file: &HookFile, agent: &str) -> Result<Option<Self>, RefusedFile> {
        let refuse = |why: String| RefusedFile {
            path: file.path().to_owned(),
            why,
            snippet: String::new(),
        };
        match file {
            HookFile::Own { path, mode, .. } => {
                let before = read(path).map_err(|error| refuse(error.to_string()))?;
                let is_own = before.as_ref().is_some_and(|it| is_own_file(path, it));
                Ok(is_own.then(|| Self {
                    owner: None,
                    path: path.clone(),
                    before,
                    after: None,
                    mode: *mode,
                    backup: BackupChange::Keep,
                }))
            }
            HookFile::Settings {
                path, has_switch, ..
            } => {
                let change = Self::edit(path, 0o644, |state| state.remove(agent, *has_switch));
                let change = change.map_err(refuse)?;
                Ok(change.is_change().then_some(change))
            }
        }
    }

    /// Plans a change of a file that other programs and people write too.
    pub fn edit(
        path: &Path,
        mode: u32,
        edit: impl FnOnce(&EditedState) -> Result<EditResult, String>,
    ) -> Result<Self, String> {
        let read = |path: &Path| read(path).map_err(|error| error.to_string());
        let state = EditedState {
            before: read(path)?,
            backup: read(&backup_path(path))?,
        };
        let EditResult { after, had_entries } = edit(&state)?;
        let backup = if !had_entries && state.before.is_some() {
            BackupChange::Write
        } else if state.backup.is_some() && after == state.backup {
            BackupChange::Delete
        } else {
            BackupChange::Keep
        };
        Ok(Self {
            owner: None,
            path: path.to_owned(),
            before: state.before,
            after,
            mode,
            backup,
        })
    }

    pub fn diff(&self) -> String {
        let [before, after] =
            [&self.before, &self.after].map(|it| it.as_deref().unwrap_or_default());
        let diff = TextDiff::from_lines(before, after);
        let mut lines = diff.unified_diff();
        let name = self.path.display().to_string();
        let shown = |text: &Option<String>| match text {
            Some(_) => name.as_str(),
            None => "/dev/null",
        };
        let lines = lines
            .context_radius(2)
            .header(shown(&self.before), shown(&self.after));
        let lines = lines.to_string();
        let is_shown = |c: &char| matches!(c, '\n' | '\t') || !is_invisible(*c);
        lines.chars().filter(is_shown).collect()
    }

    /// Writes the file, unless it has changed since it was read.
    pub fn apply(&self) -> io::Result<()> {
        if read(&self.path)? != self.before {
            return Err(io::Error::other(
                "it has been changed meanwhile; run this again",
            ));
        }
        let backup = backup_path(&self.path);
        if let (BackupChange::Write, Some(before)) = (self.backup, &self.before) {
            let mode = fs::metadata(&self.path)?.permissions().mode() & 0o777;
            replace(&backup, before, mode)?;
        }
        match &self.after {
            Some(after) => {
                let path = follow_links(&self.path)?;
                let mode = fs::metadata(&path).map(|file| file.permissions().mode() & 0o777);
                replace(&path, after, mode.unwrap_or(self.mode))?;
            }
            None => {
                fs::remove_file(follow_links(&self.path)?)?;
                // The directory may be ours too; one with other files in it stays.
                let _ = self.path.parent().map(fs::remove_dir);
            }
        }
        if self.backup == BackupChange::Delete {
            fs::remove_file(&backup)?;
        }
        Ok(())
    }
}

/// The content of a file, and of its backup.
pub(super) struct EditedState {
    pub before: Option<String>,
    pub backup: Option<String>,
}

/// The result of an edit.
pub(super) struct EditResult {
    pub after: Option<String>,
    /// The file had an entry of ours before.
    pub had_entries: bool,
}

impl EditedState {
    fn install(
        &self,
        agent: &str,
        entries: &[HookEntry],
        has_switch: bool,
    ) -> Result<EditResult, String> {
        let before = self.before.as_deref().unwrap_or_default();
        let file = SettingsFile::parse(before, agent)?;
        let old = file.entries();
        let had_entries = !old.is_empty();
        if is_same(&old, entries) {
            let after = self.before.clone();
            return Ok(EditResult { after, had_entries });
        }
        let added = |text: &str| -> Result<String, String> {
            let file = SettingsFile::parse(text, agent)?;
            file.add(entries, has_switch)?;
            Ok(file.text())
        };
        let after = match self.without_own_entries(agent, &old, has_switch) {
            Some(original) => added(original.as_deref().unwrap_or_default())?,
            None => {
                file.remove();
                added(&file.text())?
            }
        };
        Ok(EditResult {
            after: Some(after),
            had_entries,
        })
    }

    fn remove(&self, agent: &str, has_switch: bool) -> Result<EditResult, String> {
        let Some(before) = &self.before else {
            return Ok(EditResult {
                after: None,
                had_entries: true,
            });
        };
        let file = SettingsFile::parse(before, agent)?;
        let old = file.entries();
        let after = if old.is_empty() {
            Some(before.clone())
        } else {
            self.without_own_entries(agent, &old, has_switch)
                .unwrap_or_else(|| {
                    file.remove();
                    let is_ours = file.is_empty() && self.backup.is_none();
                    (!is_ours).then(|| file.text())
                })
        };
        Ok(EditResult {
            after,
            had_entries: true,
        })
    }

    /// The file as it was before our entries, if nothing else has changed since: the backup
    /// with our entries equals the file. `None`: something has. `Some(None)`: there was no file.
    fn without_own_entries(
        &self,
        agent: &str,
        entries: &[HookEntry],
        has_switch: bool,
    ) -> Option<Option<String>> {
        if entries.is_empty() {
            return Some(self.before.clone());
        }
        let original =
            SettingsFile::parse(self.backup.as_deref().unwrap_or_default(), agent).ok()?;
        original.add(entries, has_switch).ok()?;
        (Some(original.text()) == self.before).then(|| self.backup.clone())
    }
}

/// Whether these are the same hooks in any order.
fn is_same(some: &[HookEntry], others: &[HookEntry]) -> bool {
    some.len() == others.len() && some.iter().all(|entry| others.contains(entry))
}

/// The entries as a separate file, for a person to copy.
fn snippet(agent: &str, entries: &[HookEntry], has_switch: bool) -> String {
    let file = SettingsFile::parse("{}\n", agent).ok();
    let added = file.filter(|file| file.add(entries, has_switch).is_ok());
    added.map(|file| file.text()).unwrap_or_default()
}

fn backup_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BACKUP_SUFFIX);
    name.into()
}

/// The text of a file. `None`: there is none.
fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::metadata(path) {
        Ok(file) if file.len() > FILE_BYTES_MAX => Err(io::Error::other("it is larger than 8 MiB")),
        Ok(_) => fs::read_to_string(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file itself, which need not exist.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else {
            return Ok(path);
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other("it is a link to itself"))
}

/// Replaces a file, which need not exist, as a whole: no agent reads a part of it.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    atomic_file::replace(path, text.as_bytes(), mode, Durability::Synced)
}
