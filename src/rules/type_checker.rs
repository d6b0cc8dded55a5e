//! Checks an expression before it is ever evaluated.

use std::{collections::HashMap, ops::AddAssign};

use cel::{
    IdedExpr,
    common::{
        ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr},
        types::CelString,
    },
};
use regex::{Regex, RegexBuilder};

use super::{
    event_scope::{ARGS_VALUES_MAX, VARIABLES},
    expression::ExpressionError,
    types::{
        Type, binary_result, literal_type, method_result, misuse_message, ternary_result,
        unary_result, unknown_name_message,
    },
};

/// The compiled regular expressions of all rules, by their text.
pub(super) type Patterns = HashMap<Box<str>, Regex>;

/// What the expressions of a rule read, and their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requirements {
    pub session: bool,
    pub args: bool,
    pub call_kind: bool,
    /// The maximum number of nodes that are evaluated once, and of those that are
    /// evaluated for each value of the arguments.
    fixed_steps: usize,
    steps_per_value: usize,
}

/// Walks an expression once: every name must be known, every operation must fit its
/// operands, and the cost must be bounded. An accepted expression either evaluates or
/// fails on an event; it does not panic.
pub(super) struct TypeChecker<'a> {
    patterns: &'a mut Patterns,
    nesting_max: usize,
    nesting: usize,
    /// The variables of `exists`, `all` and `exists_one` around the current node.
    locals: Vec<String>,
    /// How often the current node is evaluated at most, or, within a walk over the
    /// arguments, for each of their values.
    evaluations: usize,
    is_in_walk: bool,
    pub requirements: Requirements,
}

/// An error is the id of the node, and the reason.
type CheckResult<T> = Result<T, (u64, String)>;

/// Most steps of the expressions of a rule. A step takes 20 to 500 ns.
const STEPS_MAX: usize = 8_192;
/// Most steps under the session's lock, for which others may wait: 20 µs are
/// acceptable.
const SESSION_STEPS_MAX: usize = 200;
/// Searching one of the event's texts of 4 KiB takes as long as this many steps.
const TEXT_SEARCH_STEPS: usize = 32;
/// Size of a compiled pattern: a hundred times that of a path or an address. The text
/// is bounded too, and the time is linear in both.
const PATTERN_BYTES_MAX: usize = 128 * 1024;

impl<'a> TypeChecker<'a> {
    pub fn new(patterns: &'a mut Patterns, nesting_max: usize) -> Self {
        Self {
            patterns,
            nesting_max,
            nesting: 0,
            locals: Vec::new(),
            evaluations: 1,
            is_in_walk: false,
            requirements: Requirements::default(),
        }
    }

    pub fn check_expression(&mut self, expr: &IdedExpr) -> CheckResult<Type> {
        // A chain of `+` nests without parentheses, so the parser's limit is not enough.
        if self.nesting == self.nesting_max {
            return Err((
                expr.id,
                format!("nested more than {} levels deep", self.nesting_max),
            ));
        }
        self.nesting += 1;
        self.add_steps(1);
        let kind = self.check_node(expr);
        self.nesting -= 1;
        kind
    }

    /// Adds steps for each evaluation of the current node.
    fn add_steps(&mut self, steps: usize) {
        let total = if self.is_in_walk {
            &mut self.requirements.steps_per_value
        } else {
            &mut self.requirements.fixed_steps
        };
        *total = total.saturating_add(self.evaluations.saturating_mul(steps));
    }

    fn check_node(&mut self, expr: &IdedExpr) -> CheckResult<Type> {
        let reject = |why: &str| Err((expr.id, why.to_owned()));
        match &expr.expr {
            Expr::Literal(LiteralValue::Bytes(_)) => reject("there are no bytes, only texts"),
            Expr::Literal(literal) => Ok(literal_type(literal)),
            Expr::Ident(name) => self.check_variable(expr.id, name),
            Expr::Select(select) => self.check_select(expr.id, select),
            Expr::Call(call) => self.check_call(expr.id, call),
            Expr::Comprehension(comprehension) => self.check_comprehension(expr.id, comprehension),
            Expr::List(list) => {
                for item in &list.elements {
                    self.check_expression(item)?;
                }
                Ok(Type::List)
            }
            Expr::Map(_) | Expr::Struct(_) => reject("objects cannot be made here, only lists"),
            Expr::Unspecified => reject("something is missing"),
        }
    }

    fn check_variable(&mut self, id: u64, name: &str) -> CheckResult<Type> {
        if self.locals.iter().any(|local| local == name) {
            return Ok(Type::Any);
        }
        let known = VARIABLES.iter().find(|(known, _)| *known == name);
        let Some((_, kind)) = known else {
            return Err((
                id,
                unknown_name_message("variable", name, VARIABLES.iter().map(|(n, _)| *n)),
            ));
        };
        self.requirements.args |= name == "args";
        self.requirements.call_kind |= name == "call_kind";
        self.requirements.session |= name.starts_with("session.");
        Ok(*kind)
    }

    fn check_select(&mut self, id: u64, select: &SelectExpr) -> CheckResult<Type> {
        let of_session = matches!(&select.operand.expr, Expr::Ident(name) if name == "session");
        if of_session && !self.locals.iter().any(|local| local == "session") {
            let kind = self.check_variable(id, &format!("session.{}", select.field))?;
            return if select.test {
                Err((id, "it is always there".to_owned()))
            } else {
                Ok(kind)
            };
        }
        let operand = self.check_expression(&select.operand)?;
        if !operand.may_be(Type::Map) {
            return Err((id, format!("{operand} has no field `{}`", select.field)));
        }
        Ok(if select.test { Type::Bool } else { Type::Any })
    }

