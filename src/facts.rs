//! Turns each event into facts, once: which class of tool, which call, which outcome,
//! whether the session made progress. Detectors compare these facts and never read text.
//!
//! In reading order:
//! - [`FactExtractor::extract`] is the entry; a call goes through `extract_call`, a turn
//!   through `extract_turn`.
//! - `identity`: which call it is, cached; `same_call`: what makes two calls the same.
//! - `args`: canonical arguments, their hash, and the target, command and lines in them.
//! - `classify`: the class, kind and outcome of a call, from all of the above and `tools`.
//! - `outcome`: the hashes of a result and an error.
//! - `readings`: what a text says by itself, cached.
//! - `plan`: the steps of a plan that are done.
//! - `poll`: what makes a call a poll, and which poll it is.
//! - `turns`: the facts of a turn.
//! - `progress`: the session's progress counter; `figure_trend`: figures that move one way.
//!
//! Calls and outcomes are compared by keyed hashes: the input is untrusted, and an agent
//! must not be able to make two different calls look equal. The words of turns are hashed
//! without a key (see `text::tokens`).
//!
//! Uses: domain, text, tools.

mod args;
mod classify;
mod figure_trend;
mod identity;
mod outcome;
mod plan;
mod poll;
mod progress;
mod readings;
mod same_call;
mod turns;

use std::sync::Arc;

pub use progress::ProgressCounter;

use crate::{
    domain::{
        AnswerKind, Args, CallFacts, CallKey, CallKind, Event, EventBody, Operation, Outcome,
        RepetitionSettings, Role, Sig, ToolCall, TurnFacts,
    },
    text::{
        HashKey, Model, PhraseMatcher, ack,
        answer::{self, AnswerReading},
        answer_names, call_key,
        key::SignatureKind,
        memo::{Memo, SharedMemo},
        no_change, sql,
    },
    tools::{ToolClass, ToolRules},
};
use identity::CallIdentity;
use outcome::{CallTexts, OutcomeSignatures, ReturnedTexts, TextHashes};
use readings::Question;

/// Turns events into facts.
#[derive(Debug)]
pub struct FactExtractor {
    key: HashKey,
    tools: ToolRules,
    analyzers: Arc<TurnAnalyzers>,
    /// The masked hashes of recent results and errors.
    text_memo: Memo,
    /// The traits of recent tool names.
    traits_memo: Memo,
    /// Which calls recent ones were.
    identities: SharedMemo<CallIdentity>,
    /// What recent results say by themselves.
    readings_memo: Memo,
    /// The signatures of recent answers without the echo of their calls' arguments.
    echo_memo: Memo,
    /// The call keys of recent loops.
    call_key_memo: Memo,
}

/// What turns are analyzed with. Shared by all sessions.
#[derive(Debug, Default)]
pub struct TurnAnalyzers {
    pub phrase_matcher: PhraseMatcher,
    /// The embedding model turns are compared by; `None`: by their words.
    pub model: Option<Model>,
}

/// The facts of a call, and its target as text for a person.
pub struct CallExtract {
    pub facts: CallFacts,
    pub target: Arc<str>,
}

/// The facts of an event, with the state of the world after it, if known.
pub enum EventFacts {
    Call(CallExtract),
    /// An agent's turn.
    Turn(TurnFacts, Option<Sig>),
    /// A call that a guard refused. No detector observes it.
    Refused(RefusedCallFacts),
    /// An event that no detector observes: an exempt call, a marker, a turn of a user. Only
    /// the state of the world counts.
    Other(Option<Sig>),
}

/// What is known of a call that was not made.
pub struct RefusedCallFacts {
    /// `None`: the arguments are unknown.
    pub call: Option<Sig>,
    /// The signature of its target.
    pub path: Option<Sig>,
    pub operation: Operation,
    pub target: Arc<str>,
}

/// A call that an agent is about to make.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCall {
    pub call: Sig,
    /// The directory to which its command line changes.
    pub directory: Option<Sig>,
}

/// What a call returned, and what that says about it.
struct OutcomeFacts<'a> {
    texts: CallTexts<'a>,
    result: TextHashes,
    error: TextHashes,
    outcome: Option<Outcome>,
    answer: AnswerReading,
    signatures: OutcomeSignatures,
    /// A tool in no table has done what its name says.
    acted: bool,
    /// The answer is a receipt and carries no information.
    is_receipt: bool,
    changed_nothing: bool,
}

impl EventFacts {
    /// Moves the facts out and leaves empty ones.
    #[inline]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Other(None))
    }

    /// The state of the world after the event, if known.
    pub fn state(&self) -> Option<Sig> {
        match self {
            Self::Call(extract) => extract.facts.state,
            Self::Turn(_, state) | Self::Other(state) => *state,
            Self::Refused(_) => None,
        }
    }
}

