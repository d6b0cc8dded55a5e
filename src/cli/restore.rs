//! `unstuck restore`: puts a copy of the database back.

use std::{path::PathBuf, process::ExitCode};

use super::{
    CliError,
    store_dir::{StoreDirArgs, store_error},
};
use crate::store;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The copy, from `unstuck backup`.
    file: PathBuf,
    #[command(flatten)]
    store: StoreDirArgs,
    /// Replace the database of the directory, even if that lifts terminations.
    #[arg(long)]
    force: bool,
}

/// Exit code 1: the service runs, the copy is damaged, or `--force` is needed.
pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let dir = args.store.resolve()?;
    let plan = store::plan_restore(&dir, &args.file).map_err(store_error)?;
    match &plan.changes {
        None => anstream::eprintln!(
            "unstuck: the database in {} cannot be read: it is unknown which terminations the \
             copy does not have",
            dir.display()
        ),
        Some(changes) => {
            print_named("terminations that the copy does not have", &changes.lifted);
            let again = "terminations of the copy that are not in force now";
            print_named(again, &changes.terminated);
        }
    }
    if plan.replaces && !args.force {
        return Err(CliError::failed(format!(
            "{} is not empty: pass --force to replace its database by the copy",
            dir.display()
        )));
    }
    let copy = plan.copy.clone();
    plan.run().map_err(store_error)?;
    anstream::println!("{}: {copy}", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// All of them: each may be a session that runs on, or one that is ended.
fn print_named(what: &str, named: &[String]) {
    if !named.is_empty() {
        anstream::eprintln!("unstuck: {what} ({}): {}", named.len(), named.join(", "));
    }
}
