//! What makes two results the same: the hashes of what a call returned, raw, masked, and
//! without media, harness and echo. docs/same-result.md describes the notion for users.
//!
//! The masked hash (see `text::mask`) makes two outcomes equal that differ only in times,
//! ids and the like. Results and errors repeat in a loop, so masked hashes are cached by
//! the raw hash.

use std::{borrow::Cow, hash::Hasher};

use super::{CallIdentity, FactExtractor, OutcomeFacts, readings::Question};
use crate::{
    domain::{AnswerKind, Event, Outcome, Sig, ToolCall},
    text::{
        ack,
        echo::CutText,
        figures::{self, Figures},
        harness::HarnessResult,
        key::SignatureKind,
        mask::{self, MaskKind},
    },
};

/// What a call returned, without what its harness added.
pub(super) struct CallTexts<'a> {
    pub result: Option<Cow<'a, str>>,
    pub error: Cow<'a, str>,
    /// The exit code that the harness reports in either.
    pub exit_code: Option<i32>,
}

impl CallTexts<'_> {
    fn result(&self) -> &str {
        self.result.as_deref().unwrap_or_default()
    }
}

/// The hashes of a result or an error; zero if there is none.
#[derive(Default)]
pub(super) struct TextHashes {
    pub raw: u64,
    /// The raw hash of the text as it was sent, with what the harness added.
    pub sent: u64,
    /// The hash without times, ids and the like.
    pub masked: u64,
    /// The hash of a result without media; `None`: it carries no information.
    informative: Option<Sig>,
}

/// What a call returned, without the echo of its arguments; `None`: there is no echo.
struct EchoCuts {
    result: Option<CutText>,
    error: Option<CutText>,
}

/// The signatures of everything that was sent about an outcome.
pub(super) struct OutcomeSignatures {
    pub masked: Sig,
    pub raw: Sig,
}

/// The texts that a call returned, with their hashes.
pub(super) struct ReturnedTexts<'a> {
    pub texts: CallTexts<'a>,
    pub result: TextHashes,
    pub error: TextHashes,
}

