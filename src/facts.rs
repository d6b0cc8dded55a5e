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

use crate::domain::{CallFacts, Event, Outcome, Sig, ToolCall, TurnFacts, text};
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

impl Facts {
    pub fn new(key: Key, tools: Tools) -> Self {
        Self { key, tools }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The facts of a call; `None` where its tool is exempt from detection.
    pub fn call<'a>(&self, event: &'a Event, call: &'a ToolCall) -> Option<Made<'a>> {
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

    pub fn turn(&self, text: &str) -> TurnFacts {
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &self.key);
        sketcher.finish()
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
