//! What a tool does, from its name: a table of the common agents' tools, which
//! `[[tools]]` in the configuration extends.

use glob::Pattern;
use serde::Deserialize;
use thiserror::Error;

use crate::domain::Operation;

/// What a tool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolClass {
    Read,
    Write,
    Edit,
    Execute,
    Search,
    /// Waits, or looks whether something has changed.
    Poll,
    /// No detector looks at it.
    Exempt,
    Other,
}

impl ToolClass {
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::Execute,
        Self::Search,
        Self::Poll,
        Self::Exempt,
        Self::Other,
    ];

    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Edit)
    }

    pub fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
            Self::Edit => Operation::Edit,
            Self::Execute => Operation::Execute,
            Self::Search => Operation::Search,
            Self::Poll | Self::Exempt | Self::Other => Operation::Other,
        }
    }
}

/// An entry of `[[tools]]`.
#[derive(Clone, Debug, Deserialize)]
pub struct ToolRule {
    /// A name, or a glob such as `mcp__*__read_*`; upper and lower case are one.
    pub name: String,
    /// Left out: as in the built-in table.
    pub class: Option<ToolClass>,
    /// Top-level arguments that do not make a call a different one.
    #[serde(default)]
    pub ignore_args: Vec<String>,
    /// The result says nothing about progress.
    #[serde(default)]
    pub ignore_result: bool,
}

impl ToolRule {
    /// The keys of an entry, for the check of unknown keys.
    pub const KEYS: &'static [&'static str] = &["name", "class", "ignore_args", "ignore_result"];
}

#[derive(Debug, Error)]
#[error("tools[{position}].name {name:?} is not a glob: {why}")]
pub struct ToolRuleError {
    position: usize,
    name: String,
    why: &'static str,
}

/// The rules of the configuration before the built-in table.
#[derive(Debug, Default)]
pub struct ToolRules {
    rules: Vec<(Pattern, ToolRule)>,
}

/// What applies to one tool.
pub(super) struct ResolvedToolRule<'t> {
    /// `None`: a shell, whose command says what it does.
    pub class: Option<ToolClass>,
    pub ignore_args: &'t [String],
    pub ignore_result: bool,
}

impl ToolRules {
    /// `[[tools]]` beyond this would cost more than the detectors.
    pub const RULES_MAX: usize = 256;

    pub fn new(rules: Vec<ToolRule>) -> Result<Self, ToolRuleError> {
        let compile = |(position, rule): (usize, ToolRule)| {
            Pattern::new(&rule.name.to_ascii_lowercase())
                .map(|pattern| (pattern, rule.clone()))
                .map_err(|error| ToolRuleError {
                    position,
                    name: rule.name,
                    why: error.msg,
                })
        };
        let rules = rules
            .into_iter()
            .take(Self::RULES_MAX)
            .enumerate()
            .map(compile);
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// The first rule that fits the name wins; what it leaves out comes from
    /// the built-in table.
    pub(super) fn resolve(&self, tool: &str, built_in: Option<ToolClass>) -> ResolvedToolRule<'_> {
        let options = glob::MatchOptions {
            case_sensitive: false,
            ..glob::MatchOptions::default()
        };
        let mut rules = self.rules.iter();
        let rule = rules.find(|(pattern, _)| pattern.matches_with(tool, options));
        let rule = rule.map(|(_, rule)| rule);
        ResolvedToolRule {
            class: rule.and_then(|rule| rule.class).or(built_in),
            ignore_args: rule.map_or(&[], |rule| &rule.ignore_args),
            ignore_result: rule.is_some_and(|rule| rule.ignore_result),
        }
    }
}

