//! `unstuck context`: names for services, so that commands need no address.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anstream::AutoStream;
use serde::Serialize;

use super::{
    CliError,
    contexts_file::{Context, ContextsFile},
    grid::{self, Cell, Column},
    output::{OutputFormat, map_write_error, terminal_dimensions, to_json_line},
    server_args::{TlsArgs, build_endpoint},
    style::{BOLD, DIM, PLAIN},
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Name a service. The first context becomes the current one.
    Add(AddArgs),
    /// Make a context the current one, which commands use by default.
    Use(NameArg),
    /// List the contexts.
    List(ListArgs),
    /// Remove a context.
    Remove(NameArg),
}

#[derive(Debug, clap::Args)]
pub(super) struct NameArg {
    /// The context's name.
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Output format: a table, or one JSON object per context.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The flags of a context. They have no environment variables, unlike those of other
/// commands: a context holds only what its command line says.
#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    /// The context's name: letters, digits, `-`, `_` and `.`.
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// The address of the service's gRPC port.
    #[arg(long, value_name = "ADDRESS")]
    server: String,
    /// A PEM file with the CA certificate to trust, instead of the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A PEM file with a client certificate.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// A PEM file with the private key of the client certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// A file with the API token. The token itself is not stored.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The operator's name for the audit log.
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// Replace a context of this name.
    #[arg(long)]
    replace: bool,
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || !text.chars().all(is_valid) {
        return Err("a name has only letters, digits, `-`, `_` and `.`".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn run(command: &Command) -> Result<ExitCode, CliError> {
    let mut file = ContextsFile::load()?;
    match command {
        Command::Add(args) => add(&mut file, args)?,
        Command::Use(NameArg { name }) => {
            let server = file.get(name)?.server.clone();
            file.current = Some(name.clone());
            file.save()?;
            anstream::println!("using {BOLD}{name}{BOLD:#}: {server}");
        }
        Command::List(args) => map_write_error(print_list(&file, args.output))?,
        Command::Remove(NameArg { name }) => {
            file.get(name)?;
            file.contexts.remove(name);
            let was_current = file.current.as_ref() == Some(name);
            if was_current {
                file.current = None;
            }
            file.save()?;
            let rest = if was_current {
                "; there is no current context now"
            } else {
                ""
            };
            anstream::println!("removed {BOLD}{name}{BOLD:#}{rest}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(file: &mut ContextsFile, args: &AddArgs) -> Result<(), CliError> {
    let name = &args.name;
    if file.contexts.contains_key(name) && !args.replace {
        let why = format!("there is a context {name:?} already: pass --replace");
        return Err(CliError::usage(why));
    }
    let context = Context {
        server: args.server.clone(),
        ca: to_absolute(args.ca.as_deref())?,
        cert: to_absolute(args.cert.as_deref())?,
        key: to_absolute(args.key.as_deref())?,
        token_file: to_absolute(args.token_file.as_deref())?,
        operator: args.operator.clone(),
    };
    // An address or certificate that cannot be used is reported here, not by the next command.
    build_endpoint(&context.server, &TlsArgs::from(&context))?;
    file.contexts.insert(name.clone(), context);
    let is_current = file.current.get_or_insert_with(|| name.clone()) == name;
    file.save()?;
    let rest = if is_current {
        ", the current context"
    } else {
        ""
    };
    anstream::println!("added {BOLD}{name}{BOLD:#}{rest}");
    Ok(())
}

/// Commands run in any directory.
fn to_absolute(path: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
    let absolute = path.map(std::path::absolute);
    absolute.transpose().map_err(CliError::usage)
}

/// A context as JSON.
#[derive(Serialize)]
struct ListedContext<'a> {
    name: &'a str,
    current: bool,
    #[serde(flatten)]
    context: &'a Context,
}

fn print_list(file: &ContextsFile, output: OutputFormat) -> io::Result<()> {
    let mut out = AutoStream::auto(io::stdout().lock());
    let listed = file.contexts.iter().map(|(name, context)| ListedContext {
        name,
        current: file.current.as_ref() == Some(name),
        context,
    });
    if let OutputFormat::Json = output {
        for context in listed {
            writeln!(out, "{}", to_json_line(&context)?)?;
        }
        return Ok(());
    }
    if file.contexts.is_empty() {
        return writeln!(
            out,
            "No contexts. Name a service: unstuck context add NAME --server ADDRESS"
        );
    }
    write_list(&mut out, listed)
}

fn write_list<'a>(
    out: &mut impl Write,
    listed: impl Iterator<Item = ListedContext<'a>>,
) -> io::Result<()> {
    let show = |path: &Option<PathBuf>| {
        let path = path.as_deref().map(Path::to_string_lossy);
        Cell::new(path.unwrap_or_default(), DIM)
    };
    let render = |it: ListedContext<'_>| {
        let name_style = if it.current { BOLD } else { PLAIN };
        vec![
            Cell::new(if it.current { "*" } else { "" }, BOLD),
            Cell::new(it.name, name_style),
            Cell::plain(&it.context.server),
            Cell::plain(it.context.operator.as_deref().unwrap_or_default()),
            show(&it.context.token_file),
            show(&it.context.ca),
        ]
    };
    let columns = [
        Column::left(""),
        Column::left("NAME"),
        Column::left("SERVER"),
        Column::left("OPERATOR"),
        Column::left("TOKEN FILE").shrink_to(16),
        Column::left("CA").shrink_to(16).drop_priority(1),
    ];
    let rows: Vec<Vec<Cell>> = listed.map(render).collect();
    let width_max = terminal_dimensions().map(|(columns, _)| columns);
    grid::write(out, &columns, &rows, width_max)
}
