//! Which call it is, whatever came back: its tool, its arguments, what it does and to what.
//!
//! Agents repeat calls, and many agents make the same ones, so the identities of recent
//! calls are cached by the hash of their texts. Cost of a cached one: that hash and a
//! look-up.

use std::sync::{Arc, OnceLock};

use super::{
    FactExtractor,
    args::ParsedArguments,
    classify::{self, CallAction},
    plan,
    same_call::{self, ArgumentFilter, CommandHash},
};
use crate::{
    domain::{Args, ProgramWords, Sig, ToolCall, WordHashes, sanitize},
    text::{echo::EchoTokens, key::SignatureKind, query_words},
    tools::{ToolClass, tool_traits::ToolTraits},
};

/// The identities of calls with longer texts are not cached: few of them repeat, and the
/// cache would take too much memory.
const CACHED_BYTES_MAX: usize = 1_024;

/// Which call it is, whatever came back.
#[derive(Debug)]
pub(super) struct CallIdentity {
    /// The hash of all that it is computed from; `None`: it is not cached.
    pub texts: Option<u64>,
    pub tool: Sig,
    pub traits: ToolTraits,
    /// The configured class of the tool; `None`: a shell.
    pub tool_class: Option<ToolClass>,
    pub ignore_result: bool,
    /// `None`: its arguments are unknown.
    pub signature: Option<Sig>,
    pub action: CallAction,
    /// What it acts on, for a person.
    pub target: Arc<str>,
    pub path: Option<Sig>,
    /// The command line of a shell.
    pub command: Option<CommandHash>,
    pub asks_to_change: bool,
    /// The lines of a file that are asked for.
    pub lines: Option<(u32, u32)>,
    /// Other arguments may choose a part of the target.
    pub may_read_part: bool,
    pub loose_args: Option<Sig>,
    pub unordered_args: Option<Sig>,
    pub arg_words: WordHashes,
    pub program: ProgramWords,
    pub query_words: Option<Arc<[u32]>>,
    pub plan_steps_done: Option<u16>,
    /// Computed for the first answer that may echo the call.
    echo: OnceLock<Box<EchoTokens>>,
}

impl CallIdentity {
    /// What an answer to the call may echo.
    pub fn echo_tokens(&self, call: &ToolCall) -> &EchoTokens {
        let compute = || Box::new(EchoTokens::new(&call.tool, call.args.as_text()));
        self.echo.get_or_init(compute)
    }
}

impl FactExtractor {
    /// Which call it is; `None` if its tool is exempt from detection.
    pub(super) fn identify_call(&self, call: &ToolCall) -> Option<Arc<CallIdentity>> {
        let tool = self.key.signature(SignatureKind::Tool, &call.tool, 0);
        let is_short = call.args.bytes() + call.target.len() <= CACHED_BYTES_MAX;
        let texts = is_short.then(|| self.identity_hash(tool, call));
        let cached = texts.and_then(|texts| self.identities.get(texts));
        let identity = cached.unwrap_or_else(|| {
            let identity = Arc::new(self.compute_identity(tool, texts, call));
            if let Some(texts) = texts {
                self.identities.insert(texts, identity.clone());
            }
            identity
        });
        (identity.action.class != ToolClass::Exempt).then_some(identity)
    }

    /// The hash of all that an identity is computed from.
    pub(super) fn identity_hash(&self, tool: Sig, call: &ToolCall) -> u64 {
        let (kind, args) = match &call.args {
            Args::Unknown => (0, ""),
            Args::Hash(hash) => (1, hash.as_str()),
            Args::Text(text) => (2, text.as_str()),
        };
        let key = &self.key;
        let [args, target] =
            [args, &call.target].map(|text| key.hash_text(SignatureKind::Identity, text));
        let has_failed = u64::from(classify::has_failed(call));
        let rest = key.hash_pair(SignatureKind::Identity, target, has_failed << 2 | kind);
        let tool_and_args = key.hash_pair(SignatureKind::Identity, tool.get(), args);
        key.hash_pair(SignatureKind::Identity, tool_and_args, rest)
    }

    #[inline(never)]
    fn compute_identity(&self, tool: Sig, texts: Option<u64>, call: &ToolCall) -> CallIdentity {
        let key = &self.key;

        // The tool: what its name and the configured rules say.
        let traits = self.tool_traits(tool, &call.tool);
        let rule = self.tools.resolve(&call.tool, traits.class);

        // The arguments: their hash, and the target, command and lines in them.
        let is_shell = rule.class.is_none();
        let filter = ArgumentFilter {
            ignore: rule.ignore_args,
            keeps_explanations: traits.is_action,
            is_shell,
        };
        let mut args = ParsedArguments::parse(&call.args, filter, key);
        let command = args
            .notable
            .command
            .as_deref()
            .filter(|_| is_shell)
            .map(|line| same_call::hash_command(line, key));
        let signature = args.hash.map(|args| {
            let args = command.map_or(args, |line| {
                key.hash_pair(SignatureKind::Json, args, line.meaning)
            });
            key.signature(SignatureKind::Call, &call.tool, args)
        });

        // What the call does, and to what.
        let action = classify::classify_call(rule.class, call, &traits, &mut args.notable);
        let target = if call.target.is_empty() {
            args.notable.target.take().unwrap_or_default()
        } else {
            call.target.as_str().into()
        };
        // The path that detectors compare; a command line counts by its meaning.
        let is_line = call.target.is_empty() && action.is_on_line;
        let path = match command.filter(|_| is_line) {
            Some(line) => {
                let meaning = key.hash_pair(SignatureKind::Target, line.meaning, 0);
                Some(Sig::new(meaning))
            }
            None => {
                let visible = sanitize::strip_invisible(&target);
                key.signature_if_present(SignatureKind::Target, &visible)
            }
        };
        // What a search is for, in words.
        let query = match action.class {
            ToolClass::Search if rule.class.is_some() => Some(&*target),
            _ if traits.is_search => args.notable.search_term.as_deref(),
            _ => None,
        };
        // All of it, so that nothing is borrowed from the call.
        CallIdentity {
            texts,
            tool,
            tool_class: rule.class,
            ignore_result: rule.ignore_result,
            signature,
            path,
            command,
            query_words: query.and_then(query_words::hash_query_words),
            asks_to_change: args.notable.asks_to_change,
            lines: args.notable.line_range().or(action.lines_shown),
            may_read_part: args.notable.has_others,
            loose_args: args.words.unordered_signature(key),
            unordered_args: args.words.unordered_signature_with_numbers(key),
            program: args.words.program_words(),
            arg_words: args.words.into_hashes(),
            plan_steps_done: traits
                .is_plan
                .then(|| plan::count_steps_done(call.args.as_text())),
            target: Arc::from(target),
            echo: OnceLock::new(),
            traits,
            action,
        }
    }

    /// What a tool's name says, computed once per name.
    fn tool_traits(&self, signature: Sig, name: &str) -> ToolTraits {
        let [packed, _] = self
            .traits_memo
            .get_or_compute(signature.get(), || [ToolTraits::from_name(name).pack(), 0]);
        ToolTraits::unpack(packed)
    }
}
