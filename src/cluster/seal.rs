//! Encrypts what agents and operators wrote before it leaves the process: AES-256-GCM. Each
//! process has a key of its own, derived from the secret of the cluster and a random salt,
//! so a counter is enough for the nonce.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use lru::LruCache;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::secret::Secret;

const SALT_BYTES: usize = 16;
const COUNTER_BYTES: usize = 8;
const HEADER_BYTES: usize = SALT_BYTES + COUNTER_BYTES;
/// The keys of other processes that are kept.
const KEYS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// The sealer of a process.
pub struct ClusterSealer {
    secret: Secret,
    salt: [u8; SALT_BYTES],
    key: LessSafeKey,
    counter: AtomicU64,
    others: Mutex<LruCache<[u8; SALT_BYTES], Arc<LessSafeKey>>>,
}

impl ClusterSealer {
    /// `None`: there are no random numbers.
    pub fn new(secret: Secret) -> Option<Self> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).ok()?;
        Some(Self {
            key: derive_key(&secret, &salt)?,
            secret,
            salt,
            counter: AtomicU64::new(0),
            others: Mutex::new(LruCache::new(KEYS_MAX)),
        })
    }

    /// Appends the sealed bytes: salt, counter, text, tag. `context` is what they are for.
    pub fn seal(&self, context: &[u8], bytes: &[u8], sealed: &mut Vec<u8>) -> Option<()> {
        let counter = self.counter.fetch_add(1, Relaxed).to_le_bytes();
        sealed.reserve(HEADER_BYTES + bytes.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&self.salt);
        sealed.extend_from_slice(&counter);
        let start = sealed.len();
        sealed.extend_from_slice(bytes);
        let in_place = sealed.get_mut(start..)?;
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(counter), Aad::from(context), in_place)
            .ok()?;
        sealed.extend_from_slice(tag.as_ref());
        Some(())
    }

    /// `None`: the bytes were sealed with another secret or for another context, or changed.
    pub fn open(&self, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (salt, rest) = sealed.split_first_chunk::<SALT_BYTES>()?;
        let (counter, text) = rest.split_first_chunk::<COUNTER_BYTES>()?;
        let key = self.key_of(salt)?;
        let mut in_place = text.to_vec();
        let opened = key
            .open_in_place(nonce(*counter), Aad::from(context), &mut in_place)
            .ok()?
            .len();
        in_place.truncate(opened);
        Some(in_place)
    }

    fn key_of(&self, salt: &[u8; SALT_BYTES]) -> Option<Arc<LessSafeKey>> {
        let mut others = self.others.lock();
        if let Some(key) = others.get(salt) {
            return Some(key.clone());
        }
        let key = Arc::new(derive_key(&self.secret, salt)?);
        others.put(*salt, key.clone());
        Some(key)
    }
}

fn derive_key(secret: &Secret, salt: &[u8; SALT_BYTES]) -> Option<LessSafeKey> {
    let key = secret.derive("unstuck 2026-11 cluster", salt);
    Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).ok()?))
}

fn nonce(counter: [u8; COUNTER_BYTES]) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..COUNTER_BYTES].copy_from_slice(&counter);
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(secret: u8) -> ClusterSealer {
        ClusterSealer::new(Secret::for_test(secret)).unwrap()
    }

    #[test]
    fn another_process_with_the_secret_opens_what_was_sealed() {
        let (one, other) = (sealer(1), sealer(1));
        let mut sealed = Vec::new();
        one.seal(b"session", b"the agent's words", &mut sealed)
            .unwrap();
        assert!(!sealed.windows(5).any(|part| part == b"agent"));
        let opened = other.open(b"session", &sealed);
        assert_eq!(opened.as_deref(), Some(&b"the agent's words"[..]));
        assert_eq!(other.open(b"other", &sealed), None);
        assert_eq!(sealer(2).open(b"session", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(other.open(b"session", &changed), None);
        }
        assert_eq!(other.open(b"session", &sealed[..20]), None);
    }

    #[test]
    fn equal_bytes_are_sealed_differently_each_time() {
        let (one, other) = (sealer(1), sealer(1));
        let sealed = |sealer: &ClusterSealer| {
            let mut sealed = Vec::new();
            sealer.seal(b"c", b"text", &mut sealed).unwrap();
            sealed
        };
        let all = [sealed(&one), sealed(&one), sealed(&other)];
        assert!(all[0] != all[1] && all[0] != all[2]);
    }
}
