//! The files of each agent that `init` writes, and their content.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use super::{
    hook_command::HookCommand,
    settings_file::{HookEntry, HookForm, TimeUnit},
};
use crate::cli::agent_programs::{AgentProgram, file_name};

/// The first line of a file that `init` owns, after its comment sign.
pub(in crate::cli) const OWN_FILE_MARK: &str = "Written by `unstuck init`";

/// The options of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct InstallOptions {
    /// The words before the agent's name: `/usr/bin/unstuck hook`.
    pub program: String,
    /// The address of a team's service.
    pub url: Option<String>,
    /// The variable with its token.
    pub token_env: Option<String>,
    /// The flags with the paths of the user's files, so that no variable changes them.
    pub user_files: Vec<String>,
    /// The name of this machine, for agents that call the service themselves.
    pub host: Option<String>,
    /// Write the files of a repository.
    pub project: bool,
    /// No hook before a call.
    pub light: bool,
    /// Also hooks for the agent's text while it is written.
    pub text: bool,
    /// There is no person at the terminal, so the command must be able to interrupt the agent.
    pub unattended: bool,
}

/// A file of an agent, and our part of it.
pub(in crate::cli) enum HookFile {
    /// Entries in a settings file.
    Settings {
        path: PathBuf,
        entries: Vec<HookEntry>,
        /// The file needs Gemini's switch for hooks.
        has_switch: bool,
    },
    /// A file that `init` owns.
    Own {
        path: PathBuf,
        text: String,
        mode: u32,
    },
}

impl HookFile {
    pub fn path(&self) -> &Path {
        match self {
            Self::Settings { path, .. } | Self::Own { path, .. } => path,
        }
    }
}

/// An event, and the tools for which it is wanted.
type RegisteredEvent = (&'static str, Option<&'static str>);

const CLAUDE_EVENTS: &[RegisteredEvent] = &[
    ("PreToolUse", Some("*")),
    ("PostToolBatch", Some("*")),
    ("PostToolUseFailure", Some("*")),
    // Only these say what is in the file.
    ("PostToolUse", Some("Edit|Write|NotebookEdit")),
    ("UserPromptSubmit", None),
    ("Stop", None),
    ("SubagentStop", None),
    ("PostCompact", None),
    ("SessionEnd", None),
    ("MessageDisplay", None),
];
const CODEX_EVENTS: &[RegisteredEvent] = &[
    ("PreToolUse", None),
    ("PostToolUse", None),
    ("UserPromptSubmit", None),
    ("Stop", None),
    ("PostCompact", None),
    ("SessionEnd", None),
];
const GEMINI_EVENTS: &[RegisteredEvent] = &[
    ("BeforeTool", Some("*")),
    ("AfterTool", Some("*")),
    ("BeforeAgent", None),
    ("AfterAgent", None),
    ("SessionEnd", None),
];
const QWEN_EVENTS: &[RegisteredEvent] = &[
    ("PreToolUse", Some("*")),
    ("PostToolUse", Some("*")),
    ("PostToolUseFailure", Some("*")),
    ("UserPromptSubmit", None),
    ("Stop", None),
];
const COPILOT_EVENTS: &[&str] = &[
    "userPromptSubmitted",
    "preToolUse",
    "postToolUse",
    "postToolUseFailure",
    "sessionEnd",
];
const CLINE_EVENTS: &[&str] = &[
    "PreToolUse",
    "PostToolUse",
    "TaskStart",
    "TaskComplete",
    "UserPromptSubmit",
    "PreCompact",
];
/// The agents that refuse every prompt or call while the program of a hook is gone.
const CLOSED_WITHOUT_PROGRAM: &[&str] = &["gemini", "copilot"];
/// The events before a call, which `--light` leaves out.
const PRE_EVENTS: &[&str] = &["PreToolUse", "BeforeTool", "preToolUse"];
/// The events of `--text`.
const TEXT_EVENTS: &[&str] = &["MessageDisplay"];

