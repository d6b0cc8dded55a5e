//! Parsing and evaluating one expression.

use std::{fmt, hash::Hasher, sync::Arc};

use cel::{
    Context, Env, ExecutionError, FunctionContext, IdedExpr, Value,
    common::{
        ast::SourceInfo,
        types::{CelBool, CelDouble, CelInt, CelList, CelNull, CelString, CelUInt},
        value::{CowVal, Val},
    },
};

use super::{
    type_checker::{Patterns, Requirements, TypeChecker},
    types::Type,
};

/// An expression that passed all checks.
pub(super) struct Expression {
    root: IdedExpr,
}

/// Why an expression is rejected.
#[derive(Debug)]
pub(super) struct ExpressionError {
    /// Line and column, from 1; `None`: the whole expression.
    pub position: Option<(usize, usize)>,
    pub reason: String,
}

/// The expression could not be evaluated on an event, because a field is missing or
/// has another type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EvaluationError;

/// A longer expression is a program and belongs in a separate service.
const EXPRESSION_BYTES_MAX: usize = 1_024;
/// Each level takes a few kilobytes of stack during evaluation.
const NESTING_MAX: u16 = 24;
/// The parser checks the nesting only after it has recursed: up to 8 MiB of stack for
/// a thousand parentheses in an unoptimized build.
const PARSER_STACK_BYTES: usize = 32 * 1024 * 1024;

impl Expression {
    /// Compiles `when` or `reset_when`, which must be a boolean.
    pub fn compile_condition(
        source: &str,
        patterns: &mut Patterns,
    ) -> Result<(Self, Requirements), ExpressionError> {
        Self::new(source, patterns, |kind| match kind {
            Type::Bool | Type::Any => Ok(()),
            other => Err(format!("must be true or false, but is {other}")),
        })
    }

    /// Compiles `key`, which must not be an object.
    pub fn compile_key(
        source: &str,
        patterns: &mut Patterns,
    ) -> Result<(Self, Requirements), ExpressionError> {
        Self::new(source, patterns, |kind| match kind {
            Type::Map => Err("an object is no key: name the fields that matter".to_owned()),
            _ => Ok(()),
        })
    }

    fn new(
        source: &str,
        patterns: &mut Patterns,
        check_type: impl FnOnce(Type) -> Result<(), String>,
    ) -> Result<(Self, Requirements), ExpressionError> {
        if source.trim().is_empty() {
            return Err(ExpressionError::without_position("it is empty".to_owned()));
        }
        if source.len() > EXPRESSION_BYTES_MAX {
            return Err(ExpressionError::without_position(format!(
                "{} bytes, at most {EXPRESSION_BYTES_MAX}",
                source.len()
            )));
        }
        let (root, info) = parse(source)?;
        let mut checker = TypeChecker::new(patterns, NESTING_MAX.into());
        let kind = checker
            .check_expression(&root)
            .map_err(|(id, reason)| ExpressionError {
                position: line_and_column(&info, id),
                reason,
            })?;
        check_type(kind).map_err(ExpressionError::without_position)?;
        Ok((Self { root }, checker.requirements))
    }

    pub fn evaluate_bool(&self, context: &Context<'_, '_>) -> Result<bool, EvaluationError> {
        let value = self.evaluate(context)?;
        let truth = value.downcast_ref::<CelBool>().ok_or(EvaluationError)?;
        Ok(*truth.inner())
    }

    /// Hashes the value, which must be a scalar or a list of scalars.
    pub fn hash_value(
        &self,
        context: &Context<'_, '_>,
        hasher: &mut impl Hasher,
    ) -> Result<(), EvaluationError> {
        let value = self.evaluate(context)?;
        match value.downcast_ref::<CelList>() {
            Some(list) => {
                hasher.write_usize(list.inner().len());
                let mut items = list.inner().iter();
                items.try_for_each(|item| hash_scalar(item.as_ref(), hasher))
            }
            None => hash_scalar(value.as_ref(), hasher),
        }
    }

