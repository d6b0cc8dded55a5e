#![forbid(unsafe_code)]

pub mod domain;
pub mod pb;