impl FactExtractor {
    pub fn new(key: HashKey, tools: ToolRules, analyzers: Arc<TurnAnalyzers>) -> Self {
        Self {
            key,
            tools,
            analyzers,
            text_memo: Memo::default(),
            traits_memo: Memo::default(),
            identities: SharedMemo::default(),
            readings_memo: Memo::default(),
            echo_memo: Memo::default(),
            call_key_memo: Memo::default(),
        }
    }

    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The facts of an event. `repetition` says what makes a text a loop; `None` skips
    /// that analysis.
    pub fn extract(&self, event: &Event, repetition: Option<&RepetitionSettings>) -> EventFacts {
        let state = self
            .key
            .signature_if_present(SignatureKind::State, &event.state_hash);
        match &event.body {
            EventBody::Call(call) if call.outcome == Some(Outcome::Blocked) => {
                match self.extract_refused(call) {
                    Some(refused) => EventFacts::Refused(refused),
                    None => EventFacts::Other(None),
                }
            }
            EventBody::Call(call) => match self.extract_call(event, call) {
                Some(extract) => EventFacts::Call(extract),
                None => EventFacts::Other(state),
            },
            EventBody::Turn(turn) if turn.role == Role::Agent => {
                EventFacts::Turn(self.extract_turn(&turn.text, repetition), state)
            }
            EventBody::Turn(_) | EventBody::Marker(_) => EventFacts::Other(state),
        }
    }

    /// A call that is not made yet; `None` if its arguments are unknown or its tool is
    /// exempt from detection.
    pub fn planned_call(&self, call: &ToolCall) -> Option<PlannedCall> {
        let identity = self.identify_call(call)?;
        Some(PlannedCall {
            call: identity.signature?,
            directory: identity.command.and_then(|command| command.directory),
        })
    }

    /// The facts of a call that is not made; `None` if its tool is exempt from detection.
    fn extract_refused(&self, call: &ToolCall) -> Option<RefusedCallFacts> {
        let identity = self.identify_call(call)?;
        let class = identity.action.class;
        Some(RefusedCallFacts {
            call: identity.signature,
            path: identity.path,
            operation: call.operation.unwrap_or_else(|| class.operation()),
            target: identity.target.clone(),
        })
    }

    /// The key of a call, as clients compute it; `None`: the arguments are not JSON, or too
    /// long. Cached, because a loop is reported more than once and each verdict has the keys
    /// of its calls.
    pub fn call_key(&self, tool: &str, args_json: &str) -> Option<CallKey> {
        if args_json.len() > call_key::ARGS_BYTES_MAX {
            return None;
        }
        let hash = |text| self.key.hash_text(SignatureKind::Call, text);
        let text = self
            .key
            .hash_pair(SignatureKind::Call, hash(tool), hash(args_json));
        // Zeros for a call without a key: no SHA-256 begins with 16 of them.
        let [high, low] = self.call_key_memo.get_or_compute(text, || {
            let key = call_key::call_key(tool, args_json);
            let number = key.map_or(0, |CallKey(bytes)| u128::from_be_bytes(bytes));
            [(number >> 64) as u64, number as u64]
        });
        let number = u128::from(high) << 64 | u128::from(low);
        (number != 0).then(|| CallKey(number.to_be_bytes()))
    }

