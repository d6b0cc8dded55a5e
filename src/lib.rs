#![forbid(unsafe_code)]

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod console;
pub mod detect;
pub mod domain;
pub mod engine;
pub mod facts;
pub mod feed;
pub mod pb;
pub mod policy;
pub mod telemetry;
