//! Tests of the whole, in one binary: a file per behaviour.

mod layering;
mod play;
mod properties;
mod replay;
mod scenarios;
mod traces;
