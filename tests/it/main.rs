//! Tests of the whole, in one binary.

mod layering;
mod play;
mod properties;
mod scenarios;
mod traces;
