//! The names of keys. Those of a session have one hash tag, so that a Redis cluster keeps
//! them together.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::domain::SessionId;

/// Braces would end the hash tag.
const IN_ID: &AsciiSet = &CONTROLS.add(b'%').add(b'{').add(b'}');
const IN_TENANT: &AsciiSet = &IN_ID.add(b'/');

/// What stands for a session in the names of its keys: its tenant and its id.
pub fn session_key(session: &SessionId) -> String {
    let tenant = session.tenant();
    format!(
        "{}/{}",
        utf8_percent_encode(tenant.name(), IN_TENANT),
        utf8_percent_encode(session.as_str(), IN_ID)
    )
}

/// The names of all keys.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub fn owner(&self, session: &SessionId) -> String {
        format!("{}:{{{}}}:o", self.prefix, session_key(session))
    }

    /// Followed by `<epoch> <owner>`.
    pub fn state_prefix(&self, session: &SessionId) -> String {
        format!("{}:{{{}}}:s:", self.prefix, session_key(session))
    }

    pub fn acts_of(&self, session: &SessionId) -> String {
        format!("{}:{{{}}}:a", self.prefix, session_key(session))
    }

    /// A key of the whole cluster.
    pub fn shared(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Tenant;

    #[test]
    fn no_two_sessions_have_the_same_keys_and_braces_end_no_hash_tag() {
        let session = |tenant: &str, id: &str| {
            SessionId::parse_for_tenant(&Tenant::parse(tenant).unwrap(), id).unwrap()
        };
        let ids = [
            session("a", "b/c"),
            session("a/b", "c"),
            session("default", "}x{"),
            session("default", "%7Dx%7B"),
        ];
        let keys = Keys::new("p");
        let owners: std::collections::BTreeSet<String> =
            ids.iter().map(|id| keys.owner(id)).collect();
        assert_eq!(owners.len(), ids.len());
        for key in owners {
            let tag = key
                .split('{')
                .nth(1)
                .and_then(|rest| rest.split('}').next());
            assert!(tag.is_some_and(|tag| !tag.is_empty()), "{key}");
            assert_eq!(key.matches(['{', '}']).count(), 2);
        }
    }
}
