//! Tests of the whole, in one binary.

mod play;
mod traces;
