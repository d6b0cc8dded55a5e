//! The key of a call, which clients can compute too.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a tool with its arguments: the first 16 bytes of a SHA-256. Printed as 32
/// hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallKey(pub [u8; 16]);

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}
