//! The gRPC client of Unstuck, for a broker in Rust: the program between an agent and its
//! tools. It sends each finished call and acts on the answer.
//!
//! ```no_run
//! use unstuck_client::{Client, Options, pb};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect_lazy(&Options::new("127.0.0.1:50551"))?;
//! let call = pb::ToolCall {
//!     tool: "read_file".into(),
//!     arguments: Some(pb::tool_call::Arguments::ArgsJson(r#"{"path": "a.rs"}"#.into())),
//!     outcome: pb::Outcome::Ok.into(),
//!     result: Some("fn main() {}".into()),
//!     ..Default::default()
//! };
//! let event = pb::Event {
//!     session_id: "demo".into(),
//!     body: Some(pb::event::Body::ToolCall(call)),
//!     ..Default::default()
//! };
//! // An error means: continue without an answer.
//! if let Ok(result) = client.record(event).await {
//!     println!("{:?}", result.action());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Client::detection`] and [`Client::sessions`] have every rpc, streams included.

#![forbid(unsafe_code)]

pub mod call_key;
mod client;
mod connection;
pub mod pb;

pub use call_key::{CallKey, call_key};
pub use client::{Authorized, Client, DEADLINE};
pub use connection::{Credentials, InvalidOptions, Options};
