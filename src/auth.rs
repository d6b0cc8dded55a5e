//! Who calls, and what they may do: tokens, roles, tenants.
//!
//! One table says which role may do what, for gRPC and for HTTP alike; one
//! function finds the caller of an `Authorization` header. Without `[auth]`
//! there is one tenant, and everybody may do all.
//!
//! Uses: domain, telemetry.

mod role;
mod tokens;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::SystemTime,
};

use parking_lot::{Mutex, MutexGuard};

use arc_swap::ArcSwap;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::watch;

pub use role::{Access, TokenRole};
pub use tokens::{TokenLine, TokenSecret, TokensError};

use crate::{domain::Tenant, telemetry::Rejection};
use tokens::Tokens;

/// `[auth]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// Empty: nobody is asked who they are.
    pub tokens: PathBuf,
}

impl Settings {
    pub fn is_on(&self) -> bool {
        !self.tokens.as_os_str().is_empty()
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Empty: nobody was asked.
    pub name: Arc<str>,
    pub role: TokenRole,
    pub tenant: Tenant,
    /// The hash of the token, so that one that was replaced is not taken for the
    /// new one of the same name.
    token_hash: Option<blake3::Hash>,
}

impl Caller {
    /// Who calls where nobody is asked: made once, since every call is somebody's.
    pub fn anonymous() -> Self {
        static ANONYMOUS: LazyLock<Caller> = LazyLock::new(|| Caller {
            name: "".into(),
            role: TokenRole::Admin,
            tenant: Tenant::default(),
            token_hash: None,
        });
        ANONYMOUS.clone()
    }
}

/// Why a call is not answered. It never says which part of a token was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthError {
    #[error("a token is needed: send `authorization: Bearer TOKEN`")]
    NoToken,
    #[error("the token is not known here")]
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

/// The tokens of a service, as they are by now.
pub struct Auth {
    /// `None`: nobody is asked.
    file: Option<PathBuf>,
    tokens: ArcSwap<Tokens>,
    /// What the file looked like when it was read last.
    loaded_stamp: Mutex<Option<FileStamp>>,
    /// And when it was looked at last.
    checked_stamp: Mutex<Option<FileStamp>>,
    changes: watch::Sender<()>,
}

/// Tokens that were read and are not in force yet.
#[derive(Default)]
pub struct PendingTokens {
    tokens: Arc<Tokens>,
    stamp: Option<FileStamp>,
}

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
            changes: watch::Sender::new(()),
        };
        auth.reload()?;
        Ok(auth)
    }

    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the call of this header may do this, and who it is.
    pub fn authorize(
        &self,
        authorization: Option<&[u8]>,
        access: Access,
    ) -> Result<Caller, AuthError> {
        if !self.is_on() || access == Access::Public {
            return Ok(Caller::anonymous());
        }
        let caller = self.authenticate(authorization)?;
        match access.allows(caller.role) {
            true => Ok(caller),
            false => Err(AuthError::InsufficientRole(caller.role)),
        }
    }

    fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Caller, AuthError> {
        let authorization = authorization.ok_or(AuthError::NoToken)?;
        let token = tokens::parse_bearer(authorization).ok_or(AuthError::NoToken)?;
        let caller = self.tokens.load().find(token);
        caller.ok_or(AuthError::UnknownToken)
    }

    /// Waits until a caller is not the one any more that it was admitted as: its
    /// token was taken away, or has another role or tenant.
    pub async fn wait_until_revoked(&self, caller: &Caller) {
        let mut changes = self.changes.subscribe();
        while !self.is_on() || self.tokens.load().contains(caller) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the file, and changes nothing yet.
    pub fn read_tokens(&self) -> Result<PendingTokens, TokensError> {
        let Some(file) = &self.file else {
            return Ok(PendingTokens::default());
        };
        // Taken before it is read: who changes it meanwhile is noticed.
        let stamp = read_file_stamp(file).ok();
        let tokens = Arc::new(Tokens::read(file)?);
        Ok(PendingTokens { tokens, stamp })
    }

    /// Goes by what was read from now on. Only now was the file seen: what is
    /// read and not adopted is looked at again.
    pub fn apply_tokens(&self, PendingTokens { tokens, stamp }: PendingTokens) {
        *lock_stamp(&self.loaded_stamp) = stamp;
        self.tokens.store(tokens);
        self.changes.send_replace(());
    }

    fn reload(&self) -> Result<(), TokensError> {
        self.apply_tokens(self.read_tokens()?);
        Ok(())
    }

    /// Reads the file where it is another one than the one that was read, and the
    /// same as at the look before: in between it may be half written. `None`: it is
    /// not. A file that is not there for a moment is not looked at.
    pub fn reload_if_changed(&self) -> Option<Result<(), TokensError>> {
        let stamp = read_file_stamp(self.file.as_deref()?).ok()?;
        let previous = lock_stamp(&self.checked_stamp).replace(stamp);
        if *lock_stamp(&self.loaded_stamp) == Some(stamp) || previous != Some(stamp) {
            return None;
        }
        // One that makes no sense is complained of once.
        *lock_stamp(&self.loaded_stamp) = Some(stamp);
        Some(self.reload())
    }

    /// How many tenants have tokens; where nobody is asked there is one.
    pub fn tenant_count(&self) -> usize {
        self.tokens.load().tenant_count.max(1)
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens.load().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn lock_stamp(stamp: &Mutex<Option<FileStamp>>) -> MutexGuard<'_, Option<FileStamp>> {
    stamp.lock()
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
