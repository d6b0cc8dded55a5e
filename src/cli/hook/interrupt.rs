//! Sends SIGINT to the agent that runs the hook, for agents whose run no reply ends.
//!
//! The agent is the nearest ancestor of this process that runs the agent's program. A process
//! id may be reused, so the signal goes to a pidfd, and the process is checked again after the
//! pidfd was opened.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::HookFailure;
use crate::{
    cli::{
        agent_programs::{AgentProgram, file_name},
        local_service::{LocalDirs, create_private_dir},
    },
    domain::clock,
};

/// The most ancestors that are searched: hooks run below one or two shells, or a wrapper.
const LEVELS_MAX: usize = 8;
/// The files that mark interruptions are removed after this time.
const MARK_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Programs whose first argument is the program that they run.
const INTERPRETERS: &[&str] = &["node", "nodejs", "bun", "deno", "MainThread"];

/// An agent that is to be interrupted.
pub(super) struct Interruption {
    marks: PathBuf,
    agent: String,
    session: String,
}

impl Interruption {
    pub fn new(dirs: &LocalDirs, agent: &str, session: &str) -> Self {
        Self {
            marks: dirs.state.join("hooks/interrupted"),
            agent: agent.to_owned(),
            session: session.to_owned(),
        }
    }

    /// Sends SIGINT, once per process and session: a second one would end a program that waits
    /// for its user.
    pub fn send(&self) -> Result<(), HookFailure> {
        let failed = |why: &dyn ToString| HookFailure::NotInterrupted(why.to_string());
        let processes = ProcessTable(Path::new("/proc"));
        let own = std::process::id();
        let found = processes.find_agent(own, &self.agent);
        let found = found.ok_or_else(|| failed(&"no ancestor of the hook is the agent"))?;
        let pid = i32::try_from(found.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed(&"a process id is invalid"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(&error))?;
        // The pidfd is that of the process that was found, not of a later one with its id.
        if processes.find_agent(own, &self.agent) != Some(found) {
            return Err(failed(&"the agent has ended"));
        }
        if !self.mark(&found).map_err(|error| failed(&error))? {
            return Ok(());
        }
        pidfd_send_signal(&pidfd, Signal::INT).map_err(|error| failed(&error))
    }

    /// `false`: it was interrupted before.
    fn mark(&self, process: &AgentProcess) -> io::Result<bool> {
        create_private_dir(&self.marks)?;
        self.remove_old_marks()?;
        let AgentProcess { pid, started_at } = process;
        let key = format!("{} {} {pid} {started_at}", self.agent, self.session);
        let name = blake3::hash(key.as_bytes()).to_hex();
        let mut options = OpenOptions::new();
        let created = options.write(true).create_new(true).mode(0o600);
        match created.open(self.marks.join(&name[..32])) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn remove_old_marks(&self) -> io::Result<()> {
        let now = clock::now();
        for mark in fs::read_dir(&self.marks)? {
            let mark = mark?;
            let modified = mark.metadata().and_then(|mark| mark.modified());
            let age = modified.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > MARK_AGE_MAX) {
                let _ = fs::remove_file(mark.path());
            }
        }
        Ok(())
    }
}

/// A process, identified by its id and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AgentProcess {
    pid: u32,
    /// In clock ticks since the machine started.
    started_at: u64,
}

/// The processes of this machine, by the files of `/proc`.
struct ProcessTable<'a>(&'a Path);

/// The fields of `/proc/PID/stat`.
#[derive(Clone, Copy)]
struct ProcessStat {
    parent: u32,
    started_at: u64,
}

