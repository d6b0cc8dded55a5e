//! The checks of one agent.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use serde::Serialize;

use super::installation::{Installation, InstalledTarget};
use crate::{
    cli::{
        agent_programs::AgentProgram,
        block_on,
        hook::{
            HookFailure, HookSettings, HookTarget,
            journal::{Journal, JournalEntry},
            post,
        },
        init::hook_file::TIMEOUT_SECS,
        local_service::LocalDirs,
    },
    hooks::PROBE_EVENT,
};

/// How long a service that was just started may take to open its store.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The timeout of a probe, longer than that of any hook.
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);
/// The service counts as slow only if this many answers in a row are slow.
const PROBES_MAX: usize = 3;
/// The time by which an agent's session file may be newer than its last hook.
const SILENCE_MIN: Duration = Duration::from_secs(120);
/// The most session files that are examined.
const SESSION_FILES_MAX: usize = 20_000;

/// Whether an agent is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Health {
    Guarded,
    /// It has our hooks, and they do not arrive or are not answered.
    Silent,
    /// It has our hooks, and its user has not accepted them yet.
    Untrusted,
    NotGuarded,
}

/// The result of an agent's checks.
#[derive(Debug, Serialize)]
pub(super) struct AgentReport {
    pub agent: &'static str,
    #[serde(skip)]
    pub display_name: &'static str,
    pub health: Health,
    /// Verdicts are only recorded.
    pub shadow: bool,
    /// The files that have our hooks, or would have them.
    pub files: Vec<String>,
    /// The milliseconds until a synthetic payload was answered.
    pub answer_ms: Option<u64>,
    /// The time of its last event.
    pub last_seen: Option<String>,
    /// Hooks without an answer since the last answered one.
    pub unanswered: u64,
    pub problem: Option<String>,
    /// The command that repairs it.
    pub repair: Option<String>,
}

/// A problem, and the command that repairs it.
pub(super) struct AgentProblem {
    pub problem: String,
    pub repair: String,
}

pub(super) fn problem(problem: impl Into<String>, repair: impl Into<String>) -> AgentProblem {
    AgentProblem {
        problem: problem.into(),
        repair: repair.into(),
    }
}

/// Checks agents.
pub(super) struct Probe {
    /// The configuration of hooks that do not name one.
    file: Option<PathBuf>,
}

impl Probe {
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    pub fn check(&self, program: &'static AgentProgram) -> AgentReport {
        let installed = Installation::find(program);
        let service = ProbedService::new(&installed.target, self.file.as_deref());
        let journal = service.dirs.as_ref();
        let entry = journal.map(|dirs| Journal::new(dirs, program.agent).read());
        let entry = entry.unwrap_or_default();
        let mut report = AgentReport {
            agent: program.agent,
            display_name: program.display_name,
            health: Health::NotGuarded,
            shadow: service.is_shadow(),
            files: installed.files.clone(),
            answer_ms: None,
            last_seen: format_time(entry.seen_at),
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
        // Report the first problem, from the agent to the service.
        let answered = service.ask(program.agent);
        report.answer_ms = answered.as_ref().ok().copied();
        let mut problem = installed.problem.or_else(|| answered.err());
        // Payloads that an agent sends by itself are not in this machine's journal.
        let is_in_journal = !installed.target.is_by_http;
        if is_in_journal {
            problem = problem
                .or_else(|| find_missed_work(program, entry.seen_at, installed.installed_at))
                .or_else(|| find_unanswered_hooks(&entry));
        }
        report.health = match &problem {
            Some(_) => Health::Silent,
            None => Health::Guarded,
        };
        if is_in_journal && problem.is_none() {
            problem = find_untrusted_hooks(installed.untrusted, &entry, installed.installed_at);
            if problem.is_some() {
                report.health = Health::Untrusted;
            }
        }
        if let Some(AgentProblem { problem, repair }) = problem {
            report.problem = Some(problem);
            report.repair = Some(repair);
        } else if is_in_journal && entry.seen_at == 0 {
            report.problem = Some("not seen yet".to_owned());
        }
        report
    }
}

/// The service that an agent's hooks call.
struct ProbedService<'a> {
    installed: &'a InstalledTarget,
    file: Option<&'a Path>,
    dirs: Option<LocalDirs>,
    settings: Result<HookSettings, HookFailure>,
}

impl<'a> ProbedService<'a> {
    fn new(installed: &'a InstalledTarget, file: Option<&'a Path>) -> Self {
        let file = installed.config.as_deref().or(file);
        Self {
            installed,
            file,
            dirs: LocalDirs::find(installed.state.as_deref()),
            settings: HookSettings::load(file),
        }
    }

