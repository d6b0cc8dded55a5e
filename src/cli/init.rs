//! `unstuck init`: adds `unstuck hook` to the settings of the agents on this machine.

mod file_change;
pub(super) mod hook_command;
pub(super) mod hook_file;
pub(super) mod settings_file;
mod user_config;

use std::{
    env,
    io::{self, BufRead, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    CliError,
    agent_programs::{AGENT_PROGRAMS, AgentProgram, find_in_path},
    doctor,
    hook::{check_url, host_name},
    local_service::LocalDirs,
    style::{BOLD, DIM},
    text_format::{pluralize, sanitize},
    user_dirs,
};
use file_change::{FileChange, RefusedFile};
use hook_file::{InstallOptions, hook_files, quote};
use user_config::{HookKey, SHADOW_KEYS, UNATTENDED_KEYS, remove_keys, set_keys};

#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // Each is a flag of the command line.
pub(super) struct Args {
    /// An agent to guard, instead of all that are found: claude-code, codex, gemini, qwen,
    /// copilot, cline, opencode, pi. Repeatable.
    #[arg(long, value_name = "AGENT", value_parser = parse_agent)]
    agent: Vec<&'static AgentProgram>,
    /// Write the files of the repository in the working directory, for all its users.
    #[arg(long, conflicts_with_all = ["shadow", "unattended"])]
    project: bool,
    /// The address of a team's service, instead of the local one: https, or http to this
    /// machine.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    http: Option<String>,
    /// The name of the variable with the API token for that address.
    #[arg(long, value_name = "NAME", requires = "http", value_parser = parse_variable)]
    token_env: Option<String>,
    /// Only record verdicts: agents get no corrections and no call is refused.
    // A team's service does not read this user's configuration.
    #[arg(long, conflicts_with = "http")]
    shadow: bool,
    /// For runs without a person at the terminal: stop a stuck agent, by SIGINT if necessary.
    #[arg(long)]
    unattended: bool,
    /// Leave out the hook before each call: faster, but no call can be refused.
    #[arg(long)]
    light: bool,
    /// Also send the agent's text while it is written (Claude Code).
    #[arg(long)]
    text: bool,
    /// Show the changes without making them.
    #[arg(long)]
    dry_run: bool,
    /// Remove what `init` has added.
    #[arg(long, conflicts_with_all = ["http", "shadow", "unattended", "light", "text"])]
    remove: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

fn parse_agent(name: &str) -> Result<&'static AgentProgram, String> {
    AgentProgram::find(name).ok_or_else(|| {
        let names: Vec<&str> = AGENT_PROGRAMS.iter().map(|program| program.agent).collect();
        format!("one of {}", names.join(", "))
    })
}

fn parse_url(text: &str) -> Result<String, String> {
    let url = check_url(text)?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn parse_variable(name: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_valid) {
        return Err("the name of a variable, not the token itself".to_owned());
    }
    Ok(name.to_owned())
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let programs = choose_programs(args)?;
    let plan = plan(args, &programs)?;
    // Show the changes.
    let changes: Vec<&FileChange> = plan.changes.iter().filter(|it| it.is_change()).collect();
    for change in &changes {
        anstream::print!("{}", change.diff());
    }
    for refusal in &plan.refusals {
        print_refusal(refusal);
    }
    if changes.is_empty() {
        anstream::println!("Nothing to change.");
    }
    // Ask for confirmation, and write the files.
    let is_wanted = !args.dry_run && !changes.is_empty();
    if is_wanted {
        print_files(&programs, &changes);
    }
    if is_wanted && !args.yes && !confirm(changes.len())? {
        anstream::println!("Nothing was changed.");
        return Ok(ExitCode::SUCCESS);
    }
    if is_wanted {
        for change in &changes {
            change.apply().map_err(|error| {
                CliError::failed(format!("cannot write {}: {error}", change.path.display()))
            })?;
            let path = change.path.display();
            anstream::println!("{DIM}written{DIM:#} {BOLD}{path}{BOLD:#}");
        }
        let own = user_dirs::config_file();
        if changes
            .iter()
            .any(|change| Some(&change.path) == own.as_ref())
        {
            stop_local_service()?;
        }
    }
    if !plan.refusals.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if args.dry_run || args.remove || args.project {
        return Ok(ExitCode::SUCCESS);
    }
    doctor::check(&programs)
}

/// The local service reads its configuration when it starts.
fn stop_local_service() -> Result<(), CliError> {
    let Some(dirs) = LocalDirs::find(None) else {
        return Ok(());
    };
    let restart = "restart `unstuck serve --local`: it runs with the old configuration";
    match dirs.stop() {
        Ok(true) => Ok(()),
        Ok(false) => {
            anstream::println!("{BOLD}{restart}{BOLD:#}");
            Ok(())
        }
        Err(error) => Err(CliError::failed(format!("{restart} ({error})"))),
    }
}

fn choose_programs(args: &Args) -> Result<Vec<&'static AgentProgram>, CliError> {
    if !args.agent.is_empty() {
        return Ok(args.agent.clone());
    }
    let found = AGENT_PROGRAMS
        .iter()
        .filter(|program| program.is_installed());
    let found: Vec<&AgentProgram> = found.collect();
    if found.is_empty() {
        let why = "no agent was found on this machine; name one with --agent";
        return Err(CliError::not_found(why));
    }
    Ok(found)
}

