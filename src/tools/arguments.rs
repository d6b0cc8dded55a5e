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

/// The role of an argument, by its name in any case.
pub fn classify_argument(name: &str) -> ArgumentRole {
    /// No name with a role is longer.
    const NAME_BYTES_MAX: usize = 32;
    let bytes = name.as_bytes();
    if !bytes.iter().any(u8::is_ascii_uppercase) {
        return classify_lowercase_argument(bytes);
    }
    let mut buffer = [0; NAME_BYTES_MAX];
    let Some(lowered) = buffer.get_mut(..bytes.len()) else {
        return ArgumentRole::default();
    };
    lowered.copy_from_slice(bytes);
    lowered.make_ascii_lowercase();
    classify_lowercase_argument(lowered)
}

/// The same for a lower-case name. Runs for every argument of every call: a match on
/// bytes is cheaper than hashing the name.
#[rustfmt::skip]
fn classify_lowercase_argument(name: &[u8]) -> ArgumentRole {
    // The best target first: paths, addresses, command lines, searches.
    let target_rank = match name {
        b"file_path" => 0, b"filepath" => 1, b"path" => 2, b"absolute_path" => 3,
        b"target_file" | b"relative_path" | b"pathinproject" => 4, b"notebook_path" => 5, b"filename" => 6, b"file_name" => 7,
        b"file" => 8, b"p" => 9, b"url" => 10, b"uri" => 11, b"command" => 12, b"cmd" => 13,
        b"c" => 14, b"script" => 15, b"code" => 16, b"pattern" => 17, b"query" => 18, b"q" => 19,
        b"sql" => 20, b"statement" => 21, b"regex" => 22, b"directory" => 23, b"dir" => 24,
        b"target" => 25, b"input" => 26,
        _ => return classify_untargeted_argument(name),
    };
    ArgumentRole {
        target_rank: Some(target_rank),
        is_command: matches!(
            name,
            b"command" | b"cmd" | b"c" | b"script" | b"input" | b"code"
        ),
        is_search_term: matches!(name, b"pattern" | b"query" | b"q" | b"regex"),
        lines: None,
    }
}

/// The role of a name that is no target.
#[rustfmt::skip]
fn classify_untargeted_argument(name: &[u8]) -> ArgumentRole {
    let lines = match name {
        b"offset" | b"start_line" | b"line_start" | b"start" | b"from_line" | b"startline"
        | b"start_line_one_indexed" | b"from" | b"line" | b"line_number" => LineArgument::First,
        b"end_line" | b"line_end" | b"end" | b"to_line" | b"endline"
        | b"end_line_one_indexed_inclusive" | b"to" => LineArgument::Last,
        b"limit" | b"num_lines" | b"count" | b"max_lines" => LineArgument::Count,
        b"view_range" | b"line_range" | b"range" | b"lines" => LineArgument::Range,
        _ => {
            return ArgumentRole {
                is_search_term: matches!(name, b"search_string" | b"search_term"),
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

/// Whether an argument says why a call is made.
pub fn is_explanation(name: &str) -> bool {
    #[rustfmt::skip]
    const MORE_EXPLANATIONS: &[&str] = &[
        "purpose", "rationale", "intent", "why", "user_prompt", "toolSummary",
        "toolAction", "task_progress",
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
    let mut plain = [0; NAME_BYTES_MAX];
    let mut len = 0;
    let bytes = name.bytes().filter(|byte| *byte != b'_');
    for (slot, byte) in plain.iter_mut().zip(bytes) {
        *slot = byte.to_ascii_lowercase();
        len += 1;
    }
    let plain = plain.get(..len).unwrap_or_default();
    let is = |known: &&str| known.as_bytes() == plain;
    PREFIXES
        .iter()
        .any(|prefix| plain.starts_with(prefix.as_bytes()))
        || LIMITS.iter().any(is)
}
