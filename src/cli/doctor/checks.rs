//! The checks of one agent.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    cli::{
        agent_programs::{AgentProgram, find_in_path, is_executable},
        block_on,
        hook::{HookFailure, HookSettings, HookTarget, journal::Journal, post},
        init::{
            hook_file::{HookFile, InstallOptions, hook_files, is_own_file},
            settings_file::{HookEntry, HookForm, SettingsFile},
        },
        local_service::LocalDirs,
    },
    hooks::PROBE_EVENT,
};

/// A service that was just started opens its store first.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longer than any hook may take.
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);
/// An agent writes its sessions after its hooks have run.
const SILENCE_MIN: Duration = Duration::from_secs(120);
/// Files of sessions that are looked at.
const SESSION_FILES_MAX: usize = 20_000;

/// Whether an agent is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Health {
    Guarded,
    /// It has our hooks, and they are not heard or not answered.
    Silent,
    NotGuarded,
}

/// What was found out about an agent.
#[derive(Debug, Serialize)]
pub(super) struct AgentReport {
    pub agent: &'static str,
    #[serde(skip)]
    pub display_name: &'static str,
    pub health: Health,
    /// The files with our hooks, or where they would be.
    pub files: Vec<String>,
    /// Milliseconds until a synthetic payload was answered.
    pub answer_ms: Option<u64>,
    /// When its last event was heard.
    pub last_heard: Option<String>,
    /// Hooks without an answer since the last answer.
    pub unanswered: u64,
    pub problem: Option<String>,
    /// The command that repairs it.
    pub repair: Option<String>,
}

/// A problem, and the command that repairs it.
struct AgentProblem {
    problem: String,
    repair: String,
}

fn problem(problem: impl Into<String>, repair: impl Into<String>) -> AgentProblem {
    AgentProblem {
        problem: problem.into(),
        repair: repair.into(),
    }
}

/// The service, as hooks reach it.
pub(super) struct Probe {
    dirs: Option<LocalDirs>,
    settings: Result<HookSettings, HookFailure>,
    file: Option<std::path::PathBuf>,
}

impl Probe {
    pub fn new(file: Option<&Path>) -> Self {
        Self {
            dirs: LocalDirs::find(),
            settings: HookSettings::load(file),
            file: file.map(Path::to_owned),
        }
    }

    pub fn check(&self, program: &'static AgentProgram) -> AgentReport {
        let installed = Installation::find(program);
        let journal = self.dirs.as_ref();
        let entry = journal.map(|dirs| Journal::new(dirs, program.agent).read());
        let entry = entry.unwrap_or_default();
        let mut report = AgentReport {
            agent: program.agent,
            display_name: program.display_name,
            health: Health::NotGuarded,
            files: installed.files.clone(),
            answer_ms: None,
            last_heard: format_time(entry.heard_at),
            unanswered: entry.failures,
            problem: None,
            repair: None,
        };
        if !installed.has_entries {
            let repair = format!("unstuck init --agent {}", program.agent);
            report.problem = Some("it has no hooks of unstuck".to_owned());
            report.repair = Some(repair);
            return report;
        }
        // The first that is wrong, from the agent's side to the service's.
        let answered = self.ask(program.agent, installed.url.as_deref());
        report.answer_ms = answered.as_ref().ok().copied();
        let problem = installed
            .problem
            .or_else(|| answered.err())
            .or_else(|| unheard(program, entry.heard_at, installed.installed_at))
            .or_else(|| {
                let is_failing = entry.failures > 0 && entry.answered_at > 0;
                is_failing.then(|| {
                    let why = format!("unanswered hooks: {}; {}", entry.failures, entry.failure);
                    problem(why, "unstuck serve --local")
                })
            });
        report.health = match &problem {
            Some(_) => Health::Silent,
            None => Health::Guarded,
        };
        if let Some(AgentProblem { problem, repair }) = problem {
            report.problem = Some(problem);
            report.repair = Some(repair);
        } else if entry.heard_at == 0 {
            report.problem = Some(match program.agent {
                "codex" => "not heard yet; in Codex, /hooks trusts them".to_owned(),
                _ => "not heard yet".to_owned(),
            });
        }
        report
    }

    /// The milliseconds until a synthetic payload is answered.
    fn ask(&self, agent: &str, url: Option<&str>) -> Result<u64, AgentProblem> {
        let settings = self
            .settings
            .as_ref()
            .map_err(|error| problem(error.to_string(), "unstuck config check"))?;
        if !settings.enabled {
            return Err(problem("[hooks] enabled is false", "unstuck config print"));
        }
        let target = HookTarget::choose(url, None, settings, self.dirs.as_ref());
        let target = target.map_err(|error| problem(error.to_string(), "unstuck config check"))?;
        let answered = self.post(&target, agent);
        let is_absent = matches!(answered, Err(HookFailure::NoService));
        let answered = match self
            .dirs
            .as_ref()
            .filter(|_| is_absent && settings.autostart)
        {
            Some(dirs) => self.start_and_post(dirs, &target, agent),
            None => answered,
        };
        answered.map_err(|failure| {
            let repair = match (&target, &failure) {
                (HookTarget::Local(_), _) => "unstuck serve --local",
                (HookTarget::Team { .. }, HookFailure::Status(401 | 403)) => {
                    "unstuck init --http URL --token-env NAME"
                }
                (HookTarget::Team { .. }, _) => "unstuck init --http URL",
            };
            problem(failure.to_string(), repair)
        })
    }