/// The changes of an `init`, and the files that it must not change.
struct Plan {
    changes: Vec<FileChange>,
    refusals: Vec<RefusedFile>,
}

fn plan(args: &Args, programs: &[&AgentProgram]) -> Result<Plan, CliError> {
    let options = install_options(args)?;
    let mut plan = Plan {
        changes: Vec::new(),
        refusals: Vec::new(),
    };
    for program in programs {
        for file in hook_files(program, &options).ok_or_else(no_home)? {
            let planned = if args.remove {
                FileChange::remove(&file, program.agent)
            } else {
                FileChange::install(&file, program.agent).map(Some)
            };
            match planned {
                Ok(change) => {
                    let of_agent = |mut change: FileChange| {
                        change.owner = Some(program.display_name);
                        change
                    };
                    plan.changes.extend(change.map(of_agent));
                }
                Err(refusal) => plan.refusals.push(refusal),
            }
        }
    }
    if args.project {
        return Ok(plan);
    }
    // The user's own configuration. Other keys in it may be invalid already.
    let path = user_dirs::config_file().ok_or_else(no_home)?;
    let keys: Vec<HookKey> = [
        (args.unattended, UNATTENDED_KEYS),
        (args.shadow, SHADOW_KEYS),
    ]
    .into_iter()
    .filter(|(is_wanted, _)| *is_wanted)
    .flat_map(|(_, keys)| keys.iter().copied())
    .collect();
    // The keys apply to all agents, so they stay while an agent that is not named is guarded.
    if args.remove && doctor::is_another_guarded(programs) {
        return Ok(plan);
    }
    let keeps_others = !args.agent.is_empty();
    let planned = FileChange::edit(&path, 0o600, |state| {
        if args.remove {
            remove_keys(state)
        } else {
            set_keys(state, &keys, keeps_others)
        }
    });
    match planned {
        Ok(change) => plan.changes.push(change),
        Err(why) => plan.refusals.push(RefusedFile {
            path,
            why,
            snippet: String::new(),
        }),
    }
    Ok(plan)
}

fn install_options(args: &Args) -> Result<InstallOptions, CliError> {
    let program = if args.project {
        "unstuck".to_owned()
    } else {
        let path = own_program()?;
        // `--remove` runs from anywhere.
        if !args.remove {
            check_is_installed(&path)?;
        }
        let path = path.to_str();
        let path = path.ok_or_else(|| CliError::usage("the path of the program is not UTF-8"))?;
        quote(path)
    };
    Ok(InstallOptions {
        program: format!("{program} hook"),
        url: args.http.clone(),
        // A repository's file is for all its users.
        host: host_name().filter(|_| !args.project),
        token_env: args.token_env.clone(),
        user_files: user_files(args)?,
        project: args.project,
        light: args.light,
        text: args.text,
        unattended: args.unattended,
    })
}

