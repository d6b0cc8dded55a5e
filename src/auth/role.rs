//! Roles of tokens, and the access that a call requires.

use std::{fmt, str::FromStr};

use serde::Deserialize;

/// The rights of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// Sends events and receives verdicts.
    Broker,
    /// Reads sessions and verdicts.
    Viewer,
    /// Reads, and terminates, resets and snoozes sessions.
    Operator,
    /// May call everything.
    Admin,
}

impl TokenRole {
    pub const ALL: [Self; 4] = [Self::Broker, Self::Viewer, Self::Operator, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for TokenRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TokenRole {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let role = Self::ALL.into_iter().find(|role| role.name() == name);
        role.ok_or("a role is broker, viewer, operator or admin")
    }
}

/// The callers that may use a method or a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone, without a token.
    Public,
    /// Callers whose token has one of these roles.
    Roles(&'static [TokenRole]),
}

impl Access {
    pub fn allows(self, role: TokenRole) -> bool {
        match self {
            Self::Public => true,
            Self::Roles(roles) => roles.contains(&role),
        }
    }
}
