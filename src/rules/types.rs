//! The types of expressions, and which operands each operation accepts.

use std::fmt;

use cel::common::ast::{LiteralValue, operators};

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int,
    Double,
    Text,
    List,
    Map,
    Null,
    /// Known only at evaluation: a part of the arguments.
    Any,
}

impl Type {
    /// Whether a value of this type can be of the other.
    pub fn may_be(self, other: Self) -> bool {
        self == other || self == Self::Any
    }

    fn may_be_number(self) -> bool {
        matches!(self, Self::Int | Self::Double | Self::Any)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "true or false",
            Self::Int => "a whole number",
            Self::Double => "a number with a fraction",
            Self::Text => "a text",
            Self::List => "a list",
            Self::Map => "an object",
            Self::Null => "null",
            Self::Any => "something of the arguments",
        })
    }
}

pub(super) fn literal_type(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Int(_) | LiteralValue::UInt(_) => Type::Int,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::String(_) | LiteralValue::Bytes(_) => Type::Text,
        LiteralValue::Null => Type::Null,
    }
}

pub(super) fn unary_result(name: &str, a: Type) -> Option<Type> {
    match name {
        operators::LOGICAL_NOT if a.may_be(Type::Bool) => Some(Type::Bool),
        operators::NOT_STRICTLY_FALSE => Some(Type::Bool),
        operators::NEGATE if a.may_be_number() => Some(a),
        "size" if a.may_be(Type::Text) || a == Type::List || a == Type::Map => Some(Type::Int),
        "int" if a.may_be_number() || a == Type::Text => Some(Type::Int),
        "double" if a.may_be_number() || a == Type::Text => Some(Type::Double),
        "string" if a.may_be_number() || a == Type::Text || a == Type::Bool => Some(Type::Text),
        _ => None,
    }
}

pub(super) fn binary_result(name: &str, a: Type, b: Type) -> Option<Type> {
    let alike = a.may_be(b) || b == Type::Any;
    let numbers = a.may_be_number() && b.may_be_number();
    match name {
        operators::LOGICAL_AND | operators::LOGICAL_OR => {
            (a.may_be(Type::Bool) && b.may_be(Type::Bool)).then_some(Type::Bool)
        }
        operators::EQUALS | operators::NOT_EQUALS => {
            (alike || numbers || a == Type::Null || b == Type::Null).then_some(Type::Bool)
        }
        operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            let texts = a.may_be(Type::Text) && b.may_be(Type::Text);
            (numbers || texts).then_some(Type::Bool)
        }
        operators::ADD => {
            let kind = if a == Type::Any { b } else { a };
            let adds = matches!(kind, Type::Int | Type::Double | Type::Text | Type::Any);
            (alike && adds).then_some(kind)
        }
        operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO => {
            (alike && numbers).then_some(if a == Type::Any { b } else { a })
        }
        operators::IN => (b.may_be(Type::List) || b == Type::Map).then_some(Type::Bool),
        operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT => {
            (a.may_be(Type::List) || a == Type::Map).then_some(Type::Any)
        }
        _ => None,
    }
}

pub(super) fn ternary_result(name: &str, condition: Type, a: Type, b: Type) -> Option<Type> {
    let chooses = name == operators::CONDITIONAL && condition.may_be(Type::Bool);
    chooses.then_some(if a == b { a } else { Type::Any })
}

pub(super) fn method_result(name: &str, operands: &[Type]) -> Option<Type> {
    match (name, operands) {
        ("contains" | "startsWith" | "endsWith" | "matches", [a, b]) => {
            (a.may_be(Type::Text) && b.may_be(Type::Text)).then_some(Type::Bool)
        }
        ("size", [a]) => unary_result(name, *a),
        ("orValue", [Type::Any, _]) => Some(Type::Any),
        ("hasValue", [Type::Any]) => Some(Type::Bool),
        _ => None,
    }
}

pub(super) fn misuse_message(name: &str, operands: &[Type]) -> String {
    const FUNCTIONS: &[&str] = &[
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "size",
        "int",
        "double",
        "string",
        "orValue",
        "hasValue",
        "exists",
        "all",
        "exists_one",
        "has",
    ];
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if is_word && !FUNCTIONS.contains(&name) {
        return unknown_name_message("function", name, FUNCTIONS.iter().copied());
    }
    let name = name.trim_matches(['_', '@']);
    let kinds: Vec<String> = operands.iter().map(Type::to_string).collect();
    format!("`{name}` cannot be applied to {}", kinds.join(" and "))
}

pub(super) fn unknown_name_message<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> String {
    let near = |known: &&str| (strsim::jaro_winkler(known, name) * 1e6) as u32;
    let nearest = known.max_by_key(near).unwrap_or_default();
    format!("there is no {what} `{name}`; did you mean `{nearest}`?")
}