impl FactExtractor {
    /// Reads what a call returned.
    pub(super) fn read_texts<'a>(&self, call: &'a ToolCall) -> ReturnedTexts<'a> {
        let result = call
            .result
            .as_deref()
            .map(|result| self.read_text(result, MaskKind::Result));
        let (error_text, error) = self.read_text(&call.error, MaskKind::Error);
        let (result_text, result) = match result {
            Some((text, hashes)) => (Some(text), hashes),
            None => (None, TextHashes::default()),
        };
        let result_exit_code = result_text.as_ref().and_then(|result| result.exit_code);
        ReturnedTexts {
            texts: CallTexts {
                exit_code: error_text.exit_code.or(result_exit_code),
                result: result_text.map(|result| result.text),
                error: error_text.text,
            },
            result,
            error,
        }
    }

    /// The text without what its harness added, and its hashes.
    fn read_text<'a>(&self, text: &'a str, kind: MaskKind) -> (HarnessResult<'a>, TextHashes) {
        let raw = self.hash_raw(text, kind);
        let read = self.strip_harness(text, raw);
        let hashes = match &read.text {
            Cow::Borrowed(text) => self.masked_hashes(text, raw, kind),
            Cow::Owned(stripped) => self.hash_text(stripped, kind),
        };
        let hashes = TextHashes {
            sent: raw,
            ..hashes
        };
        (read, hashes)
    }

    /// The hashes of a text, computed once for a text that repeats.
    pub(super) fn hash_text(&self, text: &str, kind: MaskKind) -> TextHashes {
        self.masked_hashes(text, self.hash_raw(text, kind), kind)
    }

    fn hash_raw(&self, text: &str, kind: MaskKind) -> u64 {
        if text.is_empty() {
            return 0;
        }
        let mut hasher = self.key.hasher(match kind {
            MaskKind::Result => SignatureKind::Result,
            MaskKind::Error => SignatureKind::Error,
        });
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    fn masked_hashes(&self, text: &str, raw: u64, kind: MaskKind) -> TextHashes {
        if text.is_empty() {
            return TextHashes::default();
        }
        let [masked, informative] = self.text_memo.get_or_compute(raw, || {
            let (masked, may_have_media) = self.hash_masked(text, kind);
            let informative = match kind {
                MaskKind::Result => self
                    .informative_signature(text, raw, may_have_media)
                    .map_or(0, Sig::get),
                MaskKind::Error => 0,
            };
            [masked, informative]
        });
        TextHashes {
            raw,
            sent: raw,
            masked,
            informative: (informative != 0).then(|| Sig::new(informative)),
        }
    }

    /// The hash of the masked text, and whether the text may contain media.
    fn hash_masked(&self, text: &str, kind: MaskKind) -> (u64, bool) {
        let mut hasher = self.key.hasher(SignatureKind::Outcome);
        if mask::is_only_media(text) {
            hasher.write(text.as_bytes());
            return (hasher.finish(), true);
        }
        let summary = mask::hash_masked(text, kind, &mut hasher);
        (hasher.finish(), summary.may_have_media)
    }

    /// The signature of a result without its media; `None`: it carries no information. A
    /// result without media has its raw hash.
    fn informative_signature(&self, result: &str, raw: u64, may_have_media: bool) -> Option<Sig> {
        if ack::is_acknowledgement(result) || mask::is_only_media(result) {
            return None;
        }
        if !may_have_media {
            return Some(Sig::new(raw));
        }
        let mut hasher = self.key.hasher(SignatureKind::Response);
        let mut pieces = 0;
        mask::strip_media(result, &mut |piece| {
            hasher.write(piece);
            pieces += 1;
        });
        Some(Sig::new(if pieces == 1 { raw } else { hasher.finish() }))
    }

    /// The signature of the answer without its media, and that of the error of a failed
    /// call; `None`: it carries no information. An answer that is no is compared without
    /// the echo of the arguments.
    pub(super) fn answer_signatures(
        &self,
        call: &ToolCall,
        returned: &OutcomeFacts<'_>,
        identity: &CallIdentity,
    ) -> (Option<Sig>, Option<Sig>) {
        let key = &self.key;
        let failed = returned.outcome == Some(Outcome::Error);
        if !failed && !call.result_hash.is_empty() {
            let hash = key.signature_if_present(SignatureKind::Result, &call.result_hash);
            return (hash, None);
        }
        match returned.answer.kind {
            AnswerKind::Unknown => (None, None),
            AnswerKind::Negative => self.cut_signatures(call, returned, identity, failed),
            AnswerKind::Brief | AnswerKind::Substantial => (returned.result.informative, None),
            AnswerKind::Empty => (Some(key.signature(SignatureKind::Response, "", 0)), None),
        }
    }

    /// The signatures of an answer that is no, without the echo of the arguments. Computed
    /// once for a call and an answer that repeat.
    fn cut_signatures(
        &self,
        call: &ToolCall,
        returned: &OutcomeFacts<'_>,
        identity: &CallIdentity,
        failed: bool,
    ) -> (Option<Sig>, Option<Sig>) {
        let texts = &returned.texts;
        if texts.error.is_empty() && texts.result().is_empty() {
            return (None, None);
        }
        let pair = |first, second| {
            let key = &self.key;
            key.hash_pair(SignatureKind::Response, first, second)
        };
        let answered = pair(returned.result.raw, returned.error.raw);
        let compute_asked = || self.identity_hash(identity.tool, call);
        let asked = identity.texts.unwrap_or_else(compute_asked);
        let both = pair(asked, answered) ^ u64::from(failed);
        let [response, error] = self.echo_memo.get_or_compute(both, || {
            let echo = identity.echo_tokens(call);
            let cuts = EchoCuts {
                result: echo.cut(texts.result()),
                error: echo.cut(&texts.error),
            };
            let error = failed.then(|| self.error_signature(returned, &cuts, identity.signature));
            [
                self.response_signature(returned, &cuts).get(),
                error.map_or(0, Sig::get),
            ]
        });
        (Some(Sig::new(response)), failed.then(|| Sig::new(error)))
    }

    /// The figures of a failed call. Most errors have none.
    pub(super) fn failure_figures(&self, returned: &OutcomeFacts<'_>) -> Figures {
        if returned.outcome != Some(Outcome::Error) {
            return Figures::new();
        }
        let texts = &returned.texts;
        let (text, raw) = if texts.error.is_empty() {
            (texts.result(), returned.result.raw)
        } else {
            (&*texts.error, returned.error.raw)
        };
        let mut extracted = None;
        let has_figures = self.ask(raw, Question::HasFigures, || {
            let figures = extracted.insert(figures::extract_figures(text));
            !figures.is_empty()
        });
        match extracted {
            None if has_figures => figures::extract_figures(text),
            known => known.unwrap_or_default(),
        }
    }

    /// Times and ids do not distinguish answers that are no: "no hits (0.13 s)".
    fn response_signature(&self, returned: &OutcomeFacts<'_>, cuts: &EchoCuts) -> Sig {
        let mut hasher = self.key.hasher(SignatureKind::Response);
        let texts = &returned.texts;
        let error = cuts.error.as_ref().map_or(&*texts.error, CutText::as_str);
        hasher.write(error.as_bytes());
        hasher.write_u64(match &cuts.result {
            Some(cut) => self.hash_text(cut.as_str(), MaskKind::Result).masked,
            None => returned.result.masked,
        });
        Sig::new(hasher.finish())
    }

    /// The signature of a failed call's masked error, without the echo of the arguments.
    fn error_signature(
        &self,
        returned: &OutcomeFacts<'_>,
        cuts: &EchoCuts,
        signature: Option<Sig>,
    ) -> Sig {
        let texts = &returned.texts;
        // Some brokers send the error text as the result, or in both fields.
        let result_text = texts.result();
        let mut hasher = self.key.hasher(SignatureKind::Error);
        hasher.write_u64(match &cuts.error {
            Some(cut) => self.hash_text(cut.as_str(), MaskKind::Error).masked,
            None => returned.error.masked,
        });
        let result = cuts.result.as_ref().map_or(result_text, CutText::as_str);
        hasher.write_u64(self.hash_text(result, MaskKind::Error).masked);
        // An exit status alone does not make the errors of different calls equal.
        if result_text.is_empty()
            && ack::is_exit_status(&texts.error)
            && let Some(signature) = signature
        {
            hasher.write_u64(signature.get());
        }
        Sig::new(hasher.finish())
    }

    /// The signatures of everything that was sent about an outcome, one with masked texts
    /// and one with raw ones. A missing field has a code of its own, so that "unknown"
    /// never equals "empty".
    pub(super) fn outcome_signatures(
        &self,
        event: &Event,
        call: &ToolCall,
        ignore_result: bool,
        [result, error]: [&TextHashes; 2],
    ) -> OutcomeSignatures {
        let key = &self.key;
        let hash_or_zero = |text: &str| match text {
            "" => 0,
            text => key.hash_text(SignatureKind::Outcome, text),
        };
        let outcome_code = match call.outcome {
            None => 0,
            Some(Outcome::Ok) => 1,
            Some(Outcome::Error) => 2,
            Some(Outcome::Blocked) => 3,
        };
        // A hash that was sent stands for the result.
        let (result_kind, result_hashes) = match &call.result {
            _ if ignore_result => (0, [0; 2]),
            _ if !call.result_hash.is_empty() => (1, [hash_or_zero(&call.result_hash); 2]),
            Some(_) => (2, [result.masked, result.raw]),
            None => (0, [0; 2]),
        };
        let states = match [
            hash_or_zero(&call.content_hash),
            hash_or_zero(&event.state_hash),
        ] {
            [0, 0] => 0,
            [content, state] => key.hash_pair(SignatureKind::Outcome, content, state),
        };
        // What is compared as it is, then the texts, masked and raw.
        let rest = key.hash_pair(
            SignatureKind::Outcome,
            states,
            outcome_code << 8 | result_kind,
        );
        let combine = |result: u64, error: u64| {
            let texts = key.hash_pair(SignatureKind::Outcome, result, error);
            Sig::new(key.hash_pair(SignatureKind::Outcome, rest, texts))
        };
        OutcomeSignatures {
            masked: combine(result_hashes[0], error.masked),
            raw: combine(result_hashes[1], error.raw),
        }
    }
}
