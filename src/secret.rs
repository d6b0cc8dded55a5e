//! The secret of a service: a file with 256 random bits, from which the key of signatures
//! and the key that seals frozen sessions are derived.
//!
//! Uses: atomic_file, domain, text.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use thiserror::Error;

use crate::{
    atomic_file::{self, Durability},
    domain::SessionId,
    text::KeySeeds,
};

/// 256 random bits. They decrypt what was sealed.
pub struct Secret([u8; SECRET_BYTES]);

const SECRET_BYTES: usize = 32;
/// Two digits per byte and a line break.
const FILE_BYTES_MAX: u64 = 2 * SECRET_BYTES as u64 + 1;

/// Why a secret cannot be used.
#[derive(Debug, Error)]
pub enum KeyFileError {
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} must have 64 hexadecimal digits", path.display())]
    Format { path: PathBuf },
    #[error("{} can be read by others: chmod 600 it", path.display())]
    Exposed { path: PathBuf },
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

impl Secret {
    /// Reads the file, or creates it if it is missing.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyFileError> {
        let io_error = |source| KeyFileError::Io {
            path: path.to_owned(),
            source,
        };
        match File::open(path) {
            Ok(file) => Self::read(file, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let secret = Self::random()?;
                secret.write(path).map_err(io_error)?;
                Ok(secret)
            }
            Err(error) => Err(io_error(error)),
        }
    }

    /// Reads the file, which must be there: others have the same.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        let file = File::open(path).map_err(|source| KeyFileError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::read(file, path)
    }

    /// A key for this purpose.
    pub fn derive(&self, purpose: &str, salt: &[u8]) -> [u8; SECRET_BYTES] {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0).update(salt);
        *hasher.finalize().as_bytes()
    }

    #[cfg(test)]
    pub fn for_test(byte: u8) -> Self {
        Self([byte; SECRET_BYTES])
    }

    fn random() -> Result<Self, KeyFileError> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    fn read(file: File, path: &Path) -> Result<Self, KeyFileError> {
        let path = path.to_owned();
        let mut text = String::new();
        let read = file.metadata().and_then(|metadata| {
            (&file).take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
            Ok(metadata)
        });
        let metadata = match read {
            Ok(metadata) => metadata,
            Err(source) => return Err(KeyFileError::Io { path, source }),
        };
        let mode = metadata.permissions().mode();
        let process_user = rustix::process::geteuid().as_raw();
        if is_exposed(mode, metadata.uid() == process_user) {
            return Err(KeyFileError::Exposed { path });
        }
        parse_hex(text.trim_end())
            .map(Self)
            .ok_or(KeyFileError::Format { path })
    }

    /// Writes a file that only its owner can read. It is complete once it has its name.
    fn write(&self, path: &Path) -> io::Result<()> {
        let line = format!("{}\n", blake3::Hash::from_bytes(self.0).to_hex());
        atomic_file::replace(path, line.as_bytes(), 0o600, Durability::Synced)
    }

    /// The seeds of the key of signatures, so that signatures of an earlier process match.
    pub fn signature_seeds(&self) -> KeySeeds {
        let derived = blake3::derive_key("unstuck 2026-11 signatures", &self.0);
        let (seeds, _) = derived.as_chunks::<8>();
        KeySeeds([seeds[0], seeds[1]].map(u64::from_le_bytes))
    }

    /// Seals what agents wrote.
    pub fn sealer(&self) -> Sealer {
        let key = blake3::derive_key("unstuck 2026-11 frozen sessions", &self.0);
        Sealer(key)
    }
}

/// Whether others than the service can read the file. Its own file must have mode 0600. A
/// file of another user may be readable by its group: Kubernetes and systemd mount a secret
/// as root's, with read permission for the service by its group or an ACL.
fn is_exposed(mode: u32, is_own: bool) -> bool {
    let forbidden = if is_own { 0o077 } else { 0o037 };
    mode & forbidden != 0
}

fn parse_hex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    Some(*blake3::Hash::from_hex(text).ok()?.as_bytes())
}

/// Encrypts and authenticates bytes of a session: AES-256-GCM with a random nonce, which
/// comes first. The session is part of what is authenticated, so that the bytes of one
/// session are not accepted for another.
#[derive(Clone)]
pub struct Sealer([u8; 32]);

impl Sealer {
    fn key(&self) -> Option<LessSafeKey> {
        Some(LessSafeKey::new(
            UnboundKey::new(&AES_256_GCM, &self.0).ok()?,
        ))
    }

    /// `None`: there are no random numbers.
    pub fn seal(&self, session: &SessionId, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut sealed = Vec::with_capacity(NONCE_LEN + bytes.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(bytes);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let in_place = sealed.get_mut(NONCE_LEN..)?;
        let tag = self
            .key()?
            .seal_in_place_separate_tag(nonce, associated(session), in_place)
            .ok()?;
        sealed.extend_from_slice(tag.as_ref());
        Some(sealed)
    }

    /// `None`: the bytes were sealed with another key or for another session, or changed.
    pub fn open(&self, session: &SessionId, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let (nonce, in_place) = sealed.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self
            .key()?
            .open_in_place(nonce, associated(session), in_place)
            .ok()?;
        Some(opened.to_vec())
    }
}

fn associated(session: &SessionId) -> Aad<Vec<u8>> {
    let key = [
        session.tenant_key().as_str().as_bytes(),
        b"\0",
        session.as_str().as_bytes(),
    ];
    Aad::from(key.concat())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_secret_is_created_once_and_only_its_owner_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unstuck.key");
        let secret = Secret::load_or_create(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Secret::load_or_create(&path).unwrap();
        assert_eq!(secret.0, again.0);
        assert_eq!(secret.signature_seeds().0, again.signature_seeds().0);

        for mode in [0o604, 0o640] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let exposed = Secret::load_or_create(&path);
            assert!(matches!(exposed, Err(KeyFileError::Exposed { .. })));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        let malformed = Secret::load_or_create(&path);
        assert!(matches!(malformed, Err(KeyFileError::Format { .. })));
    }

    #[test]
    fn a_mounted_secret_of_another_user_may_be_readable_by_its_group() {
        assert!(!is_exposed(0o100_440, false) && !is_exposed(0o100_400, true));
        assert!(is_exposed(0o100_440, true));
        assert!(is_exposed(0o100_444, false) && is_exposed(0o100_460, false));
    }

    #[test]
    fn sealed_bytes_open_only_unchanged_with_the_same_key_for_the_same_session() {
        let session = |id| SessionId::parse(id).unwrap();
        let sealer = Secret([1; 32]).sealer();
        let text = b"rm -rf the agent's words";
        let sealed = sealer.seal(&session("a"), text).unwrap();
        assert_ne!(sealed, sealer.seal(&session("a"), text).unwrap());
        assert!(!sealed.windows(5).any(|part| part == b"agent"));
        assert_eq!(
            sealer.open(&session("a"), sealed.clone()).as_deref(),
            Some(&text[..])
        );
        assert_eq!(sealer.open(&session("b"), sealed.clone()), None);
        assert_eq!(
            Secret([2; 32]).sealer().open(&session("a"), sealed.clone()),
            None
        );
        for position in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[position] ^= 1;
            assert_eq!(sealer.open(&session("a"), changed), None);
        }
        assert_eq!(sealer.open(&session("a"), b"short".to_vec()), None);
    }
}
