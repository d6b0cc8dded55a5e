//! What tools do: the class of a tool, and the `[[tools]]` rules of the configuration, which
//! come before the built-in table.
//!
//! - `tool_traits`: what a tool's name says about it; `arguments`: what the names of its
//!   arguments say.
//! - `shell`: what a command line does; `command_effect`: what it changes.
//!
//! Uses: domain, text.

pub mod arguments;
pub mod command_effect;
pub mod shell;
pub mod tool_traits;

use glob::Pattern;
use serde::Deserialize;
use thiserror::Error;

use crate::domain::Operation;

/// What a tool does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolClass {
    Read,
    Write,
    Edit,
    Execute,
    Search,
    /// Waits, or checks whether something has changed.
    Poll,
    /// No detector observes it.
    Exempt,
    #[default]
    Other,
}

impl ToolClass {
    /// In the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::Execute,
        Self::Search,
        Self::Poll,
        Self::Exempt,
        Self::Other,
    ];

    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Edit)
    }

    pub fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
            Self::Edit => Operation::Edit,
            Self::Execute => Operation::Execute,
            Self::Search => Operation::Search,
            Self::Poll | Self::Exempt | Self::Other => Operation::Other,
        }
    }
}

/// An entry of `[[tools]]`.
#[derive(Clone, Debug, Deserialize)]
pub struct ToolRule {
    /// A name or a glob such as `mcp__*__read_*`; case does not matter.
    pub name: String,
    /// If left out, the class in the built-in table.
    pub class: Option<ToolClass>,
    /// Top-level arguments that do not distinguish calls.
    #[serde(default)]
    pub ignore_args: Vec<String>,
    /// The result is not evidence of progress.
    #[serde(default)]
    pub ignore_result: bool,
}

impl ToolRule {
    /// The keys of an entry, for the check of unknown keys.
    pub const KEYS: &'static [&'static str] = &["name", "class", "ignore_args", "ignore_result"];
}

#[derive(Debug, Error)]
#[error("tools[{position}].name {name:?} is not a glob: {why}")]
pub struct ToolRuleError {
    position: usize,
    name: String,
    why: &'static str,
}

/// The compiled rules of the configuration.
#[derive(Debug, Default)]
pub struct ToolRules {
    rules: Vec<(Pattern, ToolRule)>,
}

/// The settings that apply to one tool.
pub struct ResolvedToolRule<'t> {
    /// `None`: a shell, whose command line decides.
    pub class: Option<ToolClass>,
    pub ignore_args: &'t [String],
    pub ignore_result: bool,
}

impl ToolRules {
    /// More entries of `[[tools]]` would cost more than the detectors.
    pub const RULES_MAX: usize = 256;

    pub fn new(rules: Vec<ToolRule>) -> Result<Self, ToolRuleError> {
        let configured = rules.into_iter().take(Self::RULES_MAX).enumerate();
        let compiled = configured.map(|(position, rule)| {
            match Pattern::new(&rule.name.to_ascii_lowercase()) {
                Ok(pattern) => Ok((pattern, rule)),
                Err(error) => Err(ToolRuleError {
                    position,
                    name: rule.name,
                    why: error.msg,
                }),
            }
        });
        Ok(Self {
            rules: compiled.collect::<Result<_, _>>()?,
        })
    }

    /// The first rule that matches the name wins; fields it leaves out come from the
    /// built-in table.
    pub fn resolve(&self, tool: &str, built_in: Option<ToolClass>) -> ResolvedToolRule<'_> {
        let options = glob::MatchOptions {
            case_sensitive: false,
            ..glob::MatchOptions::default()
        };
        let rule = self
            .rules
            .iter()
            .find(|(pattern, _)| pattern.matches_with(tool, options))
            .map(|(_, rule)| rule);
        ResolvedToolRule {
            class: rule.and_then(|rule| rule.class).or(built_in),
            ignore_args: rule.map_or(&[], |rule| &rule.ignore_args),
            ignore_result: rule.is_some_and(|rule| rule.ignore_result),
        }
    }
}
