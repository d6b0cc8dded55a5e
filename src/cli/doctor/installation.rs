//! Our hooks in the files of an agent.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    checks::{AgentProblem, problem},
    codex_trust::count_untrusted,
};
use crate::cli::{
    agent_programs::{AgentProgram, find_in_path, is_executable},
    hook::NamedTarget,
    init::{
        hook_command::HookCommand,
        hook_file::{HookFile, InstallOptions, hook_files, is_own_file},
        settings_file::{HookEntry, HookForm, SettingsFile},
    },
};

/// The hooks that were found in the files of an agent.
#[derive(Default)]
pub(super) struct Installation {
    pub files: Vec<String>,
    pub has_entries: bool,
    /// When the newest of the files was written.
    pub installed_at: Option<SystemTime>,
    pub target: InstalledTarget,
    pub problem: Option<AgentProblem>,
    /// Hooks of Codex that its user has not accepted.
    pub untrusted: usize,
}

/// The service that the first of the hooks calls.
#[derive(Default)]
pub(super) struct InstalledTarget {
    pub url: Option<String>,
    /// The variable with the token for it.
    pub token_env: Option<String>,
    /// The user's configuration.
    pub config: Option<PathBuf>,
    /// The directory of the local service's state.
    pub state: Option<PathBuf>,
    /// The agent itself calls the service, by HTTP.
    pub is_by_http: bool,
}

impl InstalledTarget {
    fn of_entry(entry: &HookEntry, agent: &str) -> Option<Self> {
        match &entry.form {
            HookForm::Http { url, token_env, .. } => Some(Self {
                url: url
                    .split_once("/v1/hooks/")
                    .map(|(base, _)| base.to_owned()),
                token_env: token_env.clone(),
                is_by_http: true,
                ..Self::default()
            }),
            HookForm::Command { command, .. } => {
                HookCommand::parse(command, agent).map(|command| Self::of_command(&command))
            }
        }
    }

    fn of_command(command: &HookCommand) -> Self {
        Self {
            url: command.value("--http").map(str::to_owned),
            token_env: command.value("--token-env").map(str::to_owned),
            config: command.value("--config").map(PathBuf::from),
            state: command.value("--state").map(PathBuf::from),
            is_by_http: false,
        }
    }

    pub fn named(&self) -> NamedTarget<'_> {
        NamedTarget {
            url: self.url.as_deref(),
            token_env: self.token_env.as_deref(),
            is_pinned: self.config.is_some(),
        }
    }
}

impl Installation {
    pub fn find(program: &'static AgentProgram) -> Self {
        let mut found = Self::default();
        for file in hook_files(program, &options_of("unstuck hook")).unwrap_or_default() {
            found.check_file(program, &file);
        }
        found
    }

    fn check_file(&mut self, program: &AgentProgram, file: &HookFile) {
        let path = file.path();
        self.files.push(path.display().to_string());
        let Ok(text) = fs::read_to_string(path) else {
            return;
        };
        let repair = format!("unstuck init --agent {}", program.agent);
        let checked = match file {
            HookFile::Own { .. } if is_own_file(path, &text) => {
                let command = HookCommand::find_in_own_file(&text, program.agent);
                self.target = command
                    .as_ref()
                    .map(InstalledTarget::of_command)
                    .unwrap_or_default();
                Some(match command {
                    Some(command) => check_program(&command.program, &repair),
                    None => Some(problem("its hooks are not those of this version", &repair)),
                })
            }
            HookFile::Own { .. } => None,
            HookFile::Settings { .. } => self.check_settings(program, path, &text, &repair),
        };
        let Some(problem) = checked else { return };
        self.has_entries = true;
        let modified = fs::metadata(path).and_then(|file| file.modified());
        self.installed_at = self.installed_at.max(modified.ok());
        self.problem = self.problem.take().or(problem);
    }

    /// The problem of a settings file. `None`: it has no hook of ours.
    fn check_settings(
        &mut self,
        program: &AgentProgram,
        path: &Path,
        text: &str,
        repair: &str,
    ) -> Option<Option<AgentProblem>> {
        let settings = match SettingsFile::parse(text, program.agent) {
            Ok(settings) => settings,
            Err(why) => {
                let problem = problem(format!("its settings cannot be read: {why}"), repair);
                return text.contains("unstuck").then_some(Some(problem));
            }
        };
        let entries = settings.entries();
        if entries.is_empty() {
            return None;
        }
        if program.agent == "codex" {
            self.untrusted = count_untrusted(path, &settings.placed_entries());
        }
        let mut targets = entries
            .iter()
            .filter_map(|entry| InstalledTarget::of_entry(entry, program.agent));
        self.target = targets.next().unwrap_or_default();
        let switch = settings.disabling_switch().map(|switch| {
            let why = format!("its hooks are off: {switch} in its settings");
            problem(why, format!("edit {}", path.display()))
        });
        let mut programs = entries
            .iter()
            .filter_map(|it| program_of(it, program.agent));
        let missing = || programs.find_map(|it| check_program(&it, repair));
        let outdated = || {
            let is_outdated = !is_current(program, &entries);
            is_outdated.then(|| problem("its hooks are not those of this version", repair))
        };
        Some(switch.or_else(missing).or_else(outdated))
    }
}

fn options_of(program: &str) -> InstallOptions {
    InstallOptions {
        program: program.to_owned(),
        url: None,
        token_env: None,
        user_files: Vec::new(),
        host: None,
        project: false,
        light: false,
        text: false,
        unattended: false,
    }
}

fn program_of(entry: &HookEntry, agent: &str) -> Option<String> {
    match &entry.form {
        HookForm::Command { command, .. } => Some(HookCommand::parse(command, agent)?.program),
        HookForm::Http { .. } => None,
    }
}

fn check_program(program: &str, repair: &str) -> Option<AgentProblem> {
    let path = Path::new(program);
    let exists = if path.is_absolute() {
        is_executable(path)
    } else {
        find_in_path(program).is_some()
    };
    (!exists).then(|| {
        problem(
            format!("its hooks run {program}, which is not there"),
            repair,
        )
    })
}

/// Whether the hooks are for the events of this version, with or without `--light` and
/// `--text`.
fn is_current(program: &AgentProgram, entries: &[HookEntry]) -> bool {
    let events = |entries: &[HookEntry]| -> Vec<(String, Option<String>)> {
        let events = entries.iter();
        let mut events: Vec<_> = events
            .map(|it| (it.event.clone(), it.matcher.clone()))
            .collect();
        // Entries of others may be before or between them.
        events.sort();
        events
    };
    let found = events(entries);
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .any(|(light, text)| {
            let options = InstallOptions {
                light,
                text,
                ..options_of("unstuck hook")
            };
            let files = hook_files(program, &options).unwrap_or_default();
            files.iter().any(|file| match file {
                HookFile::Settings { entries, .. } => events(entries) == found,
                HookFile::Own { .. } => false,
            })
        })
}
