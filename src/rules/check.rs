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
    expression::Fault,
    scope::{ARGS_VALUES_MAX, VARIABLES},
    types::{Type, binary, literal_type, method, misused, ternary, unary, unknown},
};

/// The patterns of all expressions, compiled.
pub(super) type Patterns = HashMap<Box<str>, Regex>;

/// What expressions ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    pub session: bool,
    pub args: bool,
    pub call_kind: bool,
    /// The parts that are evaluated, at most.
    steps: usize,
}

/// Goes through an expression once, before it is ever evaluated: every name is
/// known, every operation has operands that it takes, and what it costs is
/// bounded. What it lets through either evaluates or fails; it does not panic.
pub(super) struct Check<'a> {
    patterns: &'a mut Patterns,
    nesting_max: usize,
    nesting: usize,
    /// What `exists` and its like call the items they walk over.
    locals: Vec<String>,
    /// How often the present part is evaluated, at most.
    times: usize,
    pub uses: Use,
}

/// The part at fault, and why.
type Checked<T> = Result<T, (u64, String)>;

/// Steps of the expressions of a rule. One takes 20 to 200 ns.
const STEPS_MAX: usize = 8_192;
/// While a session is locked others may wait for it: 20 µs are bearable.
const SESSION_STEPS_MAX: usize = 200;
/// To search one of the event's texts, which have 4 KiB, takes as long as so many.
const TEXT_STEPS: usize = 32;
/// A pattern as a program: a hundred times that of a path or an address. What it
/// searches is bounded too, and the time is linear in both.
const PATTERN_BYTES_MAX: usize = 128 * 1024;

impl<'a> Check<'a> {
    pub fn new(patterns: &'a mut Patterns, nesting_max: usize) -> Self {
        Self {
            patterns,
            nesting_max,
            nesting: 0,
            locals: Vec::new(),
            times: 1,
            uses: Use::default(),
        }
    }

    pub fn expression(&mut self, expr: &IdedExpr) -> Checked<Type> {
        // A row of `+` nests without a parenthesis.
        if self.nesting == self.nesting_max {
            return Err((
                expr.id,
                format!("it nests more than {} deep", self.nesting_max),
            ));
        }
        self.nesting += 1;
        self.uses.steps = self.uses.steps.saturating_add(self.times);
        let kind = self.part(expr);
        self.nesting -= 1;
        kind
    }

    fn part(&mut self, expr: &IdedExpr) -> Checked<Type> {
        let refused = |why: &str| Err((expr.id, why.to_owned()));
        match &expr.expr {
            Expr::Literal(LiteralValue::Bytes(_)) => refused("there are no bytes, only texts"),
            Expr::Literal(literal) => Ok(literal_type(literal)),
            Expr::Ident(name) => self.variable(expr.id, name),
            Expr::Select(select) => self.select(expr.id, select),
            Expr::Call(call) => self.call(expr.id, call),
            Expr::Comprehension(walk) => self.walk(expr.id, walk),
            Expr::List(list) => {
                for item in &list.elements {
                    self.expression(item)?;
                }
                Ok(Type::List)
            }
            Expr::Map(_) | Expr::Struct(_) => refused("objects cannot be made here, only lists"),
            Expr::Unspecified => refused("something is missing"),
        }
    }

    fn variable(&mut self, id: u64, name: &str) -> Checked<Type> {
        if self.locals.iter().any(|local| local == name) {
            return Ok(Type::Any);
        }
        let known = VARIABLES.iter().find(|(known, _)| *known == name);
        let Some((_, kind)) = known else {
            return Err((
                id,
                unknown("variable", name, VARIABLES.iter().map(|(n, _)| *n)),
            ));
        };
        self.uses.args |= name == "args";
        self.uses.call_kind |= name == "call_kind";
        self.uses.session |= name.starts_with("session.");
        Ok(*kind)
    }

