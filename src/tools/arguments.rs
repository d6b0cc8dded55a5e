//! What the names of arguments say: which one is the target, the command line or the lines of
//! a file, which selects a function, and which only explain or limit the call.

use crate::text::call_key::is_explaining;

/// What an argument's name says about its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArgumentRole {
    /// The value may be the call's target; the lowest rank wins.
    pub target_rank: Option<u8>,
    /// The value may be a shell's command line.
    pub is_command: bool,
    /// The value may be what a search looks for.
    pub is_search_term: bool,
    pub lines: Option<LineArgument>,
}

impl ArgumentRole {
    /// Whether the name says anything at all.
    pub fn is_relevant(self) -> bool {
        self != Self::default()
    }
}

/// Which lines of a file an argument asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineArgument {
    First,
    Last,
    Count,
    /// First and last, as an array.
    Range,
}

/// The role of an argument, by its name in any case, with or without underscores:
/// `file_path`, `filePath`, `FilePath`.
pub fn classify_argument(name: &str) -> ArgumentRole {
    /// No name with a role is longer.
    const NAME_BYTES_MAX: usize = 32;
    let bytes = name.as_bytes();
    if !bytes
        .iter()
        .any(|byte| byte.is_ascii_uppercase() || *byte == b'_')
    {
        return classify_plain_argument(bytes);
    }
    if bytes.len() > NAME_BYTES_MAX {
        return ArgumentRole::default();
    }
    let mut buffer = [0; NAME_BYTES_MAX];
    classify_plain_argument(plain_name(bytes, &mut buffer))
}

/// A name in lower case and without underscores, as much of it as fits.
fn plain_name<'b>(name: &[u8], buffer: &'b mut [u8]) -> &'b [u8] {
    let mut len = 0;
    let bytes = name.iter().filter(|byte| **byte != b'_');
    for (slot, byte) in buffer.iter_mut().zip(bytes) {
        *slot = byte.to_ascii_lowercase();
        len += 1;
    }
    buffer.get(..len).unwrap_or_default()
}

/// The same for a name in lower case without underscores. Runs for every argument of every
/// call: a match on bytes is cheaper than hashing the name.
#[rustfmt::skip]
fn classify_plain_argument(name: &[u8]) -> ArgumentRole {
    // The best target first: paths, addresses, command lines, searches.
    let target_rank = match name {
        b"filepath" => 0, b"path" => 2, b"absolutepath" => 3,
        b"targetfile" | b"relativepath" | b"pathinproject" => 4, b"notebookpath" => 5, b"filename" => 6,
        b"file" => 8, b"p" => 9, b"url" => 10, b"uri" => 11, b"command" | b"commandline" => 12, b"cmd" => 13,
        b"c" => 14, b"script" => 15, b"code" => 16, b"pattern" => 17, b"query" => 18, b"q" => 19,
        b"sql" => 20, b"statement" => 21, b"regex" => 22, b"directory" => 23, b"dir" => 24,
        b"target" => 25, b"input" => 26,
        _ => return classify_untargeted_argument(name),
    };
    ArgumentRole {
        target_rank: Some(target_rank),
        is_command: matches!(
            name,
            b"command" | b"commandline" | b"cmd" | b"c" | b"script" | b"input" | b"code"
        ),
        is_search_term: matches!(name, b"pattern" | b"query" | b"q" | b"regex"),
        lines: None,
    }
}

/// The role of a name that is no target.
#[rustfmt::skip]
fn classify_untargeted_argument(name: &[u8]) -> ArgumentRole {
    let lines = match name {
        b"offset" | b"linestart" | b"start" | b"fromline" | b"startline"
        | b"startlineoneindexed" | b"from" | b"line" | b"linenumber" => LineArgument::First,
        b"endline" | b"lineend" | b"end" | b"toline"
        | b"endlineoneindexedinclusive" | b"to" => LineArgument::Last,
        b"limit" | b"numlines" | b"count" | b"maxlines" => LineArgument::Count,
        b"viewrange" | b"linerange" | b"range" | b"lines" => LineArgument::Range,
        _ => {
            return ArgumentRole {
                is_search_term: matches!(name, b"searchstring" | b"searchterm"),
                ..ArgumentRole::default()
            };
        }
    };
    ArgumentRole {
        lines: Some(lines),
        ..ArgumentRole::default()
    }
}

