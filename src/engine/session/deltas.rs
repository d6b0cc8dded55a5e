//! Keys of turns and drafts, and the tracking of a text that arrives in deltas.

use crate::{
    domain::{AgentId, Delta, Sig, TextRepetition},
    engine::{
        EngineContext, Profile,
        draft::{DraftChunk, Drafts},
    },
    text::HashKey,
};

/// Key prefix of a turn whose text arrived in deltas.
pub(super) const STREAMED: &str = "streamed";
/// Key prefix of a turn that arrived as one event.
pub(super) const WHOLE: &str = "whole";

/// The key of a turn among the event ids; `None`: the turn has no id.
#[inline]
pub(super) fn turn_key(
    prefix: &str,
    agent: &AgentId,
    turn_id: &str,
    ctx: &EngineContext,
) -> Option<Sig> {
    let key = ctx.facts.key();
    (!turn_id.is_empty()).then(|| key.id_signature(prefix, agent.as_str(), turn_id))
}

pub(super) fn draft_key(delta: &Delta, key: &HashKey) -> Sig {
    key.draft_signature(&delta.turn_id)
}

/// The result of appending a delta to a text.
pub(in crate::engine) enum AppendOutcome {
    /// The session has the same size as before.
    SameSize,
    SizeChanged,
    /// The text of the agent at this position repeats itself.
    Repeats(usize, TextRepetition),
}

/// Appends a delta to an agent's drafts. Returns a repetition that it completes.
pub(super) fn push_delta(
    drafts: &mut Drafts,
    delta: &Delta,
    profile: &Profile,
    ctx: &EngineContext,
) -> Option<TextRepetition> {
    ctx.metrics.count_delta_bytes(delta.text.len());
    #[cfg(test)]
    crate::engine::tests::inject_text_panic(&delta.text);
    let chunk = DraftChunk {
        turn_key: draft_key(delta, ctx.facts.key()),
        channel: delta.channel,
        text: &delta.text,
        prefix_bytes_max: ctx.facts.turn_bytes_kept(ctx.rules.turn_bytes()),
    };
    drafts.push(&chunk, profile.repeat_settings(), ctx.facts)
}