/// The flags with the paths of the user's configuration and of the local service's state. The
/// files of a repository get none, because they are for all its users.
fn user_files(args: &Args) -> Result<Vec<String>, CliError> {
    if args.project {
        return Ok(Vec::new());
    }
    let files = [
        ("--config", user_dirs::config_file()),
        ("--state", user_dirs::state_dir()),
    ];
    let mut words = Vec::new();
    for (flag, path) in files {
        let path = path.ok_or_else(no_home)?.into_os_string().into_string();
        let not_utf8 = |_| CliError::usage("the path of the home directory is not UTF-8");
        words.extend([flag.to_owned(), path.map_err(not_utf8)?]);
    }
    Ok(words)
}

fn no_home() -> CliError {
    CliError::usage("there is no home directory: set HOME")
}

/// The path by which the program is found. It stays the same when the program is updated.
fn own_program() -> Result<PathBuf, CliError> {
    let own = env::current_exe().map_err(CliError::failed)?;
    let named = find_in_path("unstuck").filter(|named| {
        let real = named.canonicalize();
        real.is_ok_and(|real| own.canonicalize().is_ok_and(|own| own == real))
    });
    Ok(named.unwrap_or(own))
}

/// The directories of `uvx` and `npx`, which are emptied.
const CACHES: &[&str] = &["archive-v0", "_npx"];

/// Refuses a program that will not stay where it is: its hooks would fail one day, and no
/// agent says so.
fn check_is_installed(program: &Path) -> Result<(), CliError> {
    let real = program.canonicalize();
    let paths = [program, real.as_deref().unwrap_or(program)];
    let is_temporary = paths.iter().any(|path| {
        let mut parts = path.components();
        path.starts_with(env::temp_dir())
            || parts.any(|part| CACHES.iter().any(|cache| part.as_os_str() == *cache))
    });
    if !is_temporary {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{} is in a temporary directory or a cache, and agents would call it later. Install \
         unstuck (uv tool install unstuck, pipx install unstuck, or npm install --global \
         unstuck), then run unstuck init",
        program.display()
    )))
}

fn print_refusal(refusal: &RefusedFile) {
    let path = refusal.path.display();
    let why = sanitize(&refusal.why);
    anstream::eprintln!("unstuck: {path} is not changed: {why}");
    if !refusal.snippet.is_empty() {
        anstream::println!(
            "To guard this agent, add by hand to {path}:\n{}",
            refusal.snippet
        );
    }
}

/// The files by agent: the diff above the question is longer than a screen.
fn print_files(programs: &[&AgentProgram], changes: &[&FileChange]) {
    anstream::println!();
    let own = "unstuck";
    let names = programs.iter().map(|program| program.display_name);
    for name in names.chain([own]) {
        let is_of = |change: &&&FileChange| change.owner.unwrap_or(own) == name;
        let paths: Vec<_> = changes
            .iter()
            .filter(is_of)
            .map(|change| change.path.display().to_string())
            .collect();
        match &*paths {
            [] => {}
            [only] => anstream::println!("{BOLD}{name}{BOLD:#}: {only}"),
            [first, rest @ ..] => {
                let rest = pluralize(rest.len() as u64, "other file");
                anstream::println!("{BOLD}{name}{BOLD:#}: {first} and {rest}");
            }
        }
    }
}

fn confirm(files: usize) -> Result<bool, CliError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(CliError::usage("not a terminal: pass --yes or --dry-run"));
    }
    let plural = if files == 1 { "" } else { "s" };
    anstream::print!("Change {files} file{plural}? [y/N] ");
    io::stdout().flush().map_err(CliError::failed)?;
    let mut answer = String::new();
    input
        .lock()
        .read_line(&mut answer)
        .map_err(CliError::failed)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
