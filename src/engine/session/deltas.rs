//! Keys of turns and drafts, and the tracking of a text that arrives in deltas.

use crate::{
    domain::{AgentId, Delta, Sig, TextRepetition},
    engine::{
        EngineContext, Profile,
        draft::{DraftChunk, Drafts},
    },
    telemetry::WorkPart,
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
    Repeats(usize, FoundRepetition),
}

/// A repetition that is complete at a byte of a delta. What follows it in the delta has not
/// been read: the verdict may stop the text there.
pub(in crate::engine) struct FoundRepetition {
    pub repetition: TextRepetition,
    pub end: usize,
}

/// Appends a delta, from the byte `start` on, to an agent's drafts: up to where a
/// repetition is complete, which is returned, or else to its end.
pub(super) fn push_delta(
    drafts: &mut Drafts,
    delta: &Delta,
    start: usize,
    profile: &Profile,
    ctx: &EngineContext,
) -> Option<FoundRepetition> {
    let text = delta.text.get(start..)?;
    #[cfg(test)]
    crate::engine::tests::inject_text_panic(text);
    let chunk = DraftChunk {
        turn_key: draft_key(delta, ctx.facts.key()),
        channel: delta.channel,
        text,
        prefix_bytes_max: ctx.facts.turn_bytes_kept(ctx.rules.turn_bytes()),
    };
    let progress = drafts.push(&chunk, profile.repeat_settings(), ctx.facts);
    ctx.metrics.count_delta_bytes(progress.bytes_read);
    if progress.is_work_limited {
        ctx.metrics.count_work_limited(WorkPart::Repetition);
    }
    Some(FoundRepetition {
        repetition: progress.repetition?,
        end: start + progress.bytes_read,
    })
}