/// The bytes that are escaped in a label of a URL.
const LABEL_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// The timeout of a hook in agents' settings. A service that hangs delays each call by it.
pub(in crate::cli) const TIMEOUT_SECS: u64 = 2;

/// The files of an agent. `None`: there is no home directory.
pub(in crate::cli) fn hook_files(
    program: &AgentProgram,
    options: &InstallOptions,
) -> Option<Vec<HookFile>> {
    let dir = if options.project {
        PathBuf::new()
    } else {
        program.dir()?
    };
    Some((program.hook_files)(&dir, options))
}

// A function for each agent. A repository has the file at another path.

pub(in crate::cli) fn claude_code_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    let path = options.path(dir, "settings.json", ".claude/settings.json");
    let form = options.http_form("claude-code", TimeUnit::Seconds);
    vec![options.settings(path, CLAUDE_EVENTS, &form)]
}

pub(in crate::cli) fn codex_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    let path = options.path(dir, "hooks.json", ".codex/hooks.json");
    let form = options.command_form("codex", TimeUnit::Seconds);
    vec![options.settings(path, CODEX_EVENTS, &form)]
}

pub(in crate::cli) fn gemini_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    let path = options.path(dir, "settings.json", ".gemini/settings.json");
    let form = options.command_form("gemini", TimeUnit::Millis);
    vec![options.settings(path, GEMINI_EVENTS, &form)]
}

pub(in crate::cli) fn qwen_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    let path = options.path(dir, "settings.json", ".qwen/settings.json");
    // Only the command can end its run.
    let form = if options.unattended {
        options.command_form("qwen", TimeUnit::Seconds)
    } else {
        options.http_form("qwen", TimeUnit::Seconds)
    };
    vec![options.settings(path, QWEN_EVENTS, &form)]
}

pub(in crate::cli) fn copilot_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    // Copilot reads each file of the directory.
    vec![HookFile::Own {
        path: options.path(dir, "hooks/unstuck.json", ".github/hooks/unstuck.json"),
        text: copilot_file(options),
        mode: 0o644,
    }]
}

pub(in crate::cli) fn cline_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    let hooks = options.path(dir, "hooks", ".clinerules/hooks");
    let events = CLINE_EVENTS.iter().filter(|event| options.wants(event));
    let script = |event: &&str| HookFile::Own {
        path: hooks.join(event),
        text: cline_script(options, event),
        mode: 0o755,
    };
    events.map(script).collect()
}

pub(in crate::cli) fn opencode_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    vec![HookFile::Own {
        path: options.path(dir, "plugin/unstuck.js", ".opencode/plugin/unstuck.js"),
        text: plugin(include_str!("plugins/opencode.js"), options, "opencode"),
        mode: 0o644,
    }]
}

pub(in crate::cli) fn pi_files(dir: &Path, options: &InstallOptions) -> Vec<HookFile> {
    vec![HookFile::Own {
        path: options.path(dir, "extensions/unstuck.ts", ".pi/extensions/unstuck.ts"),
        text: plugin(include_str!("plugins/pi.ts"), options, "pi"),
        mode: 0o644,
    }]
}

impl InstallOptions {
    fn wants(&self, event: &str) -> bool {
        (self.text || !TEXT_EVENTS.contains(&event)) && !(self.light && PRE_EVENTS.contains(&event))
    }

    fn path(&self, dir: &Path, user: &str, project: &str) -> PathBuf {
        dir.join(if self.project { project } else { user })
    }

    /// Entries with this form for the events.
    fn settings(&self, path: PathBuf, events: &[RegisteredEvent], form: &HookForm) -> HookFile {
        let events = events.iter().filter(|(event, _)| self.wants(event));
        let entry = |(event, matcher): &RegisteredEvent| HookEntry {
            event: (*event).to_owned(),
            matcher: matcher.map(str::to_owned),
            form: form.clone(),
        };
        HookFile::Settings {
            path,
            entries: events.map(entry).collect(),
            has_switch: form.has_name(),
        }
    }