    fn select(&mut self, id: u64, select: &SelectExpr) -> Checked<Type> {
        let of_session = matches!(&select.operand.expr, Expr::Ident(name) if name == "session");
        if of_session && !self.locals.iter().any(|local| local == "session") {
            let kind = self.variable(id, &format!("session.{}", select.field))?;
            return match select.test {
                true => Err((id, "it is always there".to_owned())),
                false => Ok(kind),
            };
        }
        let operand = self.expression(&select.operand)?;
        if !operand.is(Type::Map) {
            return Err((id, format!("{operand} has no field `{}`", select.field)));
        }
        Ok(if select.test { Type::Bool } else { Type::Any })
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Checked<Type> {
        let mut operands = Vec::new();
        for operand in call.target.as_deref().into_iter().chain(&call.args) {
            operands.push(self.expression(operand)?);
        }
        if call.func_name == "matches"
            && let Some(target) = &call.target
        {
            self.pattern(id, call)?;
            if self.is_whole_text(target) {
                let more = self.times.saturating_mul(TEXT_STEPS);
                self.uses.steps = self.uses.steps.saturating_add(more);
            }
        }
        let name = call.func_name.as_str();
        let kind = match (call.target.is_some(), operands.as_slice()) {
            (false, [a]) => unary(name, *a),
            (false, [a, b]) => binary(name, *a, *b),
            (false, [a, b, c]) => ternary(name, *a, *b, *c),
            (true, operands) => method(name, operands),
            (false, _) => None,
        };
        kind.ok_or_else(|| (id, misused(name, &operands)))
    }

    /// Whether this is a text of the event. In a walk it would be searched for each
    /// item; the items themselves are together no longer than the arguments.
    fn is_whole_text(&self, expr: &IdedExpr) -> bool {
        matches!(&expr.expr, Expr::Ident(name) if !self.locals.contains(name))
    }

    /// A pattern that an agent could write would be compiled on every event, and
    /// could be of any size.
    fn pattern(&mut self, id: u64, call: &CallExpr) -> Checked<()> {
        let Some(pattern) = call.args.first().and_then(text_of) else {
            return Err((id, "the pattern must be written out, as a text".to_owned()));
        };
        if !self.patterns.contains_key(pattern) {
            let compiled = RegexBuilder::new(pattern)
                .size_limit(PATTERN_BYTES_MAX)
                .build()
                .map_err(|error| (id, regex_fault(&error)))?;
            self.patterns.insert(pattern.into(), compiled);
        }
        Ok(())
    }

    /// `exists`, `all` and `exists_one`. What makes lists is left out: an
    /// object's fields come in any order, and so would they.
    fn walk(&mut self, id: u64, walk: &ComprehensionExpr) -> Checked<Type> {
        let decides = matches!(
            walk.accu_init.expr,
            Expr::Literal(LiteralValue::Boolean(_) | LiteralValue::Int(_))
        );
        if !decides {
            let why =
                "lists cannot be made of others here: ask with `exists`, `all` or `exists_one`";
            return Err((id, why.to_owned()));
        }
        let range = self.expression(&walk.iter_range)?;
        if !range.is(Type::List) && !range.is(Type::Map) {
            return Err((id, format!("{range} has no items")));
        }
        let outer = self.times;
        self.times = outer.saturating_mul(items_max(&walk.iter_range));
        let locals = self.locals.len();
        self.locals
            .extend([walk.iter_var.clone(), walk.accu_var.clone()]);
        for part in [
            &walk.accu_init,
            &walk.loop_cond,
            &walk.loop_step,
            &walk.result,
        ] {
            self.expression(part)?;
        }
        self.locals.truncate(locals);
        self.times = outer;
        Ok(Type::Bool)
    }
}

impl Use {
    /// Refuses what could take long.
    pub fn check(&self) -> Result<(), Fault> {
        let (most, why) = match self.session {
            true => (SESSION_STEPS_MAX, ", since it names `session`"),
            false => (STEPS_MAX, ""),
        };
        if self.steps <= most {
            return Ok(());
        }
        let walks = "a walk over arguments counts as";
        Err(Fault::whole(format!(
            "its expressions may take {} steps an event ({walks} {ARGS_VALUES_MAX}), at most \
             {most}{why}",
            self.steps
        )))
    }
}

impl AddAssign for Use {
    fn add_assign(&mut self, other: Self) {
        self.session |= other.session;
        self.args |= other.args;
        self.call_kind |= other.call_kind;
        self.steps = self.steps.saturating_add(other.steps);
    }
}

/// How many items a walk goes over at most.
fn items_max(range: &IdedExpr) -> usize {
    match &range.expr {
        Expr::List(list) => list.elements.len(),
        _ => ARGS_VALUES_MAX,
    }
}

fn text_of(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(CelString::inner(text)),
        _ => None,
    }
}

/// The last line says what is wrong; those before draw the pattern.
fn regex_fault(error: &regex::Error) -> String {
    let text = error.to_string();
    let why = text
        .lines()
        .last()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    format!("the pattern is no regular expression: {why}")
}
