//! The service from outside: a real server over real sockets, and the binary.

mod harness;

mod bad_input;
mod deltas;
mod events;
mod lifecycle;
mod limits;
mod policy;
mod sessions;
mod terminate;
mod transport;
