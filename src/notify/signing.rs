//! Signatures of Standard Webhooks. While a secret is replaced an endpoint has several,
//! and a request is signed with each of them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use standardwebhooks::{Webhook, WebhookError};

use super::settings::{SecretSource, SecretSources};

/// One secret, and others while it is replaced.
const SECRETS_MAX: usize = 4;

/// Signs with the keys in force, which a reload replaces.
pub(super) struct Signer {
    keys: ArcSwap<SigningKeys>,
}

/// The secrets of an endpoint, read from their sources.
#[derive(Default)]
pub(super) struct SigningKeys(Vec<Webhook>);

impl SigningKeys {
    /// Fails with the reason, which does not quote a secret.
    pub fn read(secrets: Option<&SecretSources>) -> Result<Self, String> {
        let Some(secrets) = secrets else {
            return Ok(Self::default());
        };
        let sources = secrets.as_slice();
        if sources.is_empty() || sources.len() > SECRETS_MAX {
            let count = sources.len();
            return Err(format!("{count} secrets, not 1 to {SECRETS_MAX}"));
        }
        sources
            .iter()
            .map(read_key)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn read_key(source: &SecretSource) -> Result<Webhook, String> {
    let secret = source.read().map_err(|error| error.to_string())?;
    Webhook::new(&secret).map_err(|_| "it is not base64".to_owned())
}

impl Signer {
    pub fn new(keys: SigningKeys) -> Self {
        let keys = ArcSwap::from_pointee(keys);
        Self { keys }
    }

    pub fn replace_keys(&self, keys: SigningKeys) {
        self.keys.store(Arc::new(keys));
    }

    /// The value of `webhook-signature`: a signature per secret, separated by spaces.
    /// Empty: there is no secret.
    pub fn sign(&self, id: &str, timestamp: i64, body: &str) -> Result<String, WebhookError> {
        let keys = self.keys.load();
        let signatures = keys
            .0
            .iter()
            .map(|key| key.sign(id, timestamp, body.as_bytes()))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(signatures.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_request_is_signed_with_every_secret_and_a_list_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = |contents: &[&str]| {
            let sources = contents.iter().enumerate().map(|(number, content)| {
                let file = dir.path().join(number.to_string());
                fs::write(&file, content).unwrap();
                SecretSource::File { file }
            });
            SecretSources::Several(sources.collect())
        };
        let read = |contents: &[&str]| SigningKeys::read(Some(&secrets(contents)));
        let signer = Signer::new(read(&["b25l"]).unwrap());
        let one = signer.sign("id", 7, "body").unwrap();
        signer.replace_keys(read(&["dHdv", "b25l"]).unwrap());
        let both = signer.sign("id", 7, "body").unwrap();
        let [new, old] = both.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{both}");
        };
        assert!(old == one && new != one, "{both}");
        assert_eq!(
            read(&[]).err().as_deref(),
            Some("0 secrets, not 1 to 4"),
            "an empty list would send unsigned requests"
        );
        assert!(read(&["b25l"; 5]).is_err());
        let error = read(&["not base64!"]).err().unwrap();
        assert_eq!(error, "it is not base64");
        signer.replace_keys(SigningKeys::default());
        assert_eq!(signer.sign("id", 7, "body").unwrap(), "");
    }
}
