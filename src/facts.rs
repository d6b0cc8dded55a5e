//! What is the case, computed once an event: which tool class, which call,
//! which outcome, whether the session moved. Detectors compare these facts and
//! never look at text themselves.
//!
//! Everything that is compared is a keyed hash: the input is untrusted, and an
//! agent must not be able to make two different calls look equal.
//!
//! Uses: domain.

mod args;
mod key;
pub mod mask;
mod progress;
mod sketch;
mod tools;

use std::hash::Hasher;

pub use key::Key;
pub use progress::Progress;
pub use sketch::Sketcher;
pub use tools::{Class, ToolRule, ToolRuleError, Tools};

use crate::domain::{Body, CallFacts, Event, Outcome, Role, Sig, ToolCall, TurnFacts, text};
use args::Arguments;
use key::Tag;
use mask::Mask;

/// Turns events into facts.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    tools: Tools,
}

/// What was made of a call: the facts, and the words for a person.
pub struct Made<'a> {
    pub facts: CallFacts,
    pub target: std::borrow::Cow<'a, str>,
}

/// What was made of an event.
pub enum EventFacts<'a> {
    Call(Made<'a>),
    /// Of an agent's turn, and the state of the world after it.
    Turn(TurnFacts, Option<Sig>),
    /// No detector looks at it: a call that was blocked or is exempt, a marker,
    /// somebody else's turn. Only the state of the world counts.
    Other(Option<Sig>),
}

impl EventFacts<'_> {
    /// The state of the world after the event, where it is known.
    pub fn state(&self) -> Option<Sig> {
        match self {
            Self::Call(made) => made.facts.state,
            Self::Turn(_, state) | Self::Other(state) => *state,
        }
    }
}

impl Facts {
    pub fn new(key: Key, tools: Tools) -> Self {
        Self { key, tools }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The facts of an event.
    pub fn of<'a>(&self, event: &'a Event) -> EventFacts<'a> {
        let state = self.key.known(Tag::State, &event.state_hash);
        match &event.body {
            // As if it had not been sent.
            Body::Call(call) if call.outcome == Some(Outcome::Blocked) => EventFacts::Other(None),
            Body::Call(call) => match self.call(event, call) {
                Some(made) => EventFacts::Call(made),
                None => EventFacts::Other(state),
            },
            Body::Turn(turn) if turn.role == Role::Agent => {
                EventFacts::Turn(self.turn(&turn.text), state)
            }
            Body::Turn(_) | Body::Marker(_) => EventFacts::Other(state),
        }
    }

    /// The facts of a call; `None` where its tool is exempt from detection.
    fn call<'a>(&self, event: &'a Event, call: &'a ToolCall) -> Option<Made<'a>> {
        let rule = self.tools.look_up(&call.tool);
        let operation = match (rule.class, call.operation) {
            (Class::Exempt, _) => return None,
            (_, Some(sent)) => sent,
            (class, None) => class.operation(),
        };
        let args = Arguments::read(&call.args, rule.ignore_args, &self.key);
        let target = if call.target.is_empty() {
            args.target.unwrap_or_default()
        } else {
            call.target.as_str().into()
        };
        let facts = CallFacts {
            call: args
                .hash
                .map(|args| self.key.pair(Tag::Call, &call.tool, args)),
            operation,
            target: self.key.known(Tag::Target, &text::seen(&target)),
            outcome: call.outcome,
            masked: self.outcome(event, call, rule.ignore_result, Hashed::Masked),
            raw: self.outcome(event, call, rule.ignore_result, Hashed::Raw),
            content: self.key.known(Tag::Content, &call.content_hash),
            state: self.key.known(Tag::State, &event.state_hash),
        };
        Some(Made { facts, target })
    }

    pub fn round(&self, event: &Event) -> Option<Sig> {
        self.key.known(Tag::Round, &event.round_id)
    }

    fn turn(&self, text: &str) -> TurnFacts {
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &self.key);
        sketcher.finish(&self.key)
    }

    /// All that was sent of an outcome, in one hash. What was not sent leaves
    /// its own mark, so that "unknown" never equals "empty".
    fn outcome(&self, event: &Event, call: &ToolCall, ignore_result: bool, how: Hashed) -> Sig {
        let mut hasher = self.key.hasher(Tag::Outcome);
        hasher.write_u8(match call.outcome {
            None => 0,
            Some(Outcome::Ok) => 1,
            Some(Outcome::Error) => 2,
            Some(Outcome::Blocked) => 3,
        });
        if !ignore_result {
            if !call.result_hash.is_empty() {
                hasher.write_u8(1);
                hasher.write(call.result_hash.as_bytes());
            } else if let Some(result) = &call.result {
                hasher.write_u8(2);
                how.write(result, Mask::Result, &mut hasher);
            }
        }
        hasher.write_u8(3);
        how.write(&call.error, Mask::Error, &mut hasher);
        hasher.write_u8(4);
        hasher.write(call.content_hash.as_bytes());
        hasher.write_u8(5);
        hasher.write(event.state_hash.as_bytes());
        Sig::new(hasher.finish())
    }
}

/// Whether times, ids and the like count.
#[derive(Clone, Copy)]
enum Hashed {
    Masked,
    Raw,
}

impl Hashed {
    fn write(self, text: &str, kind: Mask, hasher: &mut impl Hasher) {
        match self {
            Self::Masked => mask::masked_hash(text, kind, hasher),
            Self::Raw => hasher.write(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests;
