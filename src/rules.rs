//! What the operator's own rules make of an event: `[[rules]]`.
//!
//! A rule is three expressions: whether the event counts (`when`), what makes two
//! such events the same (`key`), and whether the count starts anew
//! (`reset_when`). They are compiled and checked once, at the start; what is
//! counted, and how far back, is the detector's.
//!
//! Rules are looked at before the session is locked, but for those that name
//! `session`: these may hold only few steps.
//!
//! Uses: domain, text, facts, detect, policy.

mod check;
mod counts;
mod expression;
mod row;
mod scope;
mod types;

use cel::Context;
use thiserror::Error;

use crate::{
    domain::{AgentId, Event, RuleSight, Sig, Totals},
    facts::EventFacts,
    text::{Key, key::Tag},
};
pub use counts::{RuleSettings, RuleStates};
pub use row::{RowError, RuleRow, check_rows, compile, key_path};

use check::{Patterns, Use};
use expression::{Expression, Failed, Fault};
use scope::Scope;

/// The expressions of a rule, as they stand in `[[rules]]`.
#[derive(Clone, Copy, Debug)]
pub struct RuleText<'a> {
    pub name: &'a str,
    pub when: &'a str,
    /// Empty: all that count are the same.
    pub key: &'a str,
    /// Empty: only a user, or a new run, starts the count anew.
    pub reset_when: &'a str,
}

/// A rule that cannot be looked at.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct RuleError {
    /// Which of the rules, from 0.
    pub rule: usize,
    pub key: &'static str,
    why: String,
}

/// The rules, ready to be looked at.
pub struct Rules {
    rules: Vec<Rule>,
    root: Context<'static, 'static>,
    /// Any of them asks for the arguments, which costs a parse of their text.
    wants_args: bool,
}

struct Rule {
    name: Box<str>,
    when: Expression,
    key: Option<Expression>,
    reset_when: Option<Expression>,
    uses: Use,
}

/// What the rules make of an event so far, and what those need that can only be
/// looked at once the session is known.
#[derive(Default)]
pub struct Ruled<'a> {
    /// In a box, since it is large and most often there are no rules.
    scope: Option<Box<Scope<'a>>>,
    pub sights: Vec<RuleSight>,
}

impl Rules {
    /// Of a turn an expression sees the first so many bytes: as much as is kept
    /// of one whose text is streamed.
    pub const TURN_BYTES_MAX: usize = 1_024;

    pub fn new<'a>(texts: impl IntoIterator<Item = RuleText<'a>>) -> Result<Self, RuleError> {
        let mut patterns = Patterns::default();
        let mut rules = Vec::new();
        for (position, text) in texts.into_iter().enumerate() {
            let refused = |(key, fault): (&'static str, Fault)| RuleError {
                rule: position,
                key,
                why: format!("rule {:?}: {fault}", text.name),
            };
            rules.push(Rule::new(text, &mut patterns).map_err(refused)?);
        }
        Ok(Self {
            wants_args: rules.iter().any(|rule: &Rule| rule.uses.args),
            rules,
            root: expression::root(patterns),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many bytes of a streamed turn the expressions need; 0 without rules.
    pub fn turn_bytes(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            Self::TURN_BYTES_MAX
        }
    }

    /// Looks at an event, with no lock held. Nobody looks at a call that was
    /// blocked or is exempt.
    pub fn look<'a>(&self, event: &'a Event, facts: &EventFacts<'a>, key: &Key) -> Ruled<'a> {
        if self.is_empty() {
            return Ruled::default();
        }
        let scope = Scope::of(event, facts, self.wants_args);
        self.first_look(scope, key)
    }

    /// Looks at a turn whose text came in pieces.
    pub fn look_at_turn<'a>(&self, agent: &'a AgentId, text: &'a str, key: &Key) -> Ruled<'a> {
        if self.is_empty() {
            return Ruled::default();
        }
        self.first_look(Some(Scope::of_turn(agent, text)), key)
    }

    fn first_look<'a>(&self, scope: Option<Scope<'a>>, key: &Key) -> Ruled<'a> {
        let mut sights = Vec::new();
        if let Some(scope) = &scope {
            self.each(false, scope, key, &mut sights);
        }
        let scope = scope.map(Box::new);
        Ruled { scope, sights }
    }

    /// Looks once more, for the rules that name `session`.
    pub fn look_again(&self, ruled: &mut Ruled<'_>, totals: Totals, key: &Key) {
        if let Some(scope) = &mut ruled.scope
            && self.rules.iter().any(|rule| rule.uses.session)
        {
            scope.session = totals;
            self.each(true, scope, key, &mut ruled.sights);
        }
    }

    fn each(&self, session: bool, scope: &Scope<'_>, key: &Key, sights: &mut Vec<RuleSight>) {
        let root: &Context<'_, '_> = &self.root;
        let mut context = root.new_inner_scope();
        context.set_variable_resolver(scope);
        for (position, rule) in (0..).zip(&self.rules) {
            if rule.uses.session == session {
                sights.extend(rule.look(position, &context, key));
            }
        }
    }
}

impl Rule {
    fn new(text: RuleText<'_>, patterns: &mut Patterns) -> Result<Self, (&'static str, Fault)> {
        let mut uses = Use::default();
        let optional = |source: &str| !source.trim().is_empty();
        let mut compile = |key: &'static str, source: &str| {
            let compiled = match key {
                "key" => Expression::key(source, patterns),
                _ => Expression::condition(source, patterns),
            };
            let (expression, own) = compiled.map_err(|fault| (key, fault))?;
            uses += own;
            Ok(expression)
        };
        let when = compile("when", text.when)?;
        let key = optional(text.key).then(|| compile("key", text.key));
        let reset_when = optional(text.reset_when).then(|| compile("reset_when", text.reset_when));
        let rule = Self {
            name: text.name.into(),
            when,
            key: key.transpose()?,
            reset_when: reset_when.transpose()?,
            uses,
        };
        uses.check().map_err(|fault| ("when", fault))?;
        Ok(rule)
    }

    /// `None`: the event is none of its business.
    fn look(&self, rule: u8, context: &Context<'_, '_>, key: &Key) -> Option<RuleSight> {
        let mut failed = None;
        let mut holds = |name: &'static str, expression: &Expression| {
            let truth = expression.truth(context);
            truth.unwrap_or_else(|Failed| {
                failed = Some(name);
                false
            })
        };
        let resets = self.reset_when.as_ref();
        let resets = resets.is_some_and(|condition| holds("reset_when", condition));
        let counts = holds("when", &self.when);
        let same = counts.then(|| self.same(context, key));
        let same = same.and_then(|same| same.map_err(|Failed| failed = Some("key")).ok());
        let sight = RuleSight {
            rule,
            same,
            resets,
            failed,
            apart: self.uses.call_kind,
        };
        (resets || same.is_some() || failed.is_some()).then_some(sight)
    }

    /// What the event is the same as: the rule, and its key where it has one.
    fn same(&self, context: &Context<'_, '_>, key: &Key) -> Result<Sig, Failed> {
        let mut hasher = key.hasher(Tag::Rule);
        if let Some(expression) = &self.key {
            expression.hash(context, &mut hasher)?;
        }
        Ok(key.finish(hasher, &self.name))
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.rules.iter().map(|rule| &rule.name))
            .finish()
    }
}

#[cfg(test)]
mod tests;
