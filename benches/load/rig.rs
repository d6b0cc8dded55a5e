//! What drives a server and measures it: an open-loop load generator and a
//! server that does nothing, to measure against.

// The benchmark and its test use a part each.
#![allow(dead_code)]

pub mod drive;
pub mod floor;
pub mod mix;
pub mod pacer;
pub mod raw;
