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
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::watch;

pub use role::{Access, Role};
pub use tokens::{Entry, Secret, TokensError};

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
    pub role: Role,
    pub tenant: Tenant,
    /// The hash of the token, so that one that was replaced is not taken for the
    /// new one of the same name.
    token: Option<blake3::Hash>,
}

impl Caller {
    /// Who calls where nobody is asked: made once, since every call is somebody's.
    pub fn anybody() -> Self {
        static ANYBODY: LazyLock<Caller> = LazyLock::new(|| Caller {
            name: "".into(),
            role: Role::Admin,
            tenant: Tenant::default(),
            token: None,
        });
        ANYBODY.clone()
    }
}

/// Why a call is not answered. It never says which part of a token was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    #[error("a token is needed: send `authorization: Bearer TOKEN`")]
    NoToken,
    #[error("the token is not known here")]
    UnknownToken,
    #[error("the role {} may not do this", .0.name())]
    Role(Role),
}

impl Denied {
    pub fn rejection(self) -> Rejection {
        match self {
            Self::NoToken | Self::UnknownToken => Rejection::Unauthenticated,
            Self::Role(_) => Rejection::PermissionDenied,
        }
    }
}

/// The tokens of a service, as they are by now.
pub struct Auth {
    /// `None`: nobody is asked.
    file: Option<PathBuf>,
    tokens: ArcSwap<Tokens>,
    /// What the file looked like when it was read last.
    seen: Mutex<Option<Stamp>>,
    /// And when it was looked at last.
    looked: Mutex<Option<Stamp>>,
    changes: watch::Sender<()>,
}

/// Tokens that were read and are not in force yet.
#[derive(Default)]
pub struct Fresh {
    tokens: Arc<Tokens>,
    stamp: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
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
            seen: Mutex::default(),
            looked: Mutex::default(),
            changes: watch::Sender::new(()),
        };
        auth.reload()?;
        Ok(auth)
    }

    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the call of this header may do this, and who it is.
    pub fn admit(&self, authorization: Option<&[u8]>, access: Access) -> Result<Caller, Denied> {
        if !self.is_on() || access == Access::Public {
            return Ok(Caller::anybody());
        }
        let caller = self.caller(authorization)?;
        match access.allows(caller.role) {
            true => Ok(caller),
            false => Err(Denied::Role(caller.role)),
        }
    }

    fn caller(&self, authorization: Option<&[u8]>) -> Result<Caller, Denied> {
        let authorization = authorization.ok_or(Denied::NoToken)?;
        let token = tokens::bearer(authorization).ok_or(Denied::NoToken)?;
        let found = self.tokens.load().find(token);
        found.ok_or(Denied::UnknownToken)
    }

    /// Waits until a caller is not the one any more that it was admitted as: its
    /// token was taken away, or has another role or tenant.
    pub async fn revoked(&self, caller: &Caller) {
        let mut changes = self.changes.subscribe();
        while !self.is_on() || self.tokens.load().has(caller) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the file, and changes nothing yet.
    pub fn read(&self) -> Result<Fresh, TokensError> {
        let Some(file) = &self.file else {
            return Ok(Fresh::default());
        };
        // Taken before it is read: who changes it meanwhile is noticed.
        let stamp = stamp(file).ok();
        let tokens = Arc::new(Tokens::read(file)?);
        Ok(Fresh { tokens, stamp })
    }

    /// Goes by what was read from now on. Only now was the file seen: what is
    /// read and not adopted is looked at again.
    pub fn adopt(&self, Fresh { tokens, stamp }: Fresh) {
        *lock(&self.seen) = stamp;
        self.tokens.store(tokens);
        self.changes.send_replace(());
    }

    fn reload(&self) -> Result<(), TokensError> {
        self.adopt(self.read()?);
        Ok(())
    }

    /// Reads the file where it is another one than the one that was read, and the
    /// same as at the look before: in between it may be half written. `None`: it is
    /// not. A file that is not there for a moment is not looked at.
    pub fn reload_if_changed(&self) -> Option<Result<(), TokensError>> {
        let stamp = stamp(self.file.as_deref()?).ok()?;
        let before = lock(&self.looked).replace(stamp);
        if *lock(&self.seen) == Some(stamp) || before != Some(stamp) {
            return None;
        }
        // One that makes no sense is complained of once.
        *lock(&self.seen) = Some(stamp);
        Some(self.reload())
    }

    /// How many tenants have tokens; where nobody is asked there is one.
    pub fn tenants(&self) -> usize {
        self.tokens.load().tenants.max(1)
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens.load().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn lock(stamp: &Mutex<Option<Stamp>>) -> MutexGuard<'_, Option<Stamp>> {
    stamp.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stamp(file: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(file)?;
    Ok(Stamp {
        modified: metadata.modified().ok(),
        bytes: metadata.len(),
        #[cfg(unix)]
        inode: std::os::unix::fs::MetadataExt::ino(&metadata),
    })
}

#[cfg(test)]
mod tests;