    fn check_call(&mut self, id: u64, call: &CallExpr) -> CheckResult<Type> {
        let mut operands = Vec::new();
        for operand in call.target.as_deref().into_iter().chain(&call.args) {
            operands.push(self.check_expression(operand)?);
        }
        if call.func_name == "matches"
            && let Some(target) = &call.target
        {
            self.compile_pattern(id, call)?;
            if self.is_event_text(target) {
                self.add_steps(TEXT_SEARCH_STEPS);
            }
        }
        let name = call.func_name.as_str();
        let kind = match (call.target.is_some(), operands.as_slice()) {
            (false, [a]) => unary_result(name, *a),
            (false, [a, b]) => binary_result(name, *a, *b),
            (false, [a, b, c]) => ternary_result(name, *a, *b, *c),
            (true, operands) => method_result(name, operands),
            (false, _) => None,
        };
        kind.ok_or_else(|| (id, misuse_message(name, &operands)))
    }

    /// Whether this is a text of the event, which a comprehension would search once per
    /// item. The items themselves are together no longer than the arguments.
    fn is_event_text(&self, expr: &IdedExpr) -> bool {
        matches!(&expr.expr, Expr::Ident(name) if !self.locals.contains(name))
    }

    /// Compiles a literal pattern. Other patterns are rejected: an agent could supply
    /// them, they would be compiled on every event, and could have any size.
    fn compile_pattern(&mut self, id: u64, call: &CallExpr) -> CheckResult<()> {
        let Some(pattern) = call.args.first().and_then(string_literal) else {
            return Err((id, "the pattern must be written out, as a text".to_owned()));
        };
        if !self.patterns.contains_key(pattern) {
            let compiled = RegexBuilder::new(pattern)
                .size_limit(PATTERN_BYTES_MAX)
                .build()
                .map_err(|error| (id, regex_error(&error)))?;
            self.patterns.insert(pattern.into(), compiled);
        }
        Ok(())
    }

    /// Checks `exists`, `all` and `exists_one`. Macros that build lists are rejected,
    /// because the order of an object's fields is undefined.
    fn check_comprehension(
        &mut self,
        id: u64,
        comprehension: &ComprehensionExpr,
    ) -> CheckResult<Type> {
        let yields_bool = matches!(
            comprehension.accu_init.expr,
            Expr::Literal(LiteralValue::Boolean(_) | LiteralValue::Int(_))
        );
        if !yields_bool {
            let why =
                "lists cannot be made of others here: ask with `exists`, `all` or `exists_one`";
            return Err((id, why.to_owned()));
        }
        // The items.
        let range = self.check_expression(&comprehension.iter_range)?;
        if !range.may_be(Type::List) && !range.may_be(Type::Map) {
            return Err((id, format!("{range} has no items")));
        }
        // The body runs once per item, so its steps are multiplied.
        let outer = (self.evaluations, self.is_in_walk);
        match &comprehension.iter_range.expr {
            Expr::List(list) => {
                self.evaluations = self.evaluations.saturating_mul(list.elements.len());
            }
            // A walk within a walk counts in full, which is more than is allowed.
            _ if self.is_in_walk => {
                self.evaluations = self.evaluations.saturating_mul(ARGS_VALUES_MAX);
            }
            _ => self.is_in_walk = true,
        }
        // Check the body, with the variables of the macro.
        let locals = self.locals.len();
        self.locals.extend([
            comprehension.iter_var.clone(),
            comprehension.accu_var.clone(),
        ]);
        for part in [
            &comprehension.accu_init,
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ] {
            self.check_expression(part)?;
        }
        self.locals.truncate(locals);
        (self.evaluations, self.is_in_walk) = outer;
        Ok(Type::Bool)
    }
}

impl Requirements {
    /// Rejects expressions that could take too long.
    pub fn check_steps(&self) -> Result<(), ExpressionError> {
        let (most, why) = if self.session {
            (SESSION_STEPS_MAX, ", since it names `session`")
        } else {
            (STEPS_MAX, "")
        };
        let steps = self.steps(ARGS_VALUES_MAX);
        if steps <= most {
            return Ok(());
        }
        let walks = "a walk over arguments counts as";
        Err(ExpressionError::without_position(format!(
            "its expressions may take {steps} steps an event ({walks} {ARGS_VALUES_MAX}), at \
             most {most}{why}"
        )))
    }

    /// The most steps on an event whose arguments have this many values.
    pub fn steps(&self, values: usize) -> usize {
        let walks = self.steps_per_value.saturating_mul(values);
        self.fixed_steps.saturating_add(walks)
    }
}

impl AddAssign for Requirements {
    fn add_assign(&mut self, other: Self) {
        self.session |= other.session;
        self.args |= other.args;
        self.call_kind |= other.call_kind;
        self.fixed_steps = self.fixed_steps.saturating_add(other.fixed_steps);
        self.steps_per_value = self.steps_per_value.saturating_add(other.steps_per_value);
    }
}

fn string_literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(CelString::inner(text)),
        _ => None,
    }
}

/// Only the last line of the message, which has the reason; the lines before show the
/// pattern.
fn regex_error(error: &regex::Error) -> String {
    let text = error.to_string();
    let why = text
        .lines()
        .last()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    format!("invalid regular expression: {why}")
}