impl ProcessTable<'_> {
    /// The nearest ancestor of the same user that runs the agent's program.
    fn find_agent(&self, pid: u32, agent: &str) -> Option<AgentProcess> {
        let program = AgentProgram::find(agent)?;
        let user = self.user_of(pid)?;
        let mut child = self.stat(pid)?;
        for _ in 0..LEVELS_MAX {
            let pid = child.parent;
            let stat = self.stat(pid)?;
            // A parent is older than its child, or its id is used again.
            if pid <= 1 || stat.started_at > child.started_at || self.user_of(pid)? != user {
                return None;
            }
            if self.is_running(pid, program) {
                let started_at = stat.started_at;
                return Some(AgentProcess { pid, started_at });
            }
            child = stat;
        }
        None
    }

    fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.0.join(pid.to_string()).join(file)
    }

    /// The effective user.
    fn user_of(&self, pid: u32) -> Option<u32> {
        let text = fs::read_to_string(self.path(pid, "status")).ok()?;
        let users = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        users.split_whitespace().nth(1)?.parse().ok()
    }

    /// The second field is the program's name in parentheses, which may hold spaces and
    /// parentheses.
    fn stat(&self, pid: u32) -> Option<ProcessStat> {
        let text = fs::read_to_string(self.path(pid, "stat")).ok()?;
        let (_, fields) = text.rsplit_once(')')?;
        let field = |number: usize| fields.split_whitespace().nth(number - 3);
        Some(ProcessStat {
            parent: field(4)?.parse().ok()?,
            started_at: field(22)?.parse().ok()?,
        })
    }

    fn is_running(&self, pid: u32, program: &AgentProgram) -> bool {
        let executable = fs::read_link(self.path(pid, "exe")).unwrap_or_default();
        let line = fs::read(self.path(pid, "cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let mut arguments = line.split('\0').filter(|argument| !argument.is_empty());
        // A program may have given itself a title.
        let first = arguments.next().unwrap_or_default();
        if program.is_at(&executable) || program.is_at(Path::new(first)) {
            return true;
        }
        let runs_script = [&executable, Path::new(first)]
            .iter()
            .any(|path| INTERPRETERS.contains(&file_name(path)));
        let script = arguments.find(|argument| !argument.starts_with('-'));
        runs_script && script.is_some_and(|script| program.is_at(Path::new(script)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/proc` with these processes.
    struct FakeTable(tempfile::TempDir);

    impl FakeTable {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn add(&self, pid: u32, parent: u32, started_at: u64, executable: &str, line: &[&str]) {
            let dir = self.0.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            let fields = vec!["0"; 17].join(" ");
            let stat = format!("{pid} (a (b) c) S {parent} {fields} {started_at} 0 0\n");
            fs::write(dir.join("stat"), stat).unwrap();
            fs::write(dir.join("cmdline"), line.join("\0")).unwrap();
            self.set_user(pid, 1000);
            symlink(executable, dir.join("exe")).unwrap();
        }

        fn set_user(&self, pid: u32, user: u32) {
            let status = format!("Name:\ta\nUid:\t0\t{user}\t{user}\t{user}\nGid:\t0\n");
            let path = self.0.path().join(pid.to_string()).join("status");
            fs::write(path, status).unwrap();
        }

        /// The ancestor of process 100 that is this agent.
        fn find(&self, agent: &str) -> Option<u32> {
            let found = ProcessTable(self.0.path()).find_agent(100, agent);
            found.map(|process| process.pid)
        }
    }

    const HOOK: (&str, &[&str]) = ("/usr/bin/unstuck", &["unstuck", "hook", "codex"]);
    const SHELL: (&str, &[&str]) = ("/bin/dash", &["sh", "-c", "unstuck hook codex"]);

    #[test]
    fn the_nearest_ancestor_that_runs_the_program_is_found() {
        let table = FakeTable::new();
        table.add(100, 90, 50, HOOK.0, HOOK.1);
        table.add(90, 80, 40, SHELL.0, SHELL.1);
        table.add(80, 70, 30, "/opt/codex/bin/codex", &["codex", "exec"]);
        table.add(
            70,
            60,
            20,
            "/usr/bin/node",
            &["node", "/usr/bin/codex", "exec"],
        );
        table.add(
            60,
            1,
            10,
            "/usr/bin/node",
            &["node", "--title", "/x/qwen.js"],
        );
        assert_eq!(table.find("codex"), Some(80));
        assert_eq!(table.find("qwen"), Some(60));
        assert_eq!(table.find("gemini"), None);
        assert_eq!(table.find("no-agent"), None);
    }

    #[test]
    fn an_ancestor_of_another_user_is_not_interrupted_nor_one_above_it() {
        let table = FakeTable::new();
        table.add(100, 90, 50, "/usr/bin/unstuck", &["unstuck"]);
        table.add(90, 80, 40, SHELL.0, SHELL.1);
        table.add(80, 1, 30, "/opt/codex/bin/codex", &["codex"]);
        assert_eq!(table.find("codex"), Some(80));
        for other in [80, 90] {
            table.set_user(other, 1001);
            assert_eq!(table.find("codex"), None);
            table.set_user(other, 1000);
        }
    }

    #[test]
    fn a_program_that_only_names_the_agent_is_not_the_agent() {
        let table = FakeTable::new();
        table.add(100, 90, 50, HOOK.0, HOOK.1);
        table.add(90, 80, 40, "/usr/bin/vim", &["vim", "/home/kim/codex"]);
        table.add(80, 70, 30, "/usr/bin/node", &["node", "build.js", "codex"]);
        table.add(70, 60, 20, "/usr/bin/bash", &["bash", "codex"]);
        table.add(60, 1, 10, "/usr/bin/codex-notes", &["codex-notes"]);
        assert_eq!(table.find("codex"), None);
    }

    #[test]
    fn a_script_of_the_agents_package_is_the_agent() {
        let table = FakeTable::new();
        let script = "/usr/lib/node_modules/@anthropic-ai/claude-code/cli.js";
        table.add(100, 90, 50, "/usr/bin/unstuck", &["unstuck"]);
        table.add(90, 1, 40, "/usr/bin/node", &["node", script, "-p", "x"]);
        assert_eq!(table.find("claude-code"), Some(90));
    }

    #[test]
    fn an_ancestor_is_at_most_8_levels_away() {
        for (levels, expected) in [(7, Some(90)), (8, None)] {
            let table = FakeTable::new();
            table.add(100, 101, 500, "/usr/bin/unstuck", &["unstuck"]);
            for level in 0..levels {
                let parent = if level + 1 == levels { 90 } else { 102 + level };
                table.add(101 + level, parent, 400, SHELL.0, SHELL.1);
            }
            table.add(90, 1, 10, "/usr/bin/codex", &["codex"]);
            assert_eq!(table.find("codex"), expected, "{levels}");
        }
    }

    #[test]
    fn a_process_that_is_younger_than_its_child_has_the_id_of_another() {
        let table = FakeTable::new();
        table.add(100, 90, 50, "/usr/bin/unstuck", &["unstuck"]);
        table.add(90, 1, 51, "/usr/bin/codex", &["codex"]);
        assert_eq!(table.find("codex"), None);
    }

    #[test]
    fn a_process_is_marked_once_for_a_session() {
        let home = tempfile::tempdir().unwrap();
        let dirs = LocalDirs {
            state: home.path().to_owned(),
            sockets: home.path().to_owned(),
        };
        let process = AgentProcess {
            pid: 7,
            started_at: 1,
        };
        let of = |session: &str| Interruption::new(&dirs, "codex", session);
        assert!(of("a").mark(&process).unwrap());
        assert!(!of("a").mark(&process).unwrap());
        assert!(of("b").mark(&process).unwrap());
        let later = AgentProcess {
            started_at: 2,
            ..process
        };
        assert!(of("a").mark(&later).unwrap());
    }
}
