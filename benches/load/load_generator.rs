//! An open-loop load generator, and a server that does nothing as the reference.

// The benchmark and its test each use a part of this.
#![allow(dead_code)]

pub mod bare_server;
pub mod drive;
pub mod mix;
pub mod pacer;
pub mod raw;