    fn evaluate<'e, 'v>(
        &'e self,
        context: &'e Context<'_, 'v>,
    ) -> Result<CowVal<'e, 'v>, EvaluationError> {
        Value::resolve_val(&self.root, context).map_err(|_| EvaluationError)
    }
}

impl ExpressionError {
    pub fn without_position(reason: String) -> Self {
        Self {
            position: None,
            reason,
        }
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.position {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// A function that the interpreter calls.
type CelFunction = Box<
    dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError>
        + Send
        + Sync,
>;

/// The context shared by all evaluations, each of which uses an inner scope. Building
/// a new context each time would cost twenty times as much.
pub(super) fn root_context(patterns: Patterns) -> Context<'static, 'static> {
    let mut root = Context::with_env(Arc::new(Env::stdlib()));
    let matches: CelFunction = Box::new(move |call| {
        let text = call
            .this
            .as_ref()
            .and_then(|this| this.downcast_ref::<CelString>());
        let pattern = call
            .args
            .first()
            .and_then(|arg| arg.downcast_ref::<CelString>());
        let regex = pattern.and_then(|pattern| patterns.get(pattern.inner()));
        match (text, regex) {
            (Some(text), Some(regex)) => {
                Ok(CowVal::owned(CelBool::from(regex.is_match(text.inner()))))
            }
            _ => Err(call.error("expects a text and a pattern")),
        }
    });
    // The only possible error is a duplicate name, and there is none.
    let _ = root.add_function("matches", matches);
    root
}

fn hash_scalar(value: &dyn Val, hasher: &mut impl Hasher) -> Result<(), EvaluationError> {
    if let Some(text) = value.downcast_ref::<CelString>() {
        hasher.write_u8(1);
        hasher.write_usize(text.inner().len());
        hasher.write(text.inner().as_bytes());
    } else if let Some(number) = value.downcast_ref::<CelInt>() {
        hasher.write_u8(2);
        hasher.write_i64(*number.inner());
    } else if let Some(number) = value.downcast_ref::<CelUInt>() {
        hasher.write_u8(3);
        hasher.write_u64(*number.inner());
    } else if let Some(number) = value.downcast_ref::<CelDouble>() {
        hasher.write_u8(4);
        hasher.write_u64(number.inner().to_bits());
    } else if let Some(truth) = value.downcast_ref::<CelBool>() {
        hasher.write_u8(5);
        hasher.write_u8(u8::from(*truth.inner()));
    } else if value.downcast_ref::<CelNull>().is_some() {
        hasher.write_u8(6);
    } else {
        return Err(EvaluationError);
    }
    Ok(())
}

/// Parses on a thread with a large stack, see [`PARSER_STACK_BYTES`].
fn parse(source: &str) -> Result<(IdedExpr, SourceInfo), ExpressionError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(PARSER_STACK_BYTES)
            .spawn_scoped(scope, || {
                Env::stdlib()
                    .parser()
                    .max_recursion_depth(NESTING_MAX)
                    .parse_with_source_info(source)
                    .map_err(|errors| parse_error(&errors))
            })
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_else(|| {
                Err(ExpressionError::without_position(
                    "it cannot be parsed".to_owned(),
                ))
            })
    })
}

fn parse_error(errors: &cel::ParseErrors) -> ExpressionError {
    let Some(first) = errors.errors.first() else {
        return ExpressionError::without_position("it is not an expression".to_owned());
    };
    if errors
        .errors
        .iter()
        .any(|error| error.msg.contains("Recursion limit"))
    {
        return ExpressionError::without_position(format!(
            "nested more than {NESTING_MAX} levels deep"
        ));
    }
    let (line, column) = first.pos;
    let at = usize::try_from(line).ok().zip(usize::try_from(column).ok());
    ExpressionError {
        position: at.filter(|(line, _)| *line > 0),
        reason: first.msg.clone(),
    }
}

/// Line and column of a node, from 1.
fn line_and_column(info: &SourceInfo, id: u64) -> Option<(usize, usize)> {
    let (start, _) = info.offset_for(id)?;
    let before: String = info.source.chars().take(start as usize).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Some((line, column))
}