/// The tools of Claude Code, Codex, Gemini CLI, OpenHands, SWE-agent, Cline,
/// opencode, Goose and LangChain, by class.
#[rustfmt::skip]
const BUILT_IN_CLASSES: &[(ToolClass, &[&str])] = &[
    (ToolClass::Read, &[
        "read", "read_file", "readfile", "view", "view_file", "open", "open_file", "cat",
        "notebookread", "read_many_files", "webfetch", "web_fetch", "fetch", "visit_page", "read_text_file", "get_file_contents",
        "view_image", "goto", "scroll_up", "scroll_down", "read_notebook", "file_read",
    ]),
    (ToolClass::Write, &[
        "write", "write_file", "writefile", "write_to_file", "create", "create_file", "new_file",
        "save_file", "notebookwrite", "file_write", "move_file", "copy_file", "file_delete",
        "delete_file", "rename_file",
    ]),
    (ToolClass::Edit, &[
        "edit", "edit_file", "multiedit", "multi_edit", "replace", "replace_in_file",
        "str_replace", "apply_patch", "apply_diff", "patch", "insert", "notebookedit",
        "insert_content", "search_and_replace", "undo_edit", "file_edit", "todowrite",
    ]),
    (ToolClass::Execute, &[
        "python", "python_interpreter", "execute_ipython_cell", "ipython", "run_tests", "test",
        "execute_code", "code_interpreter", "run_python",
    ]),
    (ToolClass::Search, &[
        "grep", "glob", "search", "search_files", "search_file", "search_dir", "find_file",
        "search_file_content", "grep_search", "codebase_search", "websearch", "web_search",
        "google_web_search", "list_code_definition_names", "rg", "file_search", "find",
        "list_directory", "list_files", "ls", "list_dir", "list",
    ]),
    (ToolClass::Poll, &[
        "wait", "sleep", "write_stdin", "bashoutput", "bash_output", "taskoutput", "task_output",
        "wait_agent", "command_status", "wait_for_previous_tools",
    ]),
];

/// Tools that run a command line.
#[rustfmt::skip]
const SHELL_TOOLS: &[&str] = &[
    "bash", "shell", "exec", "exec_command", "execute_command", "run_command",
    "run_shell_command", "local_shell", "terminal", "execute_bash", "run", "sh", "cmd",
    "developer__shell", "run_terminal_cmd", "unified_exec", "powershell",
];

/// What a tool does by its name; `None`: it is a shell. The tools of editors
/// that read and write under one name (`str_replace_editor`, `text_editor`) are
/// told apart by their arguments.
pub(super) fn classify_built_in(tool: &str) -> Option<ToolClass> {
    // `fs.edit` and `functions.bash` are known by their last part.
    let name = strip_namespace(tool);
    let name = name.rsplit(['.', '/', ':']).next().unwrap_or(name);
    let is_name = |known: &&str| known.eq_ignore_ascii_case(name);
    if SHELL_TOOLS.iter().any(&is_name) {
        return None;
    }
    let class = BUILT_IN_CLASSES
        .iter()
        .find(|(_, names)| names.iter().any(&is_name));
    Some(class.map_or(ToolClass::Other, |(class, _)| *class))
}

/// `mcp__files__read_file` is known by what stands behind the last `__`.
fn strip_namespace(tool: &str) -> &str {
    tool.rsplit("__").next().unwrap_or(tool)
}

/// The words of a name in snake or camel case.
pub(super) fn split_name_words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_alphanumeric()).flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            let end = rest
                .char_indices()
                .skip(1)
                .find(|(_, c)| c.is_uppercase())
                .map_or(rest.len(), |(at, _)| at);
            let (word, after) = rest.split_at(end);
            rest = after;
            (!word.is_empty()).then_some(word)
        })
    })
}

/// What a tool that is in no table does, by the words of its name and whether it
/// is given a path.
pub(super) fn guess_class(tool: &str, has_path: bool) -> ToolClass {
    #[rustfmt::skip]
    const VERBS: &[(ToolClass, bool, &[&str])] = &[
        (ToolClass::Poll, false, &["wait", "sleep", "poll"]),
        (ToolClass::Edit, true, &["edit", "replace", "patch", "insert", "modify", "update", "append"]),
        (ToolClass::Write, true, &["write", "create", "save", "overwrite"]),
        (ToolClass::Read, true, &["read", "view", "cat"]),
    ];
    let has_verb = |verbs: &[&str]| {
        split_name_words(tool).any(|word| verbs.iter().any(|verb| verb.eq_ignore_ascii_case(word)))
    };
    let mut fits = VERBS.iter().filter(|(_, path, _)| has_path || !path);
    fits.find(|(_, _, verbs)| has_verb(verbs))
        .map_or(ToolClass::Other, |(class, ..)| *class)
}

/// Whether a tool of no known class only looks, by the words of its name.
pub(super) fn is_read_only(tool: &str) -> bool {
    #[rustfmt::skip]
    const READ_ONLY_VERBS: &[&str] = &[
        "get", "find", "read", "list", "view", "show", "look", "lookup", "extract", "snapshot",
        "screenshot", "observe", "describe", "inspect", "query", "search", "fetch", "check",
    ];
    split_name_words(tool).any(|word| {
        READ_ONLY_VERBS
            .iter()
            .any(|verb| verb.eq_ignore_ascii_case(word))
    })
}

