//! The file of tokens: one line per token, with its hash only.
//!
//! A token is 256 random bits, so its plain hash cannot be inverted, and the file is not
//! secret.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use blake3::Hash;
use serde::Deserialize;
use thiserror::Error;

use super::{Caller, TokenRole};
use crate::domain::{Tenant, sanitize};

/// The prefix of every token, so that secret scanners recognise a leaked one.
const PREFIX: &str = "unstuck_";
const HASH_PREFIX: &str = "blake3:";
/// A longer token is not one of ours and is not hashed.
const TOKEN_BYTES_MAX: usize = 256;
/// All tokens are compared, so that the time reveals nothing: 1,024 take about 10
/// microseconds.
const TOKENS_MAX: usize = 1_024;
/// Names are written to the audit log.
const NAME_BYTES_MAX: usize = 128;
/// A hundred times the size of `TOKENS_MAX` tokens.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a file of tokens is rejected.
#[derive(Debug, Error)]
pub enum TokensError {
    #[error("cannot read {}: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("{}{}: {reason}", file.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        file: PathBuf,
        line: Option<usize>,
        reason: String,
    },
    /// Only while the service runs: it may be started with a file to fill later.
    #[error("{} has no tokens", file.display())]
    Empty { file: PathBuf },
}

impl TokensError {
    /// The error without the path and the content of the file.
    pub(super) fn problem(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "is missing or cannot be read",
            Self::Invalid { .. } => "is invalid",
            Self::Empty { .. } => "has no tokens",
        }
    }
}

/// The value of a line of the file; its key is the name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRow {
    role: TokenRole,
    #[serde(default)]
    tenant: Tenant,
    hash: String,
}

/// The content of a file of tokens.
#[derive(Default)]
pub(super) struct Tokens {
    callers: Vec<Caller>,
    /// The number of tenants that have a token.
    pub tenant_count: usize,
}

impl Tokens {
    pub fn read(file: &Path) -> Result<Self, TokensError> {
        let text = read_bounded(file).map_err(|source| TokensError::Unreadable {
            file: file.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|(line, reason)| TokensError::Invalid {
            file: file.to_owned(),
            line,
            reason,
        })
    }

    /// The error is the line, if it is known, and the reason.
    pub fn parse(toml: &str) -> Result<Self, (Option<usize>, String)> {
        let rows: BTreeMap<String, TokenRow> = toml::from_str(toml).map_err(|error| {
            let line = error.span().map(|span| {
                let before = toml.get(..span.start).unwrap_or(toml);
                1 + before.matches('\n').count()
            });
            (line, error.message().to_owned())
        })?;
        if rows.len() > TOKENS_MAX {
            let reason = format!("{} tokens, at most {TOKENS_MAX}", rows.len());
            return Err((None, reason));
        }
        let mut callers: Vec<Caller> = Vec::with_capacity(rows.len());
        for (name, row) in rows {
            let caller = row.into_caller(&name).map_err(|reason| (None, reason))?;
            if let Some(other) = callers
                .iter()
                .find(|other| other.token_hash == caller.token_hash)
            {
                let reason = format!("{name:?} and {:?} are the same token", other.name);
                return Err((None, reason));
            }
            callers.push(caller);
        }
        let tenants: BTreeSet<_> = callers.iter().map(|caller| &caller.tenant).collect();
        Ok(Self {
            tenant_count: tenants.len(),
            callers,
        })
    }

    /// The caller of a token. The time does not depend on the token: comparing two hashes
    /// takes constant time, and the token is compared with all of them.
    pub fn find(&self, token: &[u8]) -> Option<Caller> {
        let hash = Some(blake3::hash(token));
        let mut found = None;
        for caller in &self.callers {
            if caller.token_hash == hash {
                found = Some(caller);
            }
        }
        found.cloned()
    }

    pub fn contains(&self, caller: &Caller) -> bool {
        self.callers.contains(caller)
    }

    pub fn len(&self) -> usize {
        self.callers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }
}

impl TokenRow {
    fn into_caller(self, name: &str) -> Result<Caller, String> {
        let bytes = name.len();
        if bytes == 0 || bytes > NAME_BYTES_MAX || name.chars().any(sanitize::is_unprintable) {
            return Err(format!(
                "{name:?}: a name is printable, without white space, 1 to {NAME_BYTES_MAX} bytes"
            ));
        }
        let hex = self.hash.strip_prefix(HASH_PREFIX);
        let hash = hex
            .and_then(|hex| Hash::from_hex(hex).ok())
            .ok_or_else(|| {
                format!("{name:?}: the hash is `{HASH_PREFIX}` and 64 hexadecimal digits")
            })?;
        Ok(Caller {
            name: name.into(),
            role: self.role,
            tenant: self.tenant,
            token_hash: Some(hash),
            peer: None,
        })
    }
}

fn read_bounded(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("larger than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}

/// The token of an `Authorization` header.
pub(super) fn parse_bearer(authorization: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, rest) = authorization.split_at_checked(SCHEME.len())?;
    let token = rest.trim_ascii();
    let is_valid = !token.is_empty() && token.len() <= TOKEN_BYTES_MAX;
    (scheme.eq_ignore_ascii_case(SCHEME) && is_valid).then_some(token)
}

/// A new token. It is shown once and not stored.
pub struct TokenSecret(String);

impl TokenSecret {
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut random_bytes = [0; 32];
        getrandom::fill(&mut random_bytes)?;
        Ok(Self(format!(
            "{PREFIX}{}",
            URL_SAFE_NO_PAD.encode(random_bytes)
        )))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> String {
        format!("{HASH_PREFIX}{}", blake3::hash(self.0.as_bytes()).to_hex())
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

/// The line of a token in the file.
#[derive(Debug)]
pub struct TokenLine(String);

impl TokenLine {
    /// Fails with the reason why a file with this line would be rejected.
    pub fn new(
        name: &str,
        role: TokenRole,
        tenant: &Tenant,
        secret: &TokenSecret,
    ) -> Result<Self, String> {
        let row = TokenRow {
            role,
            tenant: tenant.clone(),
            hash: secret.hash(),
        };
        row.clone().into_caller(name)?;
        let TokenRow { hash, .. } = row;
        let [name, tenant] = [name, tenant.name()].map(|text| toml::Value::from(text).to_string());
        Ok(Self(format!(
            "{name} = {{ role = \"{role}\", tenant = {tenant}, hash = \"{hash}\" }}"
        )))
    }
}

impl fmt::Display for TokenLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
