//! The `unstuck` program.

use std::process::ExitCode;

/// glibc's allocator does not return memory after a mass eviction, and is slower with
/// several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    unstuck::cli::main()
}
