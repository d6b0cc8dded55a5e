//! What a tool's name says: its class in a table of the common agents' tools, or a guess
//! from its words.
//!
//! Names are few and reading one word by word is expensive, so the result is packed into a
//! number and cached by `facts`.

use super::ToolClass;

/// What a tool's name says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolTraits {
    /// The class in the built-in table; `None`: a shell.
    pub class: Option<ToolClass>,
    /// The guessed class of a tool in no table: without a path, and with one.
    pub guessed_class: [ToolClass; 2],
    /// The tool reads and writes under one name; its arguments say which.
    pub is_editor: bool,
    pub is_read_only: bool,
    /// The tool acts on something and answers with a receipt.
    pub is_action: bool,
    pub runs_sql: bool,
    /// The tool rewrites the agent's own plan or todo list.
    pub is_plan: bool,
    /// The tool runs something and answers with its output.
    pub is_run: bool,
    /// The tool changes something when it succeeds.
    pub is_change: bool,
    /// The tool moves to another branch, cluster or database.
    pub moves_world: bool,
    /// The tool gives a task to another agent and answers with its report.
    pub is_delegation: bool,
    pub is_search: bool,
}

/// The number of bits of a packed class. A shell has all of them set.
const CLASS_BITS: u32 = 4;
const NO_CLASS: u64 = (1 << CLASS_BITS) - 1;

impl ToolTraits {
    pub fn from_name(tool: &str) -> Self {
        Self {
            class: classify_built_in(tool),
            guessed_class: [false, true].map(|has_path| guess_class(tool, has_path)),
            is_editor: is_editor(tool),
            is_read_only: has_word_of(tool, READ_ONLY_VERBS),
            is_action: has_word_of(tool, ACTION_VERBS) && !is_handoff(tool),
            runs_sql: has_word_of(tool, SQL_WORDS),
            is_plan: is_plan(tool),
            is_run: has_word_of(tool, RUN_VERBS),
            is_change: has_word_of(tool, CHANGE_VERBS)
                && !has_word_of(tool, READ_ONLY_VERBS)
                && !is_handoff(tool),
            moves_world: has_word_of(tool, MOVE_VERBS),
            is_delegation: is_delegation(tool),
            is_search: has_word_of(tool, &["search"]),
        }
    }

    pub fn pack(self) -> u64 {
        let classes = [
            self.class,
            Some(self.guessed_class[0]),
            Some(self.guessed_class[1]),
        ];
        let mut copy = self;
        let flags = copy.flags_mut();
        let flag_bits = flags
            .iter()
            .fold(0, |bits, flag| bits << 1 | u64::from(**flag));
        classes.iter().fold(flag_bits, |bits, class| {
            bits << CLASS_BITS | class.map_or(NO_CLASS, |class| class as u64)
        })
    }

    pub fn unpack(bits: u64) -> Self {
        let class = |index: u32| {
            let number = bits >> (index * CLASS_BITS) & NO_CLASS;
            ToolClass::ALL.get(number as usize).copied()
        };
        let class_or_other = |index| class(index).unwrap_or_default();
        let mut traits = Self {
            class: class(2),
            guessed_class: [class_or_other(1), class_or_other(0)],
            ..Self::default()
        };
        for (index, flag) in traits.flags_mut().into_iter().rev().enumerate() {
            *flag = bits >> (3 * CLASS_BITS as usize + index) & 1 != 0;
        }
        traits
    }

    /// The flags in the order of their bits, highest first.
    fn flags_mut(&mut self) -> [&mut bool; 10] {
        [
            &mut self.is_editor,
            &mut self.is_read_only,
            &mut self.is_action,
            &mut self.runs_sql,
            &mut self.is_run,
            &mut self.is_change,
            &mut self.moves_world,
            &mut self.is_plan,
            &mut self.is_delegation,
            &mut self.is_search,
        ]
    }
}