    /// What a call returned, and what that says about it.
    fn read_outcome<'a>(
        &self,
        event: &Event,
        call: &'a ToolCall,
        identity: &CallIdentity,
    ) -> OutcomeFacts<'a> {
        let (action, traits) = (&identity.action, &identity.traits);
        let ReturnedTexts {
            texts,
            mut result,
            error,
        } = self.read_texts(call);
        let result_text = texts.result.as_deref();
        let runs = action.class == ToolClass::Execute || traits.is_run;
        // A file may hold an error, and a command may ask a server that answers with one.
        let is_data = matches!(action.class, ToolClass::Read | ToolClass::Search)
            || identity.tool_class.is_none();
        let outcome = self.effective_outcome([runs, is_data], call, &texts, &result);
        let mut answer = match outcome {
            Some(Outcome::Error) => answer::classify(true, result_text),
            _ => self.read_answer(&result, result_text),
        };
        // A search that finds nothing has its answer.
        answer.found_nothing &= action.class == ToolClass::Execute;

        let ignore_result = identity.ignore_result;
        // A sub-agent never answers twice in the same words.
        if traits.is_delegation
            && let (Some(text), Args::Text(task)) = (result_text, &call.args)
            && let Some(names) = answer_names::hash_names(text, task)
        {
            result.masked = names;
        }
        let signatures = self.outcome_signatures(event, call, ignore_result, [&result, &error]);

        // A tool in no table changes what its name says, unless its answer is no.
        let acted = action.class == ToolClass::Other
            && answer.kind != AnswerKind::Negative
            && !(traits.runs_sql && sql::is_query(&identity.target));
        // The answer of a write is a receipt and carries no information.
        let asks_to_change = identity.asks_to_change;
        let answers_with_receipt = action.class.is_write()
            || (action.class == ToolClass::Other
                && (traits.is_action || asks_to_change)
                && ack::is_receipt_sized(result_text));
        // The content shows better than the answer whether it changed.
        let may_change = answers_with_receipt
            || action.also_writes
            || action.moves_world
            || (acted && (traits.is_change || asks_to_change || traits.moves_world));
        let changed_nothing = may_change
            && call.content_hash.is_empty()
            && result_text.is_some_and(|text| {
                let says_so = || no_change::says_nothing_changed(text);
                self.ask(result.raw, Question::ChangedNothing, says_so)
            });
        OutcomeFacts {
            result,
            error,
            outcome,
            answer,
            signatures,
            acted,
            is_receipt: answers_with_receipt
                && answer.kind != AnswerKind::Negative
                && !changed_nothing,
            changed_nothing,
            texts,
        }
    }

    /// The facts of a call; `None` if its tool is exempt from detection.
    fn extract_call(&self, event: &Event, call: &ToolCall) -> Option<CallExtract> {
        // Which call it is, and what came back.
        let key = &self.key;
        let identity = self.identify_call(call)?;
        let returned = self.read_outcome(event, call, &identity);
        let (action, traits) = (&identity.action, &identity.traits);
        let (texts, answer) = (&returned.texts, returned.answer);
        let result_text = texts.result.as_deref();
        let failed = returned.outcome == Some(Outcome::Error);

        // Whether it waits, and what for.
        let mut kind = self.classify_kind(action, call, &returned);
        let line = identity.tool_class.is_none().then_some(&*identity.target);
        let is_poll = |this: &Self| {
            let result = &returned.result;
            this.is_poll_by_answer(call, (action.class, line), traits, failed, texts, result)
        };
        if kind == CallKind::Ordinary && is_poll(self) {
            kind = CallKind::Poll;
        }
        let poll = self.poll_facts(kind, call, line, texts, failed);
        let (response, error) = self.answer_signatures(call, &returned, &identity);

        // What the detectors compare.
        let facts = CallFacts {
            kind,
            is_wait: action.class == ToolClass::Poll,
            poll_key: poll.key,
            is_dead: poll.is_dead,
            call: identity.signature,
            tool: identity.tool,
            operation: call.operation.unwrap_or_else(|| action.class.operation()),
            also_writes: action.also_writes
                || (returned.acted && (traits.is_change || identity.asks_to_change)),
            moves_world: action.moves_world || (returned.acted && traits.moves_world),
            target: identity.path,
            directory: identity.command.and_then(|command| command.directory),
            lines: identity.lines,
            may_read_part: identity.may_read_part,
            loose_args: identity.loose_args,
            unordered_args: identity.unordered_args,
            arg_words: identity.arg_words.clone(),
            program: classify::object_words(&identity, answer),
            query_words: identity.query_words.clone(),
            outcome: returned.outcome,
            masked_outcome: returned.signatures.masked,
            raw_outcome: returned.signatures.raw,
            // None for an ignored result and for a receipt.
            response: response.filter(|_| !identity.ignore_result && !returned.is_receipt),
            error,
            figures: self.failure_figures(&returned),
            has_moved_figure: false,
            answer: answer.kind,
            leaves_open: answer.leaves_open,
            found_nothing: answer.found_nothing,
            unproductive: failed || result_text.is_some_and(ack::is_small_result),
            is_acknowledged: action.class == ToolClass::Other
                && call.result_hash.is_empty()
                && result_text.is_none_or(|text| {
                    self.ask(returned.result.raw, Question::IsAcknowledgement, || {
                        ack::is_acknowledgement(text)
                    })
                }),
            changed_nothing: returned.changed_nothing,
            plan_steps_done: identity.plan_steps_done,
            is_read_only: traits.is_read_only,
            may_act: traits.is_action,
            content: key.signature_if_present(SignatureKind::Content, &call.content_hash),
            state: key.signature_if_present(SignatureKind::State, &event.state_hash),
        };
        let target = identity.target.clone();
        Some(CallExtract { facts, target })
    }

    pub fn round_signature(&self, event: &Event) -> Option<Sig> {
        self.key
            .signature_if_present(SignatureKind::Round, &event.round_id)
    }

    pub fn analyzers(&self) -> &TurnAnalyzers {
        &self.analyzers
    }
}

#[cfg(test)]
mod tests;
