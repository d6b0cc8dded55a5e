//! `unstuck restore`: puts a copy of the database back.

use std::{path::PathBuf, process::ExitCode};

use super::{
    CliError,
    store_dir::{StoreDirArgs, store_error},
};
use crate::store;

/// How many lifted terminations are named.
const NAMED_MAX: usize = 20;

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
    match plan.lifted.as_deref() {
        None => anstream::eprintln!(
            "unstuck: the database in {} cannot be read: it is unknown which terminations the \
             copy does not have",
            dir.display()
        ),
        Some([]) => {}
        Some(lifted) => print_lifted(lifted),
    }
    if plan.replaces && !args.force {
        return Err(CliError::failed(format!(
            "{} has a database: pass --force to replace it by the copy",
            dir.display()
        )));
    }
    let copy = plan.copy.clone();
    plan.run().map_err(store_error)?;
    anstream::println!("{}: {copy}", dir.display());
    Ok(ExitCode::SUCCESS)
}

fn print_lifted(lifted: &[String]) {
    let named = lifted.iter().take(NAMED_MAX).map(String::as_str);
    let mut named = named.collect::<Vec<_>>().join(", ");
    if lifted.len() > NAMED_MAX {
        named += ", …";
    }
    let count = lifted.len();
    anstream::eprintln!("unstuck: terminations that the copy does not have ({count}): {named}");
}