    /// For agents that can call a team's service themselves.
    fn http_form(&self, agent: &str, unit: TimeUnit) -> HookForm {
        let Some(url) = &self.url else {
            return self.command_form(agent, unit);
        };
        // Nothing on this machine adds the label to the payload.
        let label = self.host.as_deref().map_or_else(String::new, |host| {
            let host = utf8_percent_encode(host, LABEL_ESCAPES);
            format!("?label.host={host}")
        });
        let base = url.trim_end_matches('/');
        HookForm::Http {
            url: format!("{base}/v1/hooks/{agent}{label}"),
            token_env: self.token_env.clone(),
            timeout: unit.of_secs(TIMEOUT_SECS),
        }
    }

    fn command_form(&self, agent: &str, unit: TimeUnit) -> HookForm {
        HookForm::Command {
            command: self.command(agent, None),
            timeout: unit.of_secs(TIMEOUT_SECS),
            // Gemini names its hooks.
            has_name: agent == "gemini",
        }
    }

    /// The words after the program's.
    fn arguments(&self, agent: &str) -> Vec<String> {
        let mut words = vec![agent.to_owned()];
        for (flag, value) in [("--http", &self.url), ("--token-env", &self.token_env)] {
            if let Some(value) = value {
                words.extend([flag.to_owned(), value.clone()]);
            }
        }
        words.extend(self.user_files.iter().cloned());
        words
    }

    /// A line for a shell.
    fn command(&self, agent: &str, event: Option<&str>) -> String {
        let mut words = self.arguments(agent);
        if let Some(event) = event {
            words.extend(["--event".to_owned(), event.to_owned()]);
        }
        let arguments: Vec<_> = words.iter().map(|word| quote(word)).collect();
        let line = format!("{} {}", self.program, arguments.join(" "));
        // A user of the repository may not have the program, and anybody may delete it.
        if self.project || CLOSED_WITHOUT_PROGRAM.contains(&agent) {
            let program = self.program.strip_suffix(" hook").unwrap_or(&self.program);
            return format!("command -v {program} >/dev/null || exit 0; exec {line}");
        }
        line
    }
}

/// A word for a shell. Only a NUL byte cannot be quoted, which no argument has.
pub(in crate::cli) fn quote(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), |quoted| quoted.into_owned())
}

fn copilot_file(options: &InstallOptions) -> String {
    let events = COPILOT_EVENTS.iter().filter(|event| options.wants(event));
    let hooks: serde_json::Map<_, _> = events
        .map(|event| {
            let hook = json!({
                "type": "command",
                "bash": options.command("copilot", Some(event)),
                "timeoutSec": TIMEOUT_SECS,
            });
            ((*event).to_owned(), json!([hook]))
        })
        .collect();
    let file = json!({"version": 1, "hooks": hooks});
    format!("{file:#}\n")
}

fn cline_script(options: &InstallOptions, event: &str) -> String {
    let command = options.command("cline", Some(event));
    let exec = if options.project { "" } else { "exec " };
    format!("#!/bin/sh\n# {OWN_FILE_MARK}; `unstuck init --remove` deletes it.\n{exec}{command}\n")
}

/// The program is called without a shell.
fn plugin(template: &str, options: &InstallOptions, agent: &str) -> String {
    let mut words = shlex::split(&options.program).unwrap_or_default();
    words.extend(options.arguments(agent));
    template.replace("__COMMAND__", &json!(words).to_string())
}

/// Whether `init` has written the file with this text.
pub(in crate::cli) fn is_own_file(path: &Path, text: &str) -> bool {
    let is_copilots = file_name(path) == "unstuck.json"
        && HookCommand::find_in_own_file(text, "copilot").is_some();
    let first_lines = text.lines().take(2);
    is_copilots
        || first_lines
            .into_iter()
            .any(|line| line.contains(OWN_FILE_MARK))
}