    fn start_and_post(
        &self,
        dirs: &LocalDirs,
        target: &HookTarget,
        agent: &str,
    ) -> Result<u64, HookFailure> {
        let deadline = Instant::now() + START_TIME_MAX;
        loop {
            // Again and again: it does not start one right after another.
            let started = dirs.start(self.file.as_deref());
            started.map_err(|error| HookFailure::CannotStart(error.to_string()))?;
            match self.post(target, agent) {
                Err(HookFailure::NoService) if Instant::now() < deadline => {
                    thread::sleep(START_POLL_INTERVAL);
                }
                Err(HookFailure::NoService) => {
                    return Err(HookFailure::CannotStart(last_line(&dirs.log_file())));
                }
                answered => return answered,
            }
        }
    }

    fn post(&self, target: &HookTarget, agent: &str) -> Result<u64, HookFailure> {
        let path = format!("/v1/hooks/{agent}?event={PROBE_EVENT}");
        let asked_at = Instant::now();
        let asked = async {
            let asked = post(target, &path, b"{}".to_vec());
            let answered = tokio::time::timeout(PROBE_TIME_MAX, asked).await;
            Ok(answered.unwrap_or(Err(HookFailure::Timeout(PROBE_TIME_MAX))))
        };
        let asked = block_on(asked).map_err(|error| HookFailure::Config(error.to_string()))?;
        asked?;
        Ok(u64::try_from(asked_at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Our hooks in the files of an agent.
#[derive(Default)]
struct Installation {
    files: Vec<String>,
    has_entries: bool,
    /// The newest of the files.
    installed_at: Option<SystemTime>,
    /// The address in them.
    url: Option<String>,
    problem: Option<AgentProblem>,
}

impl Installation {
    fn find(program: &'static AgentProgram) -> Self {
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
                Some(check_program(&program_in(&text), &repair))
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

    /// `None`: there is nothing of ours in the file.
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
        self.url = entries.iter().find_map(url_of);
        let switch = settings.disabling_switch().map(|switch| {
            let why = format!("its hooks are off: {switch} in its settings");
            problem(why, format!("edit {}", path.display()))
        });
        let mut programs = entries.iter().filter_map(command_of);
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
        project: false,
        light: false,
        text: false,
        unattended: false,
    }
}

fn command_of(entry: &HookEntry) -> Option<String> {
    match &entry.form {
        HookForm::Command { command, .. } => shlex::split(command)?.into_iter().next(),
        HookForm::Http { .. } => None,
    }
}

/// The service's address in an entry.
fn url_of(entry: &HookEntry) -> Option<String> {
    match &entry.form {
        HookForm::Http { url, .. } => url
            .split_once("/v1/hooks/")
            .map(|(base, _)| base.to_owned()),
        HookForm::Command { command, .. } => {
            let words = shlex::split(command)?;
            let at = words.iter().position(|word| word == "--http")?;
            words.get(at + 1).cloned()
        }
    }
}

/// The program that a file of ours runs: the first path or name in it.
fn program_in(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || "\"',[".contains(c));
    let mut words = words.filter(|word| !word.is_empty());
    let found = words.find(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        name.starts_with("unstuck") && !word.contains('`') && !word.ends_with(".json")
    });
    found.unwrap_or("unstuck").to_owned()
}

fn check_program(program: &str, repair: &str) -> Option<AgentProblem> {
    let path = Path::new(program);
    let exists = match path.is_absolute() {
        true => is_executable(path),
        false => find_in_path(program).is_some(),
    };
    (!exists).then(|| {
        problem(
            format!("its hooks run {program}, which is not there"),
            repair,
        )
    })
}

/// Whether the events are those of this version, with or without `--light` and `--text`.
fn is_current(program: &AgentProgram, entries: &[HookEntry]) -> bool {
    let events = |entries: &[HookEntry]| -> Vec<(String, Option<String>)> {
        let events = entries.iter();
        let mut events: Vec<_> = events
            .map(|it| (it.event.clone(), it.matcher.clone()))
            .collect();
        // Those of others may stand before or between them.
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

/// Whether the agent has worked since without being heard: its sessions say so.
fn unheard(
    program: &AgentProgram,
    heard_at: u64,
    installed_at: Option<SystemTime>,
) -> Option<AgentProblem> {
    let heard_at = UNIX_EPOCH + Duration::from_millis(heard_at);
    let since = heard_at.max(installed_at?) + SILENCE_MIN;
    let mut files_left = SESSION_FILES_MAX;
    let worked_at = newest_file(&program.sessions_dir()?, &mut files_left)?;
    if worked_at <= since {
        return None;
    }
    let repair = match program.agent {
        "codex" => "codex, then /hooks, and trust those of unstuck".to_owned(),
        agent => format!("unstuck init --agent {agent}"),
    };
    Some(problem("it has worked since, and was not heard", repair))
}

/// When a file below a directory was written last.
fn newest_file(dir: &Path, files_left: &mut usize) -> Option<SystemTime> {
    let mut newest = None;
    for entry in fs::read_dir(dir).ok()? {
        *files_left = files_left.checked_sub(1)?;
        let Ok(entry) = entry else { continue };
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let time = if kind.is_dir() {
            newest_file(&entry.path(), files_left)
        } else {
            entry.metadata().and_then(|file| file.modified()).ok()
        };
        newest = newest.max(time);
    }
    newest
}

fn format_time(millis: u64) -> Option<String> {
    let millis = i64::try_from(millis).ok().filter(|millis| *millis > 0)?;
    let time = Timestamp::from_millisecond(millis).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// Why a service did not start is the last line of its log.
fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .next_back()
        .unwrap_or("there is no log")
        .to_owned()
}