/// The tools of Claude Code, Codex, Gemini CLI, OpenHands, SWE-agent, Cline,
/// opencode, Goose and LangChain, by class.
#[rustfmt::skip]
const BUILT_IN_CLASSES: &[(ToolClass, &[&str])] = &[
    (ToolClass::Read, &[
        "read", "read_file", "readfile", "view", "view_file", "open", "open_file", "cat",
        "notebookread", "read_many_files", "webfetch", "web_fetch", "fetch", "visit_page", "read_text_file", "get_file_contents",
        "view_image", "goto", "scroll_up", "scroll_down", "read_notebook", "file_read", "read_files",
    ]),
    (ToolClass::Write, &[
        "write", "write_file", "writefile", "write_to_file", "create", "create_file", "new_file",
        "save_file", "notebookwrite", "file_write", "move_file", "copy_file", "file_delete",
        "delete_file", "rename_file",
    ]),
    (ToolClass::Edit, &[
        "edit", "edit_file", "multiedit", "multi_edit", "replace", "replace_in_file",
        "str_replace", "apply_patch", "apply_diff", "patch", "insert", "notebookedit",
        "insert_content", "search_and_replace", "undo_edit", "file_edit", "todowrite", "editor",
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
        "wait_agent", "command_status", "wait_for_previous_tools", "read_bash",
    ]),
];

/// Tools that run a command line.
#[rustfmt::skip]
const SHELL_TOOLS: &[&str] = &[
    "bash", "shell", "exec", "exec_command", "execute_command", "run_command",
    "run_shell_command", "local_shell", "terminal", "execute_bash", "run", "sh", "cmd",
    "developer__shell", "run_terminal_cmd", "unified_exec", "powershell", "execute",
    "shell_command", "execute_shell_command", "run_in_terminal", "run_commands",
];

/// The class of a tool by the built-in table; `None`: it is a shell. Editors that read and
/// write under one name (`str_replace_editor`, `text_editor`) are classified by their
/// arguments instead.
fn classify_built_in(tool: &str) -> Option<ToolClass> {
    // `fs.edit` and `functions.bash` are known by their last part.
    let local = strip_namespace(tool);
    let name = local.rsplit(['.', '/', ':']).next().unwrap_or(local);
    let is_name = |known: &&str| known.eq_ignore_ascii_case(name);
    if SHELL_TOOLS.iter().any(&is_name) {
        return None;
    }
    let class = BUILT_IN_CLASSES
        .iter()
        .find(|(_, names)| names.iter().any(&is_name));
    Some(class.map_or(ToolClass::Other, |(class, _)| *class))
}

/// `mcp__files__read_file` is known by the part after the last `__`.
fn strip_namespace(tool: &str) -> &str {
    tool.rsplit("__").next().unwrap_or(tool)
}

