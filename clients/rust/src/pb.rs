//! The generated messages and services of `proto/unstuck/v1`.
#![allow(clippy::all, clippy::pedantic)]

mod number;

tonic::include_proto!("unstuck.v1");
include!(concat!(env!("OUT_DIR"), "/unstuck.v1.serde.rs"));

/// For server reflection, and for tests that walk over every rpc.
#[cfg(feature = "server")]
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/unstuck.binpb"));
