//! Finds `unstuck hook` commands in the files of agents.

use std::{env, path::Path};

use serde_json::Value;

use crate::cli::agent_programs::file_name;

/// `unstuck hook AGENT ...`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct HookCommand {
    pub program: String,
    /// The words after the agent's name.
    arguments: Vec<String>,
}

impl HookCommand {
    /// Parses a shell command line. `None`: it does not run `unstuck hook` for this agent.
    pub fn parse(line: &str, agent: &str) -> Option<Self> {
        Self::from_words(&shlex::split(line)?, agent)
    }

    fn from_words(words: &[String], agent: &str) -> Option<Self> {
        let mut starts = words.windows(3).enumerate();
        starts.find_map(|(at, start)| {
            let [program, hook, name] = start else {
                return None;
            };
            let is_own = is_own_program(Path::new(program)) && hook == "hook" && name == agent;
            is_own.then(|| Self {
                program: program.clone(),
                arguments: words[at + 3..].to_vec(),
            })
        })
    }

    /// The first in a file of our own: Copilot's hooks, a script, or a plugin.
    pub fn find_in_own_file(text: &str, agent: &str) -> Option<Self> {
        match agent {
            "copilot" => {
                let file: Value = serde_json::from_str(text).ok()?;
                let events = file.get("hooks")?.as_object()?;
                let hooks = events.values().filter_map(Value::as_array).flatten();
                let mut lines = hooks.filter_map(|hook| hook.get("bash")?.as_str());
                lines.find_map(|line| Self::parse(line, agent))
            }
            "cline" => {
                let mut lines = text.lines();
                lines.find_map(|line| Self::parse(line, agent))
            }
            _ => {
                let mut lines = text.lines();
                let line = lines.find(|line| line.starts_with("const COMMAND"))?;
                let (_, words) = line.split_once(" = ")?;
                let words = serde_json::from_str(words.trim_end_matches(';')).ok();
                Self::from_words(&words.unwrap_or_else(Vec::new), agent)
            }
        }
    }

    /// The value of a flag.
    pub fn value(&self, flag: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|word| word == flag)?;
        self.arguments.get(at + 1).map(String::as_str)
    }
}

/// Whether this path is that of the program, which may have been given another name.
fn is_own_program(path: &Path) -> bool {
    file_name(path).starts_with("unstuck") || env::current_exe().is_ok_and(|own| own == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_that_runs_the_hook_of_the_agent_is_ours() {
        let own = env::current_exe().unwrap();
        let own = shlex::try_quote(own.to_str().unwrap()).unwrap();
        for command in [
            "unstuck hook codex",
            "/usr/bin/unstuck hook codex --http https://x",
            "'/opt/my tools/unstuck' hook codex",
            "command -v unstuck >/dev/null || exit 0; exec unstuck hook codex",
            &format!("{own} hook codex"),
        ] {
            assert!(HookCommand::parse(command, "codex").is_some(), "{command}");
        }
        for command in [
            "unstuck hook claude-code",
            "unstuck sessions",
            "echo 'unstuck hook codex'",
            "get-unstuck hook codex",
            "",
            "'",
        ] {
            assert!(HookCommand::parse(command, "codex").is_none(), "{command}");
        }
    }
}