/// The words of a name in snake or camel case.
fn split_name_words(name: &str) -> impl Iterator<Item = &str> {
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

/// The class of a tool in no table, by the words of its name and whether it is given a
/// path.
fn guess_class(tool: &str, has_path: bool) -> ToolClass {
    #[rustfmt::skip]
    const VERBS: &[(ToolClass, bool, &[&str])] = &[
        (ToolClass::Poll, false, &["wait", "sleep", "poll"]),
        (ToolClass::Edit, true, &["edit", "replace", "patch", "insert", "modify", "update", "append"]),
        (ToolClass::Write, true, &["write", "create", "save", "overwrite"]),
        (ToolClass::Read, true, &["read", "view", "cat"]),
    ];
    if shows_running(tool) {
        return ToolClass::Poll;
    }
    let mut candidates = VERBS
        .iter()
        .filter(|(_, needs_path, _)| has_path || !needs_path);
    candidates
        .find(|(_, _, verbs)| has_word_of(tool, verbs))
        .map_or(ToolClass::Other, |(class, ..)| *class)
}

/// Whether a tool shows what a running process has printed: `get_terminal_output`.
fn shows_running(tool: &str) -> bool {
    const PROCESSES: &[&str] = &[
        "terminal",
        "shell",
        "bash",
        "process",
        "task",
        "job",
        "background",
    ];
    let mut before = "";
    let mut last = "";
    for word in split_name_words(tool) {
        (before, last) = (last, word);
    }
    let is_process = PROCESSES
        .iter()
        .any(|known| known.eq_ignore_ascii_case(before));
    is_process && last.eq_ignore_ascii_case("output")
}

/// Whether the words of a name include one of `words`.
fn has_word_of(tool: &str, words: &[&str]) -> bool {
    split_name_words(tool).any(|part| words.iter().any(|word| word.eq_ignore_ascii_case(part)))
}

/// Words in the names of tools that only read.
#[rustfmt::skip]
const READ_ONLY_VERBS: &[&str] = &[
    "get", "find", "read", "list", "view", "show", "look", "lookup", "extract", "snapshot",
    "screenshot", "observe", "describe", "inspect", "query", "search", "fetch", "check",
    "validate", "verify", "scan", "analyze", "analyse", "audit", "detect", "count", "compare",
    "ping",
];

/// Words in the names of tools that act on something and answer with a receipt.
#[rustfmt::skip]
const ACTION_VERBS: &[&str] = &[
    "send", "post", "create", "add", "update", "set", "delete", "remove", "save", "submit", "close",
    "assign", "click", "type", "fill", "press", "key", "drag", "select", "think", "plan", "memory",
    "log", "notify", "reply", "email", "message", "book", "cancel", "approve", "upload", "computer",
    "transition", "move", "archive", "schedule", "register", "mark", "label", "tag", "merge",
    "start", "stop", "restart", "enable", "disable", "rename", "invite", "share", "publish",
    "refund", "transfer", "tap", "swipe",
];

/// Words in the names of tools that run something and answer with its output.
const RUN_VERBS: &[&str] = &[
    "run", "execute", "exec", "test", "tests", "build", "compile", "eval",
];

/// Words in the names of tools that change something.
#[rustfmt::skip]
const CHANGE_VERBS: &[&str] = &[
    "create", "add", "update", "set", "delete", "remove", "save", "insert", "replace", "rename",
    "edit", "write", "modify", "patch", "append", "upsert", "put", "apply", "move", "archive",
    "assign", "label", "tag", "mark", "submit", "approve", "upload", "merge", "enable", "disable",
    "book", "cancel", "refund", "transfer", "generate", "format", "fix", "install", "send", "post",
    "reply", "publish", "schedule", "register", "execute", "restart", "deploy", "import", "commit",
    "close", "reset", "claim", "resolve", "refactor", "rewrite", "change", "clear", "drop", "alter",
    "copy", "migrate", "download", "convert", "configure", "toggle", "paste", "rotate", "resize",
    "align", "push", "sync", "invite", "share", "transition",
];

/// Whether an argument that selects what a tool does selects a change: `update`, `POST`,
/// `create_issue`.
pub fn selects_change(value: &str) -> bool {
    const VALUE_BYTES_MAX: usize = 32;
    value.len() <= VALUE_BYTES_MAX
        && first_word(value).is_some_and(|word| {
            CHANGE_VERBS
                .iter()
                .any(|verb| verb.eq_ignore_ascii_case(word))
        })
}

/// The first word of a name; `POST` is one word.
fn first_word(name: &str) -> Option<&str> {
    let part = name.split(|c: char| !c.is_alphanumeric()).next()?;
    if part.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Some(part);
    }
    split_name_words(part).next()
}

/// Words in the names of tools that move to another state of the world.
const MOVE_VERBS: &[&str] = &["checkout", "switch", "bisect", "activate", "use", "connect"];

/// Words in the names of tools that run SQL.
const SQL_WORDS: &[&str] = &[
    "sql", "query", "db", "database", "postgres", "mysql", "sqlite", "execute",
];

/// Whether a tool rewrites the agent's plan or todo list as a whole. A tool that changes one
/// task (`TaskUpdate`) does not.
fn is_plan(tool: &str) -> bool {
    const PLAN_TOOLS: &[&str] = &[
        "update_plan",
        "write_plan",
        "set_plan",
        "task_tracker",
        "todowrite",
    ];
    let name = strip_namespace(tool);
    PLAN_TOOLS
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
        || (has_word_of(name, &["todo", "todos"])
            && has_word_of(name, &["write", "update", "manage", "set", "list"])
            && !has_word_of(name, &["read", "get"]))
}

