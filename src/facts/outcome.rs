//! What came of a call, in hashes: raw, masked, and what it said.

use std::{borrow::Cow, hash::Hasher};

use super::{Facts, ack};
use crate::{
    domain::{Event, Outcome, Sig, ToolCall},
    text::{
        key::Tag,
        mask::{self, Mask},
    },
};

/// The hashes of a result or an error; zeros where there is none.
#[derive(Default)]
pub(super) struct TextFacts {
    pub raw: u64,
    /// Without times, ids and the like.
    pub masked: u64,
    /// Of a result, without media; `None`: it tells nothing.
    telling: Option<Sig>,
}

/// All that was sent of an outcome.
pub(super) struct Outcomes {
    pub masked: Sig,
    pub raw: Sig,
}

impl Facts {
    /// The hashes of a text. What repeats is looked at once.
    pub(super) fn text(&self, text: &str, kind: Mask) -> TextFacts {
        if text.is_empty() {
            return TextFacts::default();
        }
        let mut hasher = self.key.hasher(match kind {
            Mask::Result => Tag::Result,
            Mask::Error => Tag::Error,
        });
        hasher.write(text.as_bytes());
        let raw = hasher.finish();
        let [masked, telling] = self.memo.get(raw, || {
            let (masked, may_have_media) = self.masked(text, kind);
            let telling = match kind {
                Mask::Result => self.telling(text, raw, may_have_media).map_or(0, Sig::get),
                Mask::Error => 0,
            };
            [masked, telling]
        });
        TextFacts {
            raw,
            masked,
            telling: (telling != 0).then(|| Sig::new(telling)),
        }
    }

    /// The hash of what masking makes of a text, and whether the text may have media.
    fn masked(&self, text: &str, kind: Mask) -> (u64, bool) {
        let mut hasher = self.key.hasher(Tag::Outcome);
        if mask::is_only_media(text) {
            hasher.write(text.as_bytes());
            return (hasher.finish(), true);
        }
        let seen = mask::masked_hash(text, kind, &mut hasher);
        (hasher.finish(), seen.may_have_media)
    }

    /// A result raw but for media; `None`: it tells nothing. Without media that is
    /// its raw hash.
    fn telling(&self, result: &str, raw: u64, may_have_media: bool) -> Option<Sig> {
        if ack::is_acknowledgement(result) || mask::is_only_media(result) {
            return None;
        }
        if !may_have_media {
            return Some(Sig::new(raw));
        }
        let mut hasher = self.key.hasher(Tag::Said);
        let mut pieces = 0;
        mask::without_media(result, &mut |piece| {
            hasher.write(piece);
            pieces += 1;
        });
        Some(Sig::new(if pieces == 1 { raw } else { hasher.finish() }))
    }

    /// What the call said, raw but for media, where it says anything.
    pub(super) fn said(&self, call: &ToolCall, failed: bool, result: &TextFacts) -> Option<Sig> {
        if !failed && call.result_hash.is_empty() {
            return result.telling;
        }
        if !failed {
            return self.key.known(Tag::Result, &call.result_hash);
        }
        let told = call.result.as_deref().unwrap_or_default();
        if call.error.is_empty() && told.is_empty() {
            return None;
        }
        let mut hasher = self.key.hasher(Tag::Said);
        hasher.write(call.error.as_bytes());
        hasher.write(told.as_bytes());
        Some(Sig::new(hasher.finish()))
    }

    /// The masked error of a call that failed.
    pub(super) fn error(
        &self,
        call: &ToolCall,
        signature: Option<Sig>,
        error: &TextFacts,
    ) -> Option<Sig> {
        // Some brokers send what went wrong as the result, or beside the error.
        let told = call.result.as_deref().unwrap_or_default();
        if call.error.is_empty() && told.is_empty() {
            return None;
        }
        let mut hasher = self.key.hasher(Tag::Error);
        let without_name = |text: &str| match ack::without_name(text, &call.tool) {
            Cow::Owned(text) => Some(self.masked(&text, Mask::Error).0),
            Cow::Borrowed(_) => None,
        };
        let error = without_name(&call.error).unwrap_or(error.masked);
        let told_masked = without_name(told);
        hasher.write_u64(error);
        hasher.write_u64(told_masked.unwrap_or_else(|| self.text(told, Mask::Error).masked));
        // An exit status alone says nothing across different calls.
        if told.is_empty()
            && ack::is_exit_status(&call.error)
            && let Some(signature) = signature
        {
            hasher.write_u64(signature.get());
        }
        Some(Sig::new(hasher.finish()))
    }

    /// All that was sent of an outcome, in one hash with masked texts and one with
    /// raw ones. What was not sent leaves its own mark, so that "unknown" never
    /// equals "empty".
    pub(super) fn outcomes(
        &self,
        event: &Event,
        call: &ToolCall,
        ignore_result: bool,
        [result, error]: [&TextFacts; 2],
    ) -> Outcomes {
        let key = &self.key;
        let text = |text: &str| match text {
            "" => 0,
            text => key.text(Tag::Outcome, text),
        };
        let marked = match call.outcome {
            None => 0,
            Some(Outcome::Ok) => 1,
            Some(Outcome::Error) => 2,
            Some(Outcome::Blocked) => 3,
        };
        let (result_kind, told) = match &call.result {
            _ if ignore_result => (0, [0; 2]),
            _ if !call.result_hash.is_empty() => (1, [text(&call.result_hash); 2]),
            Some(_) => (2, [result.masked, result.raw]),
            None => (0, [0; 2]),
        };
        let state = [text(&call.content_hash), text(&event.state_hash)];
        let rest = if state == [0; 2] {
            0
        } else {
            key.both(Tag::Outcome, state[0], state[1])
        };
        let rest = key.both(Tag::Outcome, rest, marked << 8 | result_kind);
        let of = |result: u64, error: u64| {
            let texts = key.both(Tag::Outcome, result, error);
            Sig::new(key.both(Tag::Outcome, rest, texts))
        };
        Outcomes {
            masked: of(told[0], error.masked),
            raw: of(told[1], error.raw),
        }
    }
}
