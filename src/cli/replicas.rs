//! `unstuck replicas`: the processes of a cluster.

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anstream::AutoStream;

use super::{
    CliError,
    client::{self, ServerArgs},
    grid::{self, Cell, Column},
    output::{OutputFormat, map_write_error, terminal_dimensions, to_proto_json_line},
    style::{PLAIN, RED},
    text_format::sanitize,
};
use crate::pb;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Output format: a table, or one JSON object per line.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

const COLUMNS: [Column; 6] = [
    Column::left("REPLICA"),
    Column::left("ADDRESS"),
    Column::left("VERSION"),
    Column::right("SESSIONS"),
    Column::right("EVENTS/S"),
    Column::left("HEALTH"),
];

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let request = pb::ListSessionsRequest {
        page_size: 1,
        ..pb::ListSessionsRequest::default()
    };
    let page = client::connect_and_run(&args.server, async |client| {
        let list = async |mut service: client::SessionClient, request| {
            service.list_sessions(request).await
        };
        client.call(request, list).await
    })?;
    if page.replicas.is_empty() {
        return Err(CliError::not_found(
            "the service is one process: [cluster] redis is not set".to_owned(),
        ));
    }
    let printed = match args.output {
        OutputFormat::Table => print_table(&page.replicas),
        OutputFormat::Json => print_json(&page.replicas),
    };
    map_write_error(printed)?;
    Ok(ExitCode::SUCCESS)
}

fn print_json(replicas: &[pb::Replica]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for replica in replicas {
        writeln!(out, "{}", to_proto_json_line(replica)?)?;
    }
    out.flush()
}

fn print_table(replicas: &[pb::Replica]) -> io::Result<()> {
    let width_max = terminal_dimensions().map(|(columns, _)| columns);
    let mut out = BufWriter::new(AutoStream::auto(io::stdout().lock()));
    let rows = replicas.iter().map(|replica| {
        let health_style = if replica.health == "ok" { PLAIN } else { RED };
        vec![
            Cell::new(sanitize(&replica.name), PLAIN),
            Cell::new(sanitize(&replica.address), PLAIN),
            Cell::new(sanitize(&replica.version), PLAIN),
            Cell::new(replica.sessions.to_string(), PLAIN),
            Cell::new(replica.events_per_second.to_string(), PLAIN),
            Cell::new(sanitize(&replica.health), health_style),
        ]
    });
    let rows: Vec<_> = rows.collect();
    grid::write(&mut out, &COLUMNS, &rows, width_max)?;
    out.flush()
}
