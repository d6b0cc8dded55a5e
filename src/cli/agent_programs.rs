//! The programs of the agents that `unstuck hook` guards: names, directories, detection.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{
    init::hook_file::{self, HookFile, InstallOptions},
    user_dirs,
};

/// The program of an agent, and the directories of its files.
#[derive(Debug)]
pub(super) struct AgentProgram {
    pub agent: &'static str,
    pub display_name: &'static str,
    /// The names of its executables and scripts.
    pub names: &'static [&'static str],
    /// The npm package of a script without such a name.
    pub package: &'static str,
    /// The variable that overrides its directory in the home directory.
    dir_variable: &'static str,
    dir: &'static str,
    sessions: SessionPlace,
    /// The files that `init` writes: in its directory, or in the working directory, which is
    /// then empty.
    pub hook_files: fn(&Path, &InstallOptions) -> Vec<HookFile>,
}

/// Where an agent keeps its sessions.
#[derive(Debug)]
enum SessionPlace {
    /// A directory in its own.
    Dir(&'static str),
    /// Files in the user's directory for data.
    DataFiles(&'static [&'static str]),
}

pub(super) const AGENT_PROGRAMS: &[AgentProgram] = &[
    AgentProgram {
        agent: "claude-code",
        display_name: "Claude Code",
        names: &["claude"],
        package: "@anthropic-ai/claude-code",
        dir_variable: "CLAUDE_CONFIG_DIR",
        dir: ".claude",
        sessions: SessionPlace::Dir("projects"),
        hook_files: hook_file::claude_code_files,
    },
    AgentProgram {
        agent: "codex",
        display_name: "Codex",
        names: &["codex"],
        package: "@openai/codex",
        dir_variable: "CODEX_HOME",
        dir: ".codex",
        sessions: SessionPlace::Dir("sessions"),
        hook_files: hook_file::codex_files,
    },
    AgentProgram {
        agent: "gemini",
        display_name: "Gemini CLI",
        names: &["gemini"],
        package: "@google/gemini-cli",
        dir_variable: "",
        dir: ".gemini",
        sessions: SessionPlace::Dir("tmp"),
        hook_files: hook_file::gemini_files,
    },
    AgentProgram {
        agent: "qwen",
        display_name: "Qwen Code",
        names: &["qwen"],
        package: "@qwen-code/qwen-code",
        dir_variable: "",
        dir: ".qwen",
        sessions: SessionPlace::Dir("projects"),
        hook_files: hook_file::qwen_files,
    },
    AgentProgram {
        agent: "copilot",
        display_name: "Copilot CLI",
        names: &["copilot"],
        package: "@github/copilot",
        dir_variable: "COPILOT_HOME",
        dir: ".copilot",
        sessions: SessionPlace::Dir("session-state"),
        hook_files: hook_file::copilot_files,
    },
    AgentProgram {
        agent: "cline",
        display_name: "Cline CLI",
        names: &["cline"],
        package: "cline",
        dir_variable: "CLINE_DIR",
        dir: ".cline",
        sessions: SessionPlace::Dir("data/sessions"),
        hook_files: hook_file::cline_files,
    },
    AgentProgram {
        agent: "opencode",
        display_name: "opencode",
        names: &["opencode"],
        package: "opencode-ai",
        dir_variable: "",
        dir: ".config/opencode",
        // Its newest events are in the write-ahead log.
        sessions: SessionPlace::DataFiles(&["opencode/opencode.db", "opencode/opencode.db-wal"]),
        hook_files: hook_file::opencode_files,
    },
    AgentProgram {
        agent: "pi",
        display_name: "pi",
        names: &["pi"],
        package: "@mariozechner/pi-coding-agent",
        dir_variable: "PI_CODING_AGENT_DIR",
        dir: ".pi/agent",
        sessions: SessionPlace::Dir("sessions"),
        hook_files: hook_file::pi_files,
    },
];

impl AgentProgram {
    pub fn find(agent: &str) -> Option<&'static Self> {
        AGENT_PROGRAMS.iter().find(|program| program.agent == agent)
    }

    /// The directory of its settings. `None`: there is no home directory.
    pub fn dir(&self) -> Option<PathBuf> {
        let named = user_dirs::absolute(self.dir_variable);
        let config = |dir: &'static str| {
            let base = user_dirs::absolute("XDG_CONFIG_HOME")?;
            Some(base.join(dir.strip_prefix(".config/")?))
        };
        named
            .or_else(|| config(self.dir))
            .or_else(|| Some(user_dirs::home()?.join(self.dir)))
    }

    /// The directories or files that change while it works.
    pub fn session_places(&self) -> Vec<PathBuf> {
        match self.sessions {
            SessionPlace::Dir(name) => self.dir().map(|dir| dir.join(name)).into_iter().collect(),
            SessionPlace::DataFiles(names) => {
                let base = user_dirs::absolute("XDG_DATA_HOME")
                    .or_else(|| Some(user_dirs::home()?.join(".local/share")));
                let paths = base
                    .into_iter()
                    .flat_map(|base| names.iter().map(move |name| base.join(name)));
                paths.collect()
            }
        }
    }

    /// Whether it is installed: its directory exists, or its program is in `PATH`.
    pub fn is_installed(&self) -> bool {
        self.dir().is_some_and(|dir| dir.is_dir())
            || self.names.iter().any(|name| find_in_path(name).is_some())
    }

    /// Whether this is the path of its program.
    pub fn is_at(&self, path: &Path) -> bool {
        let name = file_name(path);
        let stem = [".js", ".mjs", ".cjs"]
            .iter()
            .find_map(|extension| name.strip_suffix(extension));
        let in_package = format!("/node_modules/{}/", self.package);
        self.names.contains(&stem.unwrap_or(name)) || path.to_string_lossy().contains(&in_package)
    }
}

pub(super) fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// The first executable of this name in `PATH`.
pub(super) fn find_in_path(name: &str) -> Option<PathBuf> {
    let dirs = env::var_os("PATH")?;
    let mut files = env::split_paths(&dirs)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name));
    files.find(|file| is_executable(file))
}

pub(super) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