/// Whether a tool gives a task to another agent: `Task`, `spawn_agent`, `delegate`.
fn is_delegation(tool: &str) -> bool {
    /// Words of tools that manage an agent at work.
    const MANAGES: &[&str] = &[
        "wait", "close", "stop", "kill", "cancel", "resume", "list", "get",
    ];
    let name = strip_namespace(tool);
    let last = split_name_words(name).last().unwrap_or_default();
    let names_task = ["task", "new_task"]
        .iter()
        .any(|task| name.eq_ignore_ascii_case(task));
    let names_agent = ["agent", "subagent"]
        .iter()
        .any(|agent| last.eq_ignore_ascii_case(agent));
    (names_task || names_agent || is_handoff(name) || has_word_of(name, &["delegate", "handoff"]))
        && !has_word_of(name, MANAGES)
}

/// Whether a tool gives the conversation to another agent, which changes nothing:
/// `transfer_to_sales`.
fn is_handoff(tool: &str) -> bool {
    const PREFIXES: &[&str] = &["transfer_to_", "transfer_back_to_"];
    let name = strip_namespace(tool);
    PREFIXES.iter().any(|prefix| {
        let start = name.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    })
}

/// Whether a tool is an editor whose `command` argument says what it does.
fn is_editor(tool: &str) -> bool {
    const EDITORS: &[&str] = &[
        "str_replace_editor",
        "text_editor",
        "str_replace_based_edit_tool",
        "file_editor",
    ];
    let name = strip_namespace(tool);
    EDITORS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// The class of an editor's `command` argument.
pub fn classify_editor_command(command: &str) -> ToolClass {
    match command {
        "view" | "read" => ToolClass::Read,
        "create" | "write" => ToolClass::Write,
        _ => ToolClass::Edit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_and_unpacking_gives_the_same_traits() {
        for tool in [
            "bash",
            "read_file",
            "mcp__fs__Edit",
            "str_replace_editor",
            "execute_sql",
            "send_email",
            "getWeather",
            "wait_for_job",
            "update_plan",
            "switch_branch",
            "replace_symbol_body",
            "run_tests",
            "spawn_agent",
            "tavily_search",
            "",
        ] {
            let traits = ToolTraits::from_name(tool);
            assert_eq!(ToolTraits::unpack(traits.pack()), traits, "{tool}");
        }
        assert_eq!(ToolTraits::from_name("bash").class, None);
        assert!(ToolTraits::from_name("execute_sql").runs_sql);
        assert!(!ToolTraits::from_name("send_email").runs_sql);
        assert!(ToolTraits::from_name("send_email").is_action);
    }

    #[test]
    fn the_output_of_a_running_process_is_polled() {
        for tool in [
            "get_terminal_output",
            "getShellOutput",
            "mcp__x__process_output",
        ] {
            let guessed = ToolTraits::from_name(tool).guessed_class;
            assert_eq!(guessed, [ToolClass::Poll; 2], "{tool}");
        }
        let formats = ToolTraits::from_name("format_output").guessed_class;
        assert_eq!(formats, [ToolClass::Other; 2]);
    }

    #[test]
    fn an_argument_may_select_a_change() {
        for value in ["create", "POST", "updateCell", "delete_row", "set_value"] {
            assert!(selects_change(value), "{value}");
        }
        for value in ["get", "GET", "list", "search", "address", "settings", ""] {
            assert!(!selects_change(value), "{value}");
        }
    }

    #[test]
    fn a_plan_is_rewritten_as_a_whole() {
        for tool in [
            "TodoWrite",
            "write_todos",
            "update_plan",
            "update_todo",
            "mcp__x__task_tracker",
        ] {
            assert!(ToolTraits::from_name(tool).is_plan, "{tool}");
        }
        for tool in [
            "TaskUpdate",
            "todo_read",
            "plan_trip",
            "get_plan",
            "update_subscription_plan",
        ] {
            assert!(!ToolTraits::from_name(tool).is_plan, "{tool}");
        }
    }

    #[test]
    fn a_delegation_gives_a_task_to_an_agent() {
        for tool in [
            "Task",
            "spawn_agent",
            "search_agent",
            "mcp__x__delegate",
            "dispatchAgent",
        ] {
            assert!(ToolTraits::from_name(tool).is_delegation, "{tool}");
        }
        for tool in [
            "wait_agent",
            "close_agent",
            "TaskOutput",
            "agents_list",
            "create_task",
        ] {
            assert!(!ToolTraits::from_name(tool).is_delegation, "{tool}");
        }
    }
}