/// Whether a tool is an editor with a `command` argument.
pub(super) fn is_editor(tool: &str) -> bool {
    const EDITORS: &[&str] = &[
        "str_replace_editor",
        "text_editor",
        "str_replace_based_edit_tool",
        "file_editor",
    ];
    let name = strip_namespace(tool);
    EDITORS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// What such an editor does.
pub(super) fn classify_editor_command(command: &str) -> ToolClass {
    match command {
        "view" | "read" => ToolClass::Read,
        "create" | "write" => ToolClass::Write,
        _ => ToolClass::Edit,
    }
}

/// What an argument's name says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ArgRole {
    /// It says what the call acts on: the lower, the more telling.
    pub target_rank: Option<u8>,
    /// Under this name a shell gets its command line.
    pub is_command: bool,
    /// Under this name a search gets what it looks for.
    pub is_search_term: bool,
    pub lines: Option<LineArg>,
}

impl ArgRole {
    /// It says anything at all.
    pub fn is_relevant(self) -> bool {
        self != Self::default()
    }
}

/// Which lines of a file an argument asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineArg {
    First,
    Last,
    Count,
    /// First and last, as an array.
    Range,
}

/// What a name, in whichever case, says.
pub(super) fn classify_argument(name: &str) -> ArgRole {
    /// No name that says anything is longer.
    const NAME_BYTES_MAX: usize = 32;
    let name = name.as_bytes();
    if !name.iter().any(u8::is_ascii_uppercase) {
        return classify_lowercase_argument(name);
    }
    let mut buffer = [0; NAME_BYTES_MAX];
    let Some(lowered) = buffer.get_mut(..name.len()) else {
        return ArgRole::default();
    };
    lowered.copy_from_slice(name);
    lowered.make_ascii_lowercase();
    classify_lowercase_argument(lowered)
}

/// The same of a name in small letters. Names are told apart byte by byte, which
/// takes fewer steps than to hash them; every argument of every call asks.
#[rustfmt::skip]
fn classify_lowercase_argument(name: &[u8]) -> ArgRole {
    // The most telling target first: paths, addresses, command lines, searches.
    let target_rank = match name {
        b"file_path" => 0, b"filepath" => 1, b"path" => 2, b"absolute_path" => 3,
        b"target_file" => 4, b"notebook_path" => 5, b"filename" => 6, b"file_name" => 7,
        b"file" => 8, b"p" => 9, b"url" => 10, b"uri" => 11, b"command" => 12, b"cmd" => 13,
        b"c" => 14, b"script" => 15, b"code" => 16, b"pattern" => 17, b"query" => 18, b"q" => 19,
        b"sql" => 20, b"statement" => 21, b"regex" => 22, b"directory" => 23, b"dir" => 24,
        b"target" => 25, b"input" => 26,
        _ => return classify_untargeted_argument(name),
    };
    ArgRole {
        target_rank: Some(target_rank),
        is_command: matches!(
            name,
            b"command" | b"cmd" | b"c" | b"script" | b"input" | b"code"
        ),
        is_search_term: matches!(name, b"pattern" | b"query" | b"q" | b"regex"),
        lines: None,
    }
}

/// What a name says that names no target.
#[rustfmt::skip]
fn classify_untargeted_argument(name: &[u8]) -> ArgRole {
    let lines = match name {
        b"offset" | b"start_line" | b"line_start" | b"start" | b"from_line" | b"startline"
        | b"start_line_one_indexed" | b"from" | b"line" | b"line_number" => LineArg::First,
        b"end_line" | b"line_end" | b"end" | b"to_line" | b"endline"
        | b"end_line_one_indexed_inclusive" | b"to" => LineArg::Last,
        b"limit" | b"num_lines" | b"count" | b"max_lines" => LineArg::Count,
        b"view_range" | b"line_range" | b"range" | b"lines" => LineArg::Range,
        _ => {
            return ArgRole {
                is_search_term: matches!(name, b"search_string" | b"search_term"),
                ..ArgRole::default()
            };
        }
    };
    ArgRole {
        lines: Some(lines),
        ..ArgRole::default()
    }
}

/// `action: "wait"` of a tool that does many things.
pub(super) fn is_wait_argument(name: &str, value: &str) -> bool {
    is_action_argument(name) && matches!(value, "wait" | "sleep" | "poll")
}

/// Under this name a tool that does many things is told what to do.
pub(super) fn is_action_argument(name: &str) -> bool {
    matches!(name, "action" | "command" | "type")
}

/// Whether a rank is that of a path.
pub(super) fn is_path_rank(rank: u8) -> bool {
    const PATH_RANKS: u8 = 10;
    rank < PATH_RANKS
}
