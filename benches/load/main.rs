//! Compares Unstuck with a bare tonic server that has the same messages. Both run in
//! separate processes, driven alternately by the same open-loop generator:
//!
//! ```text
//! cargo bench --bench load -- --help
//! ```

mod child;
mod load_generator;
mod measure;
#[path = "../page/mod.rs"]
mod page;
mod report;
mod scenario;

use std::{fs, path::PathBuf, thread, time::Duration};

use clap::{Parser, Subcommand};
use tokio::{net::TcpListener, runtime};

use child::{Program, Server};
use load_generator::{bare_server, drive::Failure};
use measure::Plan;
use scenario::Scenario;

/// The allocator of the service; otherwise allocators would be compared.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Role>,
    /// How long a run takes
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Runs of each server, at full load and again at half the throughput of the slower one
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only loads whose name or mix contains this
    #[arg(long)]
    only: Option<String>,
    /// Do not pin server and generator to cores
    #[arg(long)]
    unpinned: bool,
    /// Another build of Unstuck
    #[arg(long, default_value = env!("CARGO_BIN_EXE_unstuck"))]
    unstuck: PathBuf,
    /// A page to write the table to, between its marks
    #[arg(long)]
    write: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Run as the bare server
    BareServer,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    match args.command {
        Some(Role::BareServer) => serve_bare_server(),
        None => compare(&args),
    }
}

/// A runtime with one thread per core, as in the service.
fn serve_bare_server() -> Result<(), Failure> {
    runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            println!("bare server: gRPC on {}", listener.local_addr()?);
            Ok(bare_server::serve(listener).await?)
        })
}

fn compare(args: &Args) -> Result<(), Failure> {
    // The pacer's sleeps are off by 50 µs otherwise. Not every system has it.
    let _ = fs::write("/proc/self/timerslack_ns", "1");
    let cores = thread::available_parallelism()?.get();
    let is_pinned = cores > 1 && !args.unpinned;
    if is_pinned {
        child::leave_last_core(cores)?;
    }
    let plan = Plan {
        time: Duration::from_secs_f64(args.seconds),
        rounds: args.rounds,
        cores,
        core: is_pinned.then_some(cores - 1),
        unstuck: Program::Unstuck(args.unstuck.clone()),
    };
    // One thread, so that the generator takes at most one core.
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let text = runtime.block_on(all(args, &plan))?;
    if let Some(page) = &args.write {
        page::write(page, "load", &text)?;
    }
    Ok(())
}

async fn all(args: &Args, plan: &Plan) -> Result<String, Failure> {
    let ready = start_to_ready(plan).await?;
    let machine = report::machine(plan, &ready);
    println!("{machine}");
    let scenarios = Scenario::all()?;
    let wanted = |scenario: &Scenario| {
        let name = format!("{} {:?}", scenario.name, scenario.kind).to_lowercase();
        args.only.as_ref().is_none_or(|only| name.contains(only))
    };
    let mut rows = Vec::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        if wanted(scenario) {
            let row = measure::measure(plan, number, scenario).await?;
            println!(
                "{} {:?}: {:.2} of the bare server's events a second, {:.2} of a core's, p99 {:.2} at {:.0} messages a \
                 second; p50 {:.0} and {:.0} µs; {:.0} verdicts in 1,000",
                row.name,
                scenario.kind,
                row.throughput,
                row.core,
                row.p99,
                row.rate,
                row.bare.p50_micros,
                row.unstuck.p50_micros,
                row.verdicts,
            );
            rows.push(row);
        }
    }
    let table = report::table(&rows, &scenarios);
    println!("\n{table}");
    Ok(format!("{machine}\n{table}"))
}

/// From the start of the process to the first health check that is answered.
async fn start_to_ready(plan: &Plan) -> Result<String, Failure> {
    let mut millis = Vec::new();
    for _ in 0..plan.rounds {
        let server = Server::start(&plan.unstuck, plan.core).await?;
        millis.push(server.ready_after.as_secs_f64() * 1e3);
    }
    let most = millis.iter().copied().fold(0.0, f64::max);
    let median = measure::median(millis.into_iter());
    Ok(format!(
        "{median:.0} ms at the median, {most:.0} ms at most"
    ))
}
