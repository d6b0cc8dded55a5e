//! Authentication and authorization: tokens, roles, tenants.
//!
//! `server::rpc` has one table with the access of every gRPC method and HTTP route.
//! [`Auth::authorize`] finds the caller of an `Authorization` header and checks its role.
//! Without `[auth]` there is one tenant, and every caller has full access.
//!
//! Uses: domain, telemetry.

mod peer;
mod role;
mod tokens;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::watch;

pub use peer::PeerAddress;
pub use role::{Access, TokenRole};
pub use tokens::{TokenLine, TokenSecret, TokensError};

use crate::{domain::Tenant, telemetry::Rejection};
use tokens::Tokens;

/// `[auth]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// The file of tokens. Empty: no authentication.
    pub tokens: PathBuf,
}

impl Settings {
    pub fn is_on(&self) -> bool {
        !self.tokens.as_os_str().is_empty()
    }
}

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Empty without authentication.
    pub name: Arc<str>,
    pub role: TokenRole,
    pub tenant: Tenant,
    /// The hash of the token: a replaced token differs from the new one of the same name.
    token_hash: Option<blake3::Hash>,
    /// The address of a caller without a token, if it is known.
    peer: Option<PeerAddress>,
}

/// Identifies a caller by its token, or by its address if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallerKey {
    Token(blake3::Hash),
    Peer(Option<PeerAddress>),
}

impl Caller {
    /// The caller without authentication. Created once, because every call needs one.
    pub fn anonymous() -> Self {
        static ANONYMOUS: LazyLock<Caller> = LazyLock::new(|| Caller {
            name: "".into(),
            role: TokenRole::Admin,
            tenant: Tenant::default(),
            token_hash: None,
            peer: None,
        });
        ANONYMOUS.clone()
    }

    /// A caller without a token gets the address of its connection.
    pub fn with_peer(mut self, peer: Option<PeerAddress>) -> Self {
        if self.token_hash.is_none() {
            self.peer = peer;
        }
        self
    }

    pub fn key(&self) -> CallerKey {
        self.token_hash
            .map_or(CallerKey::Peer(self.peer), CallerKey::Token)
    }
}

/// Why a call is refused. The message never says which part of a token is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthError {
    #[error("a token is required: send `authorization: Bearer TOKEN`")]
    NoToken,
    #[error("unknown token")]
    UnknownToken,
    #[error("the role {} may not do this", .0.name())]
    InsufficientRole(TokenRole),
}

impl AuthError {
    pub fn rejection(self) -> Rejection {
        match self {
            Self::NoToken | Self::UnknownToken => Rejection::Unauthenticated,
            Self::InsufficientRole(_) => Rejection::PermissionDenied,
        }
    }
}

/// The tokens in force, reloaded when their file changes.
pub struct Auth {
    /// `None`: no authentication.
    file: Option<PathBuf>,
    tokens: ArcSwap<Tokens>,
    /// The file when it was last loaded. `None`: it was missing.
    loaded_stamp: Mutex<Option<FileStamp>>,
    /// The file when it was last checked for changes. `None`: it was missing.
    checked_stamp: Mutex<Option<FileStamp>>,
    /// Why the present version of the file is not in force.
    file_problem: Mutex<Option<&'static str>>,
    changes: watch::Sender<()>,
}

/// Tokens that have been read and are not in force yet.
#[derive(Default)]
pub struct PendingTokens {
    tokens: Arc<Tokens>,
    stamp: Option<FileStamp>,
}

/// Identifies a version of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Auth {
    pub fn new(settings: &Settings) -> Result<Self, TokensError> {
        let file = settings.is_on().then(|| settings.tokens.clone());
        let auth = Self {
            file,
            tokens: ArcSwap::default(),
            loaded_stamp: Mutex::default(),
            checked_stamp: Mutex::default(),
            file_problem: Mutex::default(),
            changes: watch::Sender::new(()),
        };
        auth.reload()?;
        Ok(auth)
    }

    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the caller of an `Authorization` header, if its role has this access.
    pub fn authorize(
        &self,
        authorization: Option<&[u8]>,
        access: Access,
    ) -> Result<Caller, AuthError> {
        if !self.is_on() || access == Access::Public {
            return Ok(Caller::anonymous());
        }
        let caller = self.authenticate(authorization)?;
        if !access.allows(caller.role) {
            return Err(AuthError::InsufficientRole(caller.role));
        }
        Ok(caller)
    }

    fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Caller, AuthError> {
        let token = authorization
            .and_then(tokens::parse_bearer)
            .ok_or(AuthError::NoToken)?;
        let caller = self.tokens.load().find(token);
        caller.ok_or(AuthError::UnknownToken)
    }

    /// Waits until the token of a caller is removed or has another role or tenant.
    pub async fn wait_until_revoked(&self, caller: &Caller) {
        let mut changes = self.changes.subscribe();
        while !self.is_on() || self.tokens.load().contains(caller) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the file without applying it.
    pub fn read_tokens(&self) -> Result<PendingTokens, TokensError> {
        let Some(file) = &self.file else {
            return Ok(PendingTokens::default());
        };
        // Taken before the file is read, so that a change during the read is noticed.
        let stamp = read_file_stamp(file).ok();
        let tokens = Arc::new(Tokens::read(file)?);
        // Without tokens no call would be accepted, not even one that repairs it.
        if tokens.is_empty() && !self.is_empty() {
            return Err(TokensError::Empty { file: file.clone() });
        }
        Ok(PendingTokens { tokens, stamp })
    }

    /// Puts tokens into force. Only now does the file count as loaded: a file that is read
    /// and not applied is read again.
    pub fn apply_tokens(&self, PendingTokens { tokens, stamp }: PendingTokens) {
        *self.loaded_stamp.lock() = stamp;
        *self.file_problem.lock() = None;
        self.tokens.store(tokens);
        self.changes.send_replace(());
    }

    fn reload(&self) -> Result<(), TokensError> {
        self.apply_tokens(self.read_tokens()?);
        Ok(())
    }

    /// Reloads the file if it has changed since it was loaded and not since the previous
    /// check: a file that is still changing may be half written, and one that is replaced
    /// may be missing for a moment. `None`: it was not reloaded. If it cannot be loaded,
    /// the former tokens stay in force.
    pub fn reload_if_changed(&self) -> Option<Result<(), TokensError>> {
        let stamp = read_file_stamp(self.file.as_deref()?).ok();
        let previous = std::mem::replace(&mut *self.checked_stamp.lock(), stamp);
        if *self.loaded_stamp.lock() == stamp || previous != stamp {
            return None;
        }
        // Set before the reload, so that a missing or invalid file is reported once.
        *self.loaded_stamp.lock() = stamp;
        let reloaded = self.reload();
        if let Err(error) = &reloaded {
            *self.file_problem.lock() = Some(error.problem());
        }
        Some(reloaded)
    }

    /// The problem of the file since its last change, while tokens loaded before are in
    /// force. It names no path and no token, because health probes are public.
    pub fn file_problem(&self) -> Option<&'static str> {
        *self.file_problem.lock()
    }

    /// The number of tenants with tokens; 1 without authentication.
    pub fn tenant_count(&self) -> usize {
        self.tokens.load().tenant_count.max(1)
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.load().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn read_file_stamp(file: &Path) -> io::Result<FileStamp> {
    let metadata = fs::metadata(file)?;
    Ok(FileStamp {
        modified: metadata.modified().ok(),
        bytes: metadata.len(),
        #[cfg(unix)]
        inode: std::os::unix::fs::MetadataExt::ino(&metadata),
    })
}

#[cfg(test)]
mod tests;
