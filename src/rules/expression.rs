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
    check::{Check, Patterns, Use},
    types::Type,
};

/// An expression that was found to be sound.
pub(super) struct Expression {
    root: IdedExpr,
}

/// An expression that cannot be used, and where in it.
#[derive(Debug)]
pub(super) struct Fault {
    /// Line and column, from 1; `None`: the whole of it.
    pub at: Option<(usize, usize)>,
    pub why: String,
}

/// It could not be evaluated on an event: a field is missing, or of another
/// type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// Longer ones are programs: they belong into a service of their own.
const EXPRESSION_BYTES_MAX: usize = 1_024;
/// Every level is a few kilobytes of stack in the evaluation.
const NESTING_MAX: u16 = 24;
/// The parser sees how deep an expression nests only after it went there: up to
/// 8 MiB for a thousand parentheses, without optimisation.
const PARSER_STACK_BYTES: usize = 32 * 1024 * 1024;

impl Expression {
    /// One that says yes or no.
    pub fn condition(source: &str, patterns: &mut Patterns) -> Result<(Self, Use), Fault> {
        Self::new(source, patterns, |kind| match kind {
            Type::Bool | Type::Any => Ok(()),
            other => Err(format!("it is {other}, and must be true or false")),
        })
    }

    /// One that says what is the same.
    pub fn key(source: &str, patterns: &mut Patterns) -> Result<(Self, Use), Fault> {
        Self::new(source, patterns, |kind| match kind {
            Type::Map => Err("an object is no key: name the fields that matter".to_owned()),
            _ => Ok(()),
        })
    }

    fn new(
        source: &str,
        patterns: &mut Patterns,
        fits: impl FnOnce(Type) -> Result<(), String>,
    ) -> Result<(Self, Use), Fault> {
        if source.trim().is_empty() {
            return Err(Fault::whole("it is empty".to_owned()));
        }
        if source.len() > EXPRESSION_BYTES_MAX {
            return Err(Fault::whole(format!(
                "{} bytes, at most {EXPRESSION_BYTES_MAX}",
                source.len()
            )));
        }
        let (root, info) = parse(source)?;
        let mut check = Check::new(patterns, NESTING_MAX.into());
        let checked = check.expression(&root);
        let placed = |(id, why): (u64, String)| Fault {
            at: position(&info, id),
            why,
        };
        let kind = checked.map_err(placed)?;
        fits(kind).map_err(Fault::whole)?;
        Ok((Self { root }, check.uses))
    }

    pub fn truth(&self, context: &Context<'_, '_>) -> Result<bool, Failed> {
        let value = self.value(context)?;
        let truth = value.downcast_ref::<CelBool>().ok_or(Failed)?;
        Ok(*truth.inner())
    }

    /// Hashes what it evaluates to: a scalar, or a list of them.
    pub fn hash(&self, context: &Context<'_, '_>, hasher: &mut impl Hasher) -> Result<(), Failed> {
        let value = self.value(context)?;
        match value.downcast_ref::<CelList>() {
            Some(list) => {
                hasher.write_usize(list.inner().len());
                let mut items = list.inner().iter();
                items.try_for_each(|item| hash_scalar(item.as_ref(), hasher))
            }
            None => hash_scalar(value.as_ref(), hasher),
        }
    }

    fn value<'e, 'v>(&'e self, context: &'e Context<'_, 'v>) -> Result<CowVal<'e, 'v>, Failed> {
        Value::resolve_val(&self.root, context).map_err(|_| Failed)
    }
}

impl Fault {
    pub fn whole(why: String) -> Self {
        Self { at: None, why }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.at {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.why)
    }
}

/// A function as the interpreter calls it.
type Function = Box<
    dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError>
        + Send
        + Sync,
>;

/// The context that every evaluation is an inner scope of: a new one each time
/// would cost twenty times as much.
pub(super) fn root(patterns: Patterns) -> Context<'static, 'static> {
    let mut root = Context::with_env(Arc::new(Env::stdlib()));
    let matches: Function = Box::new(move |call| {
        let text = call
            .this
            .as_ref()
            .and_then(|this| this.downcast_ref::<CelString>());
        let pattern = call
            .args
            .first()
            .and_then(|arg| arg.downcast_ref::<CelString>());
        let found = pattern.and_then(|pattern| patterns.get(pattern.inner()));
        match (text, found) {
            (Some(text), Some(pattern)) => {
                Ok(CowVal::owned(CelBool::from(pattern.is_match(text.inner()))))
            }
            _ => Err(call.error("it takes a text and a pattern")),
        }
    });
    // No other function has the name, which is the one error there is.
    let _ = root.add_function("matches", matches);
    root
}

fn hash_scalar(value: &dyn Val, hasher: &mut impl Hasher) -> Result<(), Failed> {
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
        return Err(Failed);
    }
    Ok(())
}

/// Parses on a thread with a stack that is deep enough.
fn parse(source: &str) -> Result<(IdedExpr, SourceInfo), Fault> {
    let parse = || {
        let parser = Env::stdlib().parser().max_recursion_depth(NESTING_MAX);
        let parsed = parser.parse_with_source_info(source);
        parsed.map_err(|errors| parse_fault(&errors))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(PARSER_STACK_BYTES);
        let parsed = thread.spawn_scoped(scope, parse).ok();
        let parsed = parsed.and_then(|thread| thread.join().ok());
        parsed.unwrap_or_else(|| Err(Fault::whole("it cannot be parsed".to_owned())))
    })
}

fn parse_fault(errors: &cel::ParseErrors) -> Fault {
    let Some(first) = errors.errors.first() else {
        return Fault::whole("it is not an expression".to_owned());
    };
    if errors
        .errors
        .iter()
        .any(|error| error.msg.contains("Recursion limit"))
    {
        return Fault::whole(format!("it nests more than {NESTING_MAX} deep"));
    }
    let (line, column) = first.pos;
    let at = usize::try_from(line).ok().zip(usize::try_from(column).ok());
    Fault {
        at: at.filter(|(line, _)| *line > 0),
        why: first.msg.clone(),
    }
}

/// Line and column of a part, from 1.
fn position(info: &SourceInfo, id: u64) -> Option<(usize, usize)> {
    let (start, _) = info.offset_for(id)?;
    let before: String = info.source.chars().take(start as usize).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Some((line, column))
}
