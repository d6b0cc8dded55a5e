use std::process::ExitCode;

use clap::Parser;

/// glibc keeps memory after a mass eviction, and is slower under threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    unstuck::cli::run(unstuck::cli::Cli::parse())
}
