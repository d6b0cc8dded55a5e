//! Whether Codex trusts our hooks. It runs only hooks that its user has accepted, and notes
//! a hash of each in its `config.toml`:
//! `[hooks.state."/home/me/.codex/hooks.json:pre_tool_use:0:0"]`.

use std::{fs, path::Path};

use toml::{Table, Value};

use crate::cli::init::settings_file::HookEntry;

/// A larger file is not read.
const CONFIG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How many of our hooks Codex does not trust, or has disabled. A hook that has changed since is
/// not noticed, because the hash is Codex's own.
pub(super) fn count_untrusted(hooks_file: &Path, entries: &[(HookEntry, (usize, usize))]) -> usize {
    let config = read_config(&hooks_file.with_file_name("config.toml")).unwrap_or_default();
    let hooks = config.get("hooks").and_then(|hooks| hooks.get("state"));
    let states = hooks.and_then(Value::as_table);
    // Codex may name the file by another path that leads to it.
    let canonical = hooks_file.canonicalize();
    let files = [Some(hooks_file), canonical.as_deref().ok()];
    let is_trusted = |(entry, (group, hook)): &&(HookEntry, (usize, usize))| {
        let event = snake_case(&entry.event);
        let mut keys = files.iter().flatten().map(|file| {
            let file = file.display();
            format!("{file}:{event}:{group}:{hook}")
        });
        keys.any(|key| {
            let state = states.and_then(|states| states.get(&key));
            let hash = state.and_then(|state| state.get("trusted_hash"));
            let enabled = state.and_then(|state| state.get("enabled"));
            hash.and_then(Value::as_str)
                .is_some_and(|hash| !hash.is_empty())
                && enabled.and_then(Value::as_bool) != Some(false)
        })
    };
    entries.len() - entries.iter().filter(is_trusted).count()
}

fn read_config(path: &Path) -> Option<Table> {
    let is_readable = fs::metadata(path).ok()?.len() <= CONFIG_BYTES_MAX;
    let text = is_readable.then(|| fs::read_to_string(path).ok())??;
    text.parse().ok()
}

/// `pre_tool_use` of `PreToolUse`.
fn snake_case(event: &str) -> String {
    let mut name = String::with_capacity(event.len() + 4);
    for letter in event.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
