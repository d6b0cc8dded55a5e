//! Integration tests of the whole service, in one binary: one file per behaviour.

// Clippy lets functions marked `#[test]` panic, not those that they call; and a
// table of cases is as long as it is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines
)]

mod fake;
mod harness;
mod play;
#[allow(
    clippy::duplicate_mod,
    reason = "the fuzz targets in `fuzzed` load it too"
)]
#[path = "../setup/mod.rs"]
mod setup;
/// The load generator; its test keeps it working.
#[path = "../../benches/load"]
mod bench {
    pub mod load_generator;
}

mod allocations;
mod auth;
mod backup;
mod bad_input;
mod bounds;
mod breaker;
mod budget;
mod calls;
mod classic;
mod connections;
mod console;
mod contexts;
mod corrections;
mod deltas;
mod disk_faults;
mod disobedience;
mod doctor;
mod durable;
mod embeddings;
mod error_responses;
mod eval;
mod events;
mod fast_return;
mod frozen;
mod fuzzed;
mod hook_command;
mod hook_limits;
mod hooks;
mod init;
mod layering;
mod lifecycle;
mod limits;
mod load;
mod local_service;
mod memory;
mod model;
mod notify;
mod operators;
mod plausible;
mod policy;
mod profiles;
mod properties;
mod rate_commands;
mod ratings;
mod refusals;
mod reload;
mod repetition;
mod replay;
mod rules;
mod rust_client;
mod sabotage;
mod scan;
mod scan_home;
mod scenarios;
mod sessions;
mod standing;
mod streams;
mod telemetry;
mod terminate;
mod third_party_streams;
mod timeline;
mod tls;
mod traces;
mod transcripts;
mod transport;
mod untrusted;
mod work;
