use std::{borrow::Borrow, fmt, sync::Arc};

use serde::Deserialize;

use super::{IdError, sanitize};

/// Whose sessions they are. A session is its tenant and its id: no tenant sees
/// or touches another's. Without tokens there is one, the default.
///
/// It is kept as it stands at the beginning of every [`SessionId`]: a byte that
/// says how long the name is, then the name; the default's is not written. So a
/// key is one text, is hashed once, and begins with its tenant.
///
/// [`SessionId`]: super::SessionId
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Tenant(Arc<str>);

const DEFAULT: &str = "default";

impl Tenant {
    /// It stands in every key of a million tombstones; and it is less than 128,
    /// so that it is one character of one byte.
    pub const BYTES_MAX: usize = 64;

    pub fn parse(name: &str) -> Result<Self, IdError> {
        if name == DEFAULT {
            return Ok(Self::default());
        }
        let bytes = name.len();
        let length = u8::try_from(bytes).ok();
        let length = length.filter(|_| bytes <= Self::BYTES_MAX);
        match length {
            Some(0) => Err(IdError::Empty),
            None => Err(IdError::TooLong {
                bytes,
                bytes_max: Self::BYTES_MAX,
            }),
            Some(_) if name.chars().any(sanitize::is_unprintable) => Err(IdError::Unprintable),
            Some(length) => Ok(Self(format!("{}{name}", char::from(length)).into())),
        }
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

    /// What its keys begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.0
    }

    /// The tenant that a key begins with, and the rest of it.
    pub(super) fn split_key(key: &str) -> (&str, &str) {
        let length = key.as_bytes().first().copied().map_or(0, usize::from);
        key.split_at(1 + length)
    }

    pub(super) fn from_prefix(prefix: &str) -> Self {
        Self(prefix.into())
    }
}

/// The tenant of a session, without a copy: a key to look one up by.
#[derive(Clone, Copy, Debug)]
pub struct TenantKey<'a>(&'a str);

impl<'a> TenantKey<'a> {
    pub(super) fn new(prefix: &'a str) -> Self {
        Self(prefix)
    }

    /// As a map with tenants for keys takes it.
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
        let of = |name: &str, id: &str| SessionId::parse_for_tenant(&tenant(name), id).unwrap();
        let all = [
            of("default", "s"),
            of("a", "s"),
            of("as", "s"),
            of("a", "ss"),
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