    /// Whether the local service only records verdicts. Of a team's service it is unknown.
    fn is_shadow(&self) -> bool {
        let settings = self.settings.as_ref();
        self.installed.url.is_none() && settings.is_ok_and(|it| it.shadow && it.url.is_empty())
    }

    /// The milliseconds until a synthetic payload is answered.
    fn ask(&self, agent: &str) -> Result<u64, AgentProblem> {
        let settings = self
            .settings
            .as_ref()
            .map_err(|error| problem(error.to_string(), "unstuck config check"))?;
        if !settings.enabled {
            return Err(problem("[hooks] enabled is false", "unstuck config print"));
        }
        let named = self.installed.named();
        let target = HookTarget::choose(named, settings, self.dirs.as_ref());
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
        let answered = self.ask_again_if_slow(answered, &target, agent, settings);
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

    /// Repeats a slow probe: a hook does not wait longer than its budget, but a single slow
    /// answer on a busy machine proves little.
    fn ask_again_if_slow(
        &self,
        mut answered: Result<u64, HookFailure>,
        target: &HookTarget,
        agent: &str,
        settings: &HookSettings,
    ) -> Result<u64, HookFailure> {
        let budget = if self.installed.is_by_http {
            Duration::from_secs(TIMEOUT_SECS)
        } else {
            settings.budget()
        };
        let is_slow = |millis: u64| Duration::from_millis(millis) > budget;
        for _ in 1..PROBES_MAX {
            if answered.as_ref().is_ok_and(|millis| is_slow(*millis)) {
                answered = self.post(target, agent);
            }
        }
        match answered {
            Ok(millis) if is_slow(millis) => Err(HookFailure::Timeout(budget)),
            answered => answered,
        }
    }

    fn start_and_post(
        &self,
        dirs: &LocalDirs,
        target: &HookTarget,
        agent: &str,
    ) -> Result<u64, HookFailure> {
        let deadline = Instant::now() + START_TIME_MAX;
        loop {
            // Repeated, because a start right after another one is refused.
            let started = dirs.start(self.file);
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

/// Hooks without an answer since the last answered one.
fn find_unanswered_hooks(entry: &JournalEntry) -> Option<AgentProblem> {
    (entry.failures > 0).then(|| {
        let why = format!("unanswered hooks: {}; {}", entry.failures, entry.failure);
        problem(why, "unstuck serve --local")
    })
}

/// Whether the agent has written a session file since its last hook.
fn find_missed_work(
    program: &AgentProgram,
    seen_at: u64,
    installed_at: Option<SystemTime>,
) -> Option<AgentProblem> {
    let seen_at = UNIX_EPOCH + Duration::from_millis(seen_at);
    let since = seen_at.max(installed_at?) + SILENCE_MIN;
    let mut files_left = SESSION_FILES_MAX;
    let places = program.session_places().into_iter();
    let times = places.filter_map(|place| newest_change(&place, &mut files_left));
    let worked_at = times.max()?;
    if worked_at <= since {
        return None;
    }
    let repair = match program.agent {
        "codex" => TRUST_IN_CODEX.to_owned(),
        agent => format!("unstuck init --agent {agent}"),
    };
    Some(problem("it has worked since, and was not seen", repair))
}

const TRUST_IN_CODEX: &str = "codex, then /hooks, and trust those of unstuck";

/// Whether Codex does not trust its hooks. A hook that has arrived since it was written is
/// run, whatever Codex's files say.
fn find_untrusted_hooks(
    hooks: usize,
    entry: &JournalEntry,
    installed_at: Option<SystemTime>,
) -> Option<AgentProblem> {
    let seen_at = UNIX_EPOCH + Duration::from_millis(entry.seen_at);
    if hooks == 0 || installed_at.is_some_and(|installed_at| seen_at >= installed_at) {
        return None;
    }
    let why = format!("Codex does not trust {hooks} of its hooks");
    Some(problem(why, TRUST_IN_CODEX))
}

/// The time of the last change of a file, or of those below a directory.
fn newest_change(path: &Path, files_left: &mut usize) -> Option<SystemTime> {
    let place = fs::metadata(path).ok()?;
    if place.is_dir() {
        return newest_file(path, files_left);
    }
    // A database that is only opened has an empty log.
    place.modified().ok().filter(|_| place.len() > 0)
}

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

/// The last line of a service's log, which says why it did not start.
fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .next_back()
        .unwrap_or("there is no log")
        .to_owned()
}
