//! The operator's own rules: `[[rules]]`, written in CEL (Common Expression
//! Language).
//!
//! A rule has up to three expressions: `when` says whether an event counts, `key`
//! groups events that are counted together, and `reset_when` restarts the count. The
//! rule fires when `count` events with the same key occur in the last `window` events
//! of an agent. It is then treated like a detector named `rule:<name>`.
//!
//! **What is compiled.** `row` reads a row of `[[rules]]`, its defaults and its
//! checks. `expression` parses each expression, and `type_checker` walks the
//! syntax tree once: every variable and function must exist, operators must fit
//! their operands (`types`), regular expressions must be literals and are compiled,
//! and the number of evaluation steps is bounded. All of this happens when the
//! configuration is loaded or reloaded; a mistake is an error with line and column.
//! A checked expression either evaluates or fails on an event; it never panics.
//!
//! **When it is evaluated.** `event_scope` offers the fields of an event as
//! variables, without copying text. Rules that do not read `session.…` are evaluated
//! before the session is locked ([`Rules::evaluate`]); the others afterwards, under
//! the lock ([`Rules::evaluate_with_session`]). The result is one [`RuleOutcome`] per
//! rule that concerns the event. `counts` then counts them per agent and emits
//! findings. An expression that cannot be evaluated (a field is missing or has another
//! type) does not count the event and is reported as a missing field.
//!
//! **Bounds.** At most 32 rules (`detect::RULES_MAX`). An expression has at most 1,024
//! bytes and nests at most 24 deep. The expressions of a rule take at most 8,192 steps
//! per event, or 200 if they read `session`, because then the session is locked; a
//! walk over arguments counts as 256 steps per part, a regular expression on a text of
//! the event as 32. All rules together take at most 8,192 steps per event, where a walk
//! counts as many steps as the arguments have values; a rule for which too few are left
//! abstains. A compiled pattern has at most 128 KiB, and matching is linear in
//! the text. Texts are truncated to 4 KiB (turns: 1 KiB); arguments longer than 16 KiB
//! or with more than 256 values are not parsed. A window has at most 256 events.
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

/// The source text of a rule's expressions.
#[derive(Clone, Copy, Debug)]
pub struct RuleText<'a> {
    pub name: &'a str,
    pub when: &'a str,
    /// Empty: all events that count have the same key.
    pub key: &'a str,
    /// Empty: only a message of the user or a new run restarts the count.
    pub reset_when: &'a str,
}

/// A rule that does not compile.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct RuleError {
    /// The rule's index.
    pub rule: usize,
    pub key: &'static str,
    why: String,
}

/// The compiled rules.
pub struct Rules {
    rules: Vec<Rule>,
    root: Context<'static, 'static>,
    /// At least one rule reads the arguments, which must be parsed then.
    wants_args: bool,
}

struct Rule {
    name: Box<str>,
    when: Expression,
    key: Option<Expression>,
    reset_when: Option<Expression>,
    requirements: Requirements,
}

/// The outcomes of the rules evaluated so far, and the scope for the rules that read
/// `session`.
#[derive(Default)]
pub struct RuleOutcomes<'a> {
    /// Boxed, because it is large and usually there are no rules.
    scope: Option<Box<EventScope<'a>>>,
    pub outcomes: Vec<RuleOutcome>,
    /// The steps that the evaluated rules may have taken.
    steps: usize,
    /// A rule abstained, because the others before it took too many steps.
    is_work_limited: bool,
}

impl RuleOutcomes<'_> {
    /// Whether a rule abstained because all rules together take too many steps.
    pub fn is_work_limited(&self) -> bool {
        self.is_work_limited
    }
}

/// The failed expression that a rule without steps left reports.
const STEPS_EXHAUSTED: &str = "steps";

impl Rules {
    /// Bytes of a turn that an expression can read. As many are stored of a streamed
    /// turn.
    pub const TURN_BYTES_MAX: usize = 1_024;
    /// Most steps of all rules on one event: as many as one rule may take.
    pub const EVENT_STEPS_MAX: usize = 8_192;