/// Whether an argument asks a tool with many functions to wait: `action: "wait"`.
pub fn is_wait_argument(name: &str, value: &str) -> bool {
    is_action_argument(name) && matches!(value, "wait" | "sleep" | "poll")
}

/// Whether an argument selects what a tool with many functions does.
pub fn is_action_argument(name: &str) -> bool {
    matches!(name, "action" | "command" | "type")
}

/// Whether an argument selects one of a tool's functions by a verb.
pub fn is_selector(name: &str) -> bool {
    matches!(
        name,
        "action" | "operation" | "op" | "method" | "mode" | "verb"
    )
}

/// Whether a target rank is that of a path.
pub fn is_path_rank(rank: u8) -> bool {
    const PATH_RANKS: u8 = 10;
    rank < PATH_RANKS
}

/// Whether an argument only tells one request from another.
pub fn is_request_id(name: &str) -> bool {
    matches!(
        name,
        "request_id" | "requestId" | "nonce" | "trace_id" | "correlation_id" | "idempotency_key"
    )
}

/// Whether a number under this name says how much of an object is shown, or when. Any
/// other number may name the object.
pub fn is_view_argument(name: &str) -> bool {
    #[rustfmt::skip]
    const VIEW_ARGUMENTS: &[&str] = &[
        "page", "limit", "offset", "count", "size", "per_page", "page_size", "start", "end", "top",
        "skip", "max_results", "num_results", "n", "k", "ts", "timestamp", "attempt", "retry",
        "depth", "first", "last", "cursor", "width", "height", "temperature", "seed",
    ];
    VIEW_ARGUMENTS.contains(&name)
}

/// Whether an argument says why a call is made, or how the agent waits for its answer.
pub fn is_explanation(name: &str) -> bool {
    #[rustfmt::skip]
    const MORE_EXPLANATIONS: &[&str] = &[
        "purpose", "rationale", "intent", "why", "user_prompt", "toolSummary",
        "toolAction", "task_progress", "thinking", "thoughts", "chain_of_thought", "motivation",
        "intention", "delay",
    ];
    !is_limit(name) && (is_explaining(name) || MORE_EXPLANATIONS.contains(&name))
}

/// Whether an argument limits how long a call takes or how much it returns, or says how the
/// agent waits for it.
pub fn is_limit(name: &str) -> bool {
    /// The names without underscores, in lower case.
    #[rustfmt::skip]
    const LIMITS: &[&str] = &[
        "yieldtimems", "initialwait", "waitseconds", "waitms", "waitmsbeforeasync", "blockuntilms",
        "delayms", "delayseconds", "blocking", "isbackground", "requiresapproval",
        "waitforprevioustools", "timelimit", "deadlinems", "outputlimit", "headlimit",
        "truncatelength",
    ];
    const PREFIXES: &[&str] = &["timeout", "maxoutput"];
    /// No name of a limit is longer.
    const NAME_BYTES_MAX: usize = 24;
    // Most names have another first letter.
    let first = name.as_bytes().first().map(u8::to_ascii_lowercase);
    if !first.is_some_and(|first| b"bdhimortwy".contains(&first)) || name.len() > NAME_BYTES_MAX {
        return false;
    }
    let mut buffer = [0; NAME_BYTES_MAX];
    let plain = plain_name(name.as_bytes(), &mut buffer);
    let is = |known: &&str| known.as_bytes() == plain;
    PREFIXES
        .iter()
        .any(|prefix| plain.starts_with(prefix.as_bytes()))
        || LIMITS.iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_the_same_in_every_spelling() {
        for spellings in [
            ["file_path", "filePath", "FilePath"],
            ["absolute_path", "absolutePath", "AbsolutePath"],
            ["target_file", "targetFile", "TargetFile"],
            ["command_line", "commandLine", "CommandLine"],
            ["start_line", "startLine", "StartLine"],
        ] {
            let [first, others @ ..] = spellings.map(classify_argument);
            assert!(first.is_relevant(), "{spellings:?}");
            assert_eq!(others, [first; 2], "{spellings:?}");
        }
        assert!(!classify_argument("pathological_case").is_relevant());
        assert!(!classify_argument(&"path_".repeat(20)).is_relevant());
    }
}
