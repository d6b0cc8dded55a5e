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

mod counts;
mod event_scope;
mod expression;
mod row;
mod type_checker;
mod types;

use cel::Context;
use thiserror::Error;

use crate::{
    domain::{AgentId, Event, RuleOutcome, Sig, Totals},
    facts::EventFacts,
    text::{HashKey, key::SignatureKind},
};
pub use counts::{RuleSettings, RuleStates};
pub use row::{RowError, RuleRow, check_rows, compile, key_path};

use event_scope::EventScope;
use expression::{EvaluationError, Expression, ExpressionError};
use type_checker::{Patterns, Requirements};

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
    requirements: Requirements,
}

/// What the rules make of an event so far, and what those need that can only be
/// looked at once the session is known.
#[derive(Default)]
pub struct RuleOutcomes<'a> {
    /// In a box, since it is large and most often there are no rules.
    scope: Option<Box<EventScope<'a>>>,
    pub outcomes: Vec<RuleOutcome>,
}

impl Rules {
    /// Of a turn an expression sees the first so many bytes: as much as is kept
    /// of one whose text is streamed.
    pub const TURN_BYTES_MAX: usize = 1_024;

    pub fn new<'a>(texts: impl IntoIterator<Item = RuleText<'a>>) -> Result<Self, RuleError> {
        let mut patterns = Patterns::default();
        let mut rules = Vec::new();
        for (position, text) in texts.into_iter().enumerate() {
            let rule_error = |(key, fault): (&'static str, ExpressionError)| RuleError {
                rule: position,
                key,
                why: format!("rule {:?}: {fault}", text.name),
            };
            rules.push(Rule::new(text, &mut patterns).map_err(rule_error)?);
        }
        Ok(Self {
            wants_args: rules.iter().any(|rule: &Rule| rule.requirements.args),
            rules,
            root: expression::root_context(patterns),
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
    pub fn evaluate<'a>(
        &self,
        event: &'a Event,
        facts: &EventFacts<'a>,
        key: &HashKey,
    ) -> RuleOutcomes<'a> {
        if self.is_empty() {
            return RuleOutcomes::default();
        }
        let scope = EventScope::from_event(event, facts, self.wants_args);
        self.evaluate_without_session(scope, key)
    }

    /// Looks at a turn whose text came in pieces.
    pub fn evaluate_turn<'a>(
        &self,
        agent: &'a AgentId,
        text: &'a str,
        key: &HashKey,
    ) -> RuleOutcomes<'a> {
        if self.is_empty() {
            return RuleOutcomes::default();
        }
        self.evaluate_without_session(Some(EventScope::from_turn(agent, text)), key)
    }

    fn evaluate_without_session<'a>(
        &self,
        scope: Option<EventScope<'a>>,
        key: &HashKey,
    ) -> RuleOutcomes<'a> {
        let mut outcomes = Vec::new();
        if let Some(scope) = &scope {
            self.evaluate_each(false, scope, key, &mut outcomes);
        }
        let scope = scope.map(Box::new);
        RuleOutcomes { scope, outcomes }
    }

    /// Looks once more, for the rules that name `session`.
    pub fn evaluate_with_session(
        &self,
        rule_outcomes: &mut RuleOutcomes<'_>,
        totals: Totals,
        key: &HashKey,
    ) {
        if let Some(scope) = &mut rule_outcomes.scope
            && self.rules.iter().any(|rule| rule.requirements.session)
        {
            scope.session = totals;
            self.evaluate_each(true, scope, key, &mut rule_outcomes.outcomes);
        }
    }

    fn evaluate_each(
        &self,
        names_session: bool,
        scope: &EventScope<'_>,
        key: &HashKey,
        outcomes: &mut Vec<RuleOutcome>,
    ) {
        let root: &Context<'_, '_> = &self.root;
        let mut context = root.new_inner_scope();
        context.set_variable_resolver(scope);
        for (position, rule) in (0..).zip(&self.rules) {
            if rule.requirements.session == names_session {
                outcomes.extend(rule.evaluate(position, &context, key));
            }
        }
    }
}

impl Rule {
    fn new(
        text: RuleText<'_>,
        patterns: &mut Patterns,
    ) -> Result<Self, (&'static str, ExpressionError)> {
        let mut requirements = Requirements::default();
        let is_given = |source: &str| !source.trim().is_empty();
        let mut compile = |key: &'static str, source: &str| {
            let compiled = match key {
                "key" => Expression::compile_key(source, patterns),
                _ => Expression::compile_condition(source, patterns),
            };
            let (expression, own) = compiled.map_err(|fault| (key, fault))?;
            requirements += own;
            Ok(expression)
        };
        let when = compile("when", text.when)?;
        let key = is_given(text.key).then(|| compile("key", text.key));
        let reset_when = is_given(text.reset_when).then(|| compile("reset_when", text.reset_when));
        let rule = Self {
            name: text.name.into(),
            when,
            key: key.transpose()?,
            reset_when: reset_when.transpose()?,
            requirements,
        };
        requirements
            .check_steps()
            .map_err(|fault| ("when", fault))?;
        Ok(rule)
    }

    /// `None`: the event is none of its business.
    fn evaluate(&self, rule: u8, context: &Context<'_, '_>, key: &HashKey) -> Option<RuleOutcome> {
        let mut failed = None;
        let mut evaluate_condition = |name: &'static str, expression: &Expression| {
            let truth = expression.evaluate_bool(context);
            truth.unwrap_or_else(|EvaluationError| {
                failed = Some(name);
                false
            })
        };
        let resets = self.reset_when.as_ref();
        let resets = resets.is_some_and(|condition| evaluate_condition("reset_when", condition));
        let counts = evaluate_condition("when", &self.when);
        let same = counts.then(|| self.group_key(context, key));
        let same = same.and_then(|same| same.map_err(|EvaluationError| failed = Some("key")).ok());
        let outcome = RuleOutcome {
            rule,
            group_key: same,
            resets,
            failed_expression: failed,
            uses_call_kind: self.requirements.call_kind,
        };
        (resets || same.is_some() || failed.is_some()).then_some(outcome)
    }

    /// What the event is the same as: the rule, and its key where it has one.
    fn group_key(&self, context: &Context<'_, '_>, key: &HashKey) -> Result<Sig, EvaluationError> {
        let mut hasher = key.hasher(SignatureKind::Rule);
        if let Some(expression) = &self.key {
            expression.hash_value(context, &mut hasher)?;
        }
        Ok(key.finish_signature(hasher, &self.name))
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
