//! Tenants, and how they are part of session keys.

use std::{borrow::Borrow, fmt, sync::Arc};

use serde::Deserialize;

use super::{IdError, sanitize};

/// The owner of sessions. A session is identified by its tenant and its id, and no
/// tenant can see or change the sessions of another. Without tokens there is one
/// tenant, the default.
///
/// It is stored as the prefix of every [`SessionId`]: one byte with the length of
/// the name, then the name. The default tenant's name is stored as empty. A session
/// key is therefore one string, is hashed once, and begins with its tenant.
///
/// [`SessionId`]: super::SessionId
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Tenant(Arc<str>);

const DEFAULT: &str = "default";

impl Tenant {
    /// The name is part of every key of a million tombstones. The bound is below
    /// 128, so that the length is one character of one byte.
    pub const BYTES_MAX: usize = 64;

    pub fn parse(name: &str) -> Result<Self, IdError> {
        if name == DEFAULT {
            return Ok(Self::default());
        }
        if name.is_empty() {
            return Err(IdError::Empty);
        }
        let bytes = name.len();
        let too_long = IdError::TooLong {
            bytes,
            bytes_max: Self::BYTES_MAX,
        };
        let length = u8::try_from(bytes).map_err(|_| too_long)?;
        if bytes > Self::BYTES_MAX {
            return Err(too_long);
        }
        if name.chars().any(sanitize::is_unprintable) {
            return Err(IdError::Unprintable);
        }
        Ok(Self(format!("{}{name}", char::from(length)).into()))
    }

    pub fn name(&self) -> &str {
        match &self.0[1..] {
            "" => DEFAULT,
            name => name,
        }
    }

    pub fn is_default(&self) -> bool {
        self.0.len() == 1
    }

    /// The prefix of the tenant's session keys.
    pub(super) fn prefix(&self) -> &str {
        &self.0
    }

    /// Splits a session key into the tenant's prefix and the caller's id.
    pub(super) fn split_key(key: &str) -> (&str, &str) {
        let length = key.as_bytes().first().copied().map_or(0, usize::from);
        key.split_at(1 + length)
    }

    pub(super) fn from_prefix(prefix: &str) -> Self {
        Self(prefix.into())
    }
}

/// The tenant of a session, borrowed from its key: for look-ups without a copy.
#[derive(Clone, Copy, Debug)]
pub struct TenantKey<'a>(&'a str);

impl<'a> TenantKey<'a> {
    pub(super) fn new(prefix: &'a str) -> Self {
        Self(prefix)
    }

    /// The key for a map whose keys are tenants.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

impl Borrow<str> for Tenant {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("\0".into())
    }
}

impl TryFrom<String> for Tenant {
    type Error = IdError;

    fn try_from(name: String) -> Result<Self, IdError> {
        Self::parse(&name)
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.name(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::SessionId;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).unwrap()
    }

    #[test]
    fn the_same_id_of_two_tenants_is_two_sessions() {
        let session =
            |name: &str, id: &str| SessionId::parse_for_tenant(&tenant(name), id).unwrap();
        let all = [
            session("default", "s"),
            session("a", "s"),
            session("as", "s"),
            session("a", "ss"),
        ];
        for (n, one) in all.iter().enumerate() {
            for (m, other) in all.iter().enumerate() {
                assert_eq!(one == other, n == m, "{one:?} {other:?}");
            }
        }
        assert_eq!(all[1].as_str(), "s");
        assert_eq!(all[1].tenant(), tenant("a"));
        assert!(all[2].belongs_to(&tenant("as")) && !all[2].belongs_to(&tenant("a")));
        assert_eq!(all[0], SessionId::parse("s").unwrap());
        assert!(all[0].tenant().is_default());
    }

    #[test]
    fn a_tenant_is_printable_and_bounded() {
        assert_eq!(tenant("größe").name(), "größe");
        assert_eq!(tenant("default").name(), "default");
        let long = "x".repeat(64);
        assert_eq!(tenant(&long).name(), long);
        for bad in ["", "a b", "a\n", &"x".repeat(65), &"x".repeat(300)] {
            assert!(Tenant::parse(bad).is_err(), "{bad:?}");
        }
    }
}