    pub fn new<'a>(texts: impl IntoIterator<Item = RuleText<'a>>) -> Result<Self, RuleError> {
        let mut patterns = Patterns::default();
        let mut rules = Vec::new();
        for (position, text) in texts.into_iter().enumerate() {
            let rule = Rule::new(text, &mut patterns).map_err(|(key, error)| RuleError {
                rule: position,
                key,
                why: format!("rule {:?}: {error}", text.name),
            })?;
            rules.push(rule);
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

    /// The bytes of a streamed turn that must be stored for the expressions; 0
    /// without rules.
    pub fn turn_bytes(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            Self::TURN_BYTES_MAX
        }
    }

    /// Evaluates the rules that do not read `session`, with no lock held. A call that
    /// was blocked or is exempt concerns no rule.
    pub fn evaluate<'a>(
        &self,
        event: &'a Event,
        facts: &EventFacts,
        key: &HashKey,
    ) -> RuleOutcomes<'a> {
        if self.is_empty() {
            return RuleOutcomes::default();
        }
        let scope = EventScope::from_event(event, facts, self.wants_args);
        self.evaluate_without_session(scope, key)
    }

    /// Evaluates the rules that do not read `session` on a streamed turn.
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
        let mut rule_outcomes = RuleOutcomes::default();
        if let Some(scope) = scope {
            self.evaluate_each(false, &scope, key, &mut rule_outcomes);
            rule_outcomes.scope = Some(Box::new(scope));
        }
        rule_outcomes
    }

    /// Evaluates the rules that read `session`, under the session's lock.
    pub fn evaluate_with_session(
        &self,
        rule_outcomes: &mut RuleOutcomes<'_>,
        totals: Totals,
        key: &HashKey,
    ) {
        if !self.rules.iter().any(|rule| rule.requirements.session) {
            return;
        }
        if let Some(mut scope) = rule_outcomes.scope.take() {
            scope.session = totals;
            self.evaluate_each(true, &scope, key, rule_outcomes);
        }
    }

    fn evaluate_each(
        &self,
        reads_session: bool,
        scope: &EventScope<'_>,
        key: &HashKey,
        rule_outcomes: &mut RuleOutcomes<'_>,
    ) {
        let root: &Context<'_, '_> = &self.root;
        let mut context = root.new_inner_scope();
        context.set_variable_resolver(scope);
        for (position, rule) in (0..).zip(&self.rules) {
            if rule.requirements.session != reads_session {
                continue;
            }
            let steps = rule.requirements.steps(scope.args_values);
            if rule_outcomes.steps + steps > Self::EVENT_STEPS_MAX {
                rule_outcomes.is_work_limited = true;
                rule_outcomes.outcomes.push(rule.abstain(position));
                continue;
            }
            rule_outcomes.steps += steps;
            let outcome = rule.evaluate(position, &context, key);
            rule_outcomes.outcomes.extend(outcome);
        }
    }
}

impl Rule {
    fn new(
        text: RuleText<'_>,
        patterns: &mut Patterns,
    ) -> Result<Self, (&'static str, ExpressionError)> {
        let (when, mut requirements) =
            Expression::compile_condition(text.when, patterns).map_err(|error| ("when", error))?;
        let mut key = None;
        if !text.key.trim().is_empty() {
            let (expression, own) =
                Expression::compile_key(text.key, patterns).map_err(|error| ("key", error))?;
            requirements += own;
            key = Some(expression);
        }
        let mut reset_when = None;
        if !text.reset_when.trim().is_empty() {
            let (expression, own) = Expression::compile_condition(text.reset_when, patterns)
                .map_err(|error| ("reset_when", error))?;
            requirements += own;
            reset_when = Some(expression);
        }
        requirements
            .check_steps()
            .map_err(|error| ("when", error))?;
        Ok(Self {
            name: text.name.into(),
            when,
            key,
            reset_when,
            requirements,
        })
    }

    /// The outcome of a rule that is not evaluated: the event does not count.
    fn abstain(&self, rule: u8) -> RuleOutcome {
        RuleOutcome {
            rule,
            group_key: None,
            resets: false,
            failed_expression: Some(STEPS_EXHAUSTED),
            uses_call_kind: self.requirements.call_kind,
        }
    }

    /// `None`: the event neither counts nor resets, and nothing failed.
    fn evaluate(&self, rule: u8, context: &Context<'_, '_>, key: &HashKey) -> Option<RuleOutcome> {
        let mut failed = None;
        let mut evaluate_condition = |name: &'static str, expression: &Expression| {
            expression
                .evaluate_bool(context)
                .unwrap_or_else(|EvaluationError| {
                    failed = Some(name);
                    false
                })
        };
        let resets = self
            .reset_when
            .as_ref()
            .is_some_and(|condition| evaluate_condition("reset_when", condition));
        let counts = evaluate_condition("when", &self.when);
        let mut group_key = None;
        if counts {
            match self.group_key(context, key) {
                Ok(signature) => group_key = Some(signature),
                Err(EvaluationError) => failed = Some("key"),
            }
        }
        let outcome = RuleOutcome {
            rule,
            group_key,
            resets,
            failed_expression: failed,
            uses_call_kind: self.requirements.call_kind,
        };
        (resets || group_key.is_some() || failed.is_some()).then_some(outcome)
    }

    /// The signature of the rule and its key, by which events are counted together.
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
