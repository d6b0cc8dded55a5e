//! Unstuck watches agent sessions while they run and says when one is stuck.
//!
//! The code, in reading order, along the way of an event:
//!
//! 1. [`domain`]: the words of the house. An [`Event`](domain::Event) comes in,
//!    an [`Observation`](domain::Observation) is what is the case, a
//!    [`Finding`](domain::Finding) is what a detector finds, a
//!    [`Verdict`](domain::Verdict) is what is said.
//! 2. [`facts`]: an event into an observation, once: canonical arguments, masked
//!    outcomes, progress.
//! 3. [`detect`]: the detectors, a file each, pure state machines.
//! 4. [`policy`]: from findings to at most one ruling an event.
//! 5. [`engine`]: owns the sessions in a sharded map; sync, never awaits.
//! 6. [`store`]: the durable side, an append-only log. [`feed`]: verdicts to
//!    those who watch. [`notify`]: webhooks. [`aside`]: work that takes longer
//!    than a turn.
//! 7. [`auth`]: who calls, and what they may do. [`api`]: the gRPC services.
//!    [`console`]: the HTTP side. [`telemetry`]: logs and metrics.
//! 8. [`config`]: the layers of the configuration. [`app`]: binds, runs, drains.
//!    [`cli`]: the command line.
//!
//! [`pb`] is generated from `proto/`. ARCHITECTURE.md has the invariants, and
//! the test that holds each.

#![forbid(unsafe_code)]

pub mod api;
pub mod app;
pub mod auth;
pub mod cli;
pub mod config;
pub mod console;
pub mod detect;
pub mod domain;
pub mod engine;
pub mod facts;
pub mod feed;
pub mod notify;
pub mod pb;
pub mod policy;
pub mod rules;
pub mod server;
pub mod store;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod text;
