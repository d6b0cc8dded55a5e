//! Reads the results of Claude Code's tools, which are alike in hooks and transcripts.

use super::input;

/// The fields of a file tool's result. `None`: absent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClaudeFileResult<'a> {
    /// The lines that were read.
    pub content: Option<&'a str>,
    pub lines: Option<i64>,
    pub first_line: Option<i64>,
    pub total_lines: Option<i64>,
    /// The file before an edit.
    pub original: Option<&'a str>,
    pub old: Option<&'a str>,
    pub new: Option<&'a str>,
    pub replace_all: bool,
    /// The content that a write was given.
    pub written: Option<&'a str>,
}

/// The hash of a file that was read whole, or as a write or an edit leaves it.
pub(super) fn content_hash(tool: &str, file: &ClaudeFileResult) -> Option<String> {
    match tool {
        "Read" => {
            let is_whole = file.first_line? == 1 && file.total_lines? == file.lines?;
            let content = file.content?;
            is_whole.then(|| input::content_hash(content))
        }
        "Write" => file.written.map(input::content_hash),
        "Edit" => {
            let edited = edited_text(file.original?, file.old?, file.new?, file.replace_all)?;
            Some(input::content_hash(&edited))
        }
        _ => None,
    }
}

/// The longest text that an edit may leave to be hashed: twice the largest payload of a hook.
const EDITED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The most places that an edit may change: each costs more than the bytes between them.
const REPLACEMENTS_MAX: usize = 65_536;

/// A file as an edit leaves it; `None`: that is too long, or too much work. A short text that
/// is replaced everywhere by a long one would need any amount of memory.
fn edited_text(original: &str, old: &str, new: &str, replace_all: bool) -> Option<String> {
    if old.is_empty() {
        return original.is_empty().then(|| new.to_owned());
    }
    let replacements = if replace_all {
        original.matches(old).take(REPLACEMENTS_MAX + 1).count()
    } else {
        1
    };
    if replacements > REPLACEMENTS_MAX {
        return None;
    }
    let bytes = replacements.saturating_mul(new.len());
    if bytes.saturating_add(original.len()) > EDITED_BYTES_MAX {
        return None;
    }
    Some(original.replacen(old, new, replacements))
}

/// "PreToolUse:Read hook error: [unstuck] …": the service refused the call.
pub(super) fn is_refusal(text: &str, prefix: &str) -> bool {
    let reason = text.strip_prefix("PreToolUse:");
    let reason = reason.and_then(|text| text.split_once(" hook error: "));
    reason.is_some_and(|(_, reason)| reason.starts_with(prefix))
}

/// "Exit code 3", then the output; or the text of an error.
pub(super) fn is_failure(text: &str) -> bool {
    let line = text.lines().next().unwrap_or_default();
    let code = line.strip_prefix("Exit code ").map(str::parse::<i32>);
    text.starts_with("<tool_use_error>") || matches!(code, Some(Ok(code)) if code != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_applied_within_bounded_memory() {
        let edit = edited_text;
        assert_eq!(edit("a b a", "a", "c", false).as_deref(), Some("c b a"));
        assert_eq!(edit("a b a", "a", "c", true).as_deref(), Some("c b c"));
        assert_eq!(edit("", "", "new", false).as_deref(), Some("new"));
        assert_eq!(edit("text", "", "new", true), None);
        let long = "x".repeat(100_000);
        assert_eq!(edit(&long, "x", &long, true), None);
        // 10 MB from 12 KB.
        let text = "x ".repeat(1_000);
        assert_eq!(edit(&text, "x", &"y".repeat(10_000), true), None);
        let edited_bytes = |text_bytes| {
            let text = "x".repeat(text_bytes);
            let edited = edit(&text, "xx", "y", false)?;
            Some(edited.len())
        };
        assert_eq!(
            edited_bytes(EDITED_BYTES_MAX - 1),
            Some(EDITED_BYTES_MAX - 2)
        );
        assert_eq!(edited_bytes(EDITED_BYTES_MAX), None);
        assert!(edit(&"x ".repeat(REPLACEMENTS_MAX), "x", "y", true).is_some());
        assert_eq!(
            edit(&"x ".repeat(REPLACEMENTS_MAX + 1), "x", "y", true),
            None
        );
    }
}
