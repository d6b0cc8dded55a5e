//! The content of a file as Claude Code's results show it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    lenient::{Count, Flag, Object, Text},
    session::SessionWriter,
};
use crate::ingest::claude_result::{self, ClaudeFileResult};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ToolUseResult<'a> {
    #[serde(borrow)]
    file: Object<FileResult<'a>>,
    #[serde(borrow)]
    original_file: Option<Text<'a>>,
    #[serde(borrow)]
    old_string: Option<Text<'a>>,
    #[serde(borrow)]
    new_string: Option<Text<'a>>,
    replace_all: Flag,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct FileResult<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    num_lines: Count,
    start_line: Count,
    total_lines: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WriteArgs<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
}

/// The hash of a file that was read whole, or as a write or an edit leaves it.
pub(super) fn content_hash(
    writer: &SessionWriter,
    call_id: &str,
    result: Option<&RawValue>,
) -> Option<String> {
    let tool = writer.open_tool(call_id)?;
    if tool == "Write" {
        let args = writer.open_args(call_id)?.as_text();
        let args: WriteArgs = serde_json::from_str(args).ok()?;
        return claude_result::content_hash(
            tool,
            &ClaudeFileResult {
                written: args.content.as_deref(),
                ..ClaudeFileResult::default()
            },
        );
    }
    if !matches!(tool, "Read" | "Edit") {
        return None;
    }
    let result: ToolUseResult = serde_json::from_str(result?.get()).ok()?;
    let file = result.file.0.unwrap_or_default();
    claude_result::content_hash(
        tool,
        &ClaudeFileResult {
            content: file.content.as_deref(),
            lines: file.num_lines.0,
            first_line: file.start_line.0,
            total_lines: file.total_lines.0,
            original: result.original_file.as_deref(),
            old: result.old_string.as_deref(),
            new: result.new_string.as_deref(),
            replace_all: result.replace_all.0,
            written: None,
        },
    )
}
