//! Tests of the whole, in one binary.

mod layering;
mod play;
mod scenarios;
mod traces;
