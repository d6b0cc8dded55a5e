//! Unstuck watches agent sessions while they run and reports when one is stuck.
//!
//! The modules, in reading order:
//!
//! 1. [`domain`]: the types that all modules share. An [`Event`](domain::Event)
//!    comes in, an [`Observation`](domain::Observation) is what it shows, a
//!    [`Finding`](domain::Finding) is a detector's result, a
//!    [`Verdict`](domain::Verdict) is what is sent.
//! 2. [`text`]: text algorithms that know nothing of events: masking, repetition,
//!    tokens.
//! 3. [`tools`]: what tools and command lines do. [`facts`]: computes the facts of an
//!    event, once.
//! 4. [`detect`]: the detectors, one file each, pure state machines.
//! 5. [`policy`]: turns findings into at most one decision per event.
//! 6. [`rules`]: the operator's own rules, in CEL.
//! 7. [`engine`]: owns the sessions in a sharded map. Synchronous, never awaits.
//!    Builds observations and verdicts.
//! 8. [`secret`]: the key file, written by [`atomic_file`]. [`store`]: the durable side, a SQLite database.
//!    [`cluster`]: sessions that several replicas share. [`feed`]: a resumable subscription to verdicts.
//!    [`notify`]: webhooks.
//! 9. [`auth`]: tokens, roles and tenants. [`server`]: everything between the socket
//!    and a handler. [`api`]: the gRPC handlers. [`console`]: the HTTP side. [`ingest`]:
//!    what agent programs send, as events; [`hooks`]: the route that they call.
//! 10. [`telemetry`]: logs, metrics and traces. [`config`]: the layers of the
//!     configuration. [`app`]: binds, runs and drains the service. [`cli`]: the
//!     command line.
//!
//! [`pb`] is generated from `proto/` by the crate `unstuck-client`. ARCHITECTURE.md has the
//! invariants and the test that holds each.

#![forbid(unsafe_code)]

pub mod api;
pub mod app;
pub mod atomic_file;
pub mod auth;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod console;
pub mod detect;
pub mod domain;
pub mod engine;
pub mod facts;
pub mod feed;
pub mod hooks;
pub mod ingest;
pub mod notify;
pub mod policy;
pub mod rules;
pub mod secret;
pub mod server;
pub mod store;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod text;
pub mod tools;

pub use unstuck_client::pb;
