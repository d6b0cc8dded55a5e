//! Tests of the whole, in one binary: a file per behaviour.

mod harness;
mod play;

mod bad_input;
mod deltas;
mod events;
mod layering;
mod lifecycle;
mod limits;
mod policy;
mod properties;
mod replay;
mod scenarios;
mod sessions;
mod terminate;
mod traces;
mod transport;
