//! Ids of sessions, agents, verdicts and loops.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Tenant, TenantKey, clock, sanitize};

/// A session's id: its tenant, and an id chosen by the caller. The caller's id is
/// printable, without white space and 1 to 256 bytes long, so that it is safe in
/// logs, file names and URLs. Only that part is ever shown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(Arc<str>);

impl SessionId {
    pub const BYTES_MAX: usize = 256;

    /// Parses an id of the default tenant, for code without tenants such as a
    /// replay.
    pub fn parse(id: &str) -> Result<Self, IdError> {
        Self::parse_for_tenant(&Tenant::default(), id)
    }

    pub fn parse_for_tenant(tenant: &Tenant, id: &str) -> Result<Self, IdError> {
        if id.is_empty() {
            return Err(IdError::Empty);
        }
        if id.len() > Self::BYTES_MAX {
            return Err(IdError::TooLong {
                bytes: id.len(),
                bytes_max: Self::BYTES_MAX,
            });
        }
        if id.bytes().all(|byte| byte.is_ascii_graphic())
            || !id.chars().any(sanitize::is_unprintable)
        {
            Ok(Self([tenant.prefix(), id].concat().into()))
        } else {
            Err(IdError::Unprintable)
        }
    }

    /// A placeholder, which equals no id.
    pub(super) fn placeholder() -> Self {
        Self(Arc::from("\0"))
    }

    /// The id, without its tenant.
    pub fn as_str(&self) -> &str {
        Tenant::split_key(&self.0).1
    }

    pub fn belongs_to(&self, tenant: &Tenant) -> bool {
        self.0.starts_with(tenant.prefix())
    }

    /// Whether the session belongs to the default tenant, whose name is stored as
    /// zero bytes.
    #[inline]
    pub fn is_of_default_tenant(&self) -> bool {
        self.0.as_bytes().first() == Some(&0)
    }

    pub fn tenant_key(&self) -> TenantKey<'_> {
        TenantKey::new(Tenant::split_key(&self.0).0)
    }

    pub fn tenant(&self) -> Tenant {
        Tenant::from_prefix(Tenant::split_key(&self.0).0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why an id is invalid. The id is not part of the message, because it is untrusted
/// and may contain control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IdError {
    #[error("must not be empty")]
    Empty,
    #[error("has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLong { bytes: usize, bytes_max: usize },
    #[error("must be printable and without white space")]
    Unprintable,
}

/// An agent's id within its session; empty for the main agent.
///
/// The empty id is stored as `None`, because ids are compared on every event and
/// `memcmp` of two empty strings is slower than comparing two `None`s.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct AgentId(Option<Box<str>>);

impl AgentId {
    pub fn new(id: &str) -> Self {
        Self((!id.is_empty()).then(|| id.into()))
    }

    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    pub fn is_main(&self) -> bool {
        self.0.is_none()
    }
}

/// Hashes the text, because loop ids are derived from it.
impl Hash for AgentId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<String> for AgentId {
    fn from(id: String) -> Self {
        Self((!id.is_empty()).then(|| id.into()))
    }
}

impl From<AgentId> for String {
    fn from(id: AgentId) -> Self {
        id.0.unwrap_or_default().into_string()
    }
}

/// A verdict's id, a version 7 UUID. Its text form sorts by time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct VerdictId(pub u128);

impl VerdictId {
    /// The bits below the 48 bits of milliseconds that begin a version 7 UUID.
    const RANDOM_BITS: u32 = 80;

    /// When the verdict was issued, by the service's clock. The verdict's own time
    /// is the event's, which a client can set freely.
    pub fn time(self) -> SystemTime {
        let millis = u64::try_from(self.0 >> Self::RANDOM_BITS).unwrap_or(u64::MAX);
        UNIX_EPOCH + Duration::from_millis(millis)
    }

    /// An id before those of all verdicts issued at this time or later.
    pub fn lower_bound_at(time: SystemTime) -> Self {
        Self(u128::from(clock::millis(time)) << Self::RANDOM_BITS)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let uuid = uuid::Uuid::try_parse(text).ok()?;
        Some(Self(uuid.as_u128()))
    }
}

impl fmt::Display for VerdictId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

/// A loop's id, independent of the detector that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LoopId(pub u64);

impl fmt::Display for LoopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(id: &str, expected: Result<(), IdError>) {
        assert_eq!(SessionId::parse(id).map(|_| ()), expected);
    }

    #[test]
    fn a_session_id_is_printable_and_bounded() {
        check("a", Ok(()));
        check("tau_bench/airline/gpt-4o:1", Ok(()));
        check("größe-漢", Ok(()));
        check("", Err(IdError::Empty));
        check("a b", Err(IdError::Unprintable));
        check("a\u{a0}b", Err(IdError::Unprintable));
        check("a\u{202e}b", Err(IdError::Unprintable));
        check("a\u{200b}b", Err(IdError::Unprintable));
        for unseen in "\u{34f}\u{115f}\u{1160}\u{180b}\u{180f}\u{206a}\u{206f}\u{3164}\u{fe00}\
                       \u{fe0f}\u{ffa0}\u{e0100}\u{e01ef}"
            .chars()
        {
            check(&format!("a{unseen}b"), Err(IdError::Unprintable));
        }
        check("a\x1bb", Err(IdError::Unprintable));
        check("a\0", Err(IdError::Unprintable));
        check(&"x".repeat(256), Ok(()));
        check(
            &"x".repeat(257),
            Err(IdError::TooLong {
                bytes: 257,
                bytes_max: 256,
            }),
        );
    }

    #[test]
    fn a_verdict_id_prints_as_a_uuid() {
        let id = VerdictId(0x0123_4567_89ab_7def_8123_4567_89ab_cdef);
        assert_eq!(id.to_string(), "01234567-89ab-7def-8123-456789abcdef");
        assert_eq!(VerdictId::parse(&id.to_string()), Some(id));
        assert_eq!(VerdictId::parse("7"), None);
    }

    #[test]
    fn a_verdict_id_contains_the_time_of_issue() {
        let time = UNIX_EPOCH + Duration::from_millis(1_767_225_600_123);
        assert_eq!(VerdictId::lower_bound_at(time).time(), time);
    }
}
