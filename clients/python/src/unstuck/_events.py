"""Events, as they are sent."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from unstuck import _text
from unstuck.v1 import event_pb2 as event_pb

ROLES = {"agent": event_pb.ROLE_AGENT, "user": event_pb.ROLE_USER, "system": event_pb.ROLE_SYSTEM}
CHANNELS = {"visible": event_pb.CHANNEL_VISIBLE, "reasoning": event_pb.CHANNEL_REASONING}


@dataclass(frozen=True)
class Usage:
    """What an event cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cached_input_tokens: int = 0
    """Of the input tokens, those read from the model's cache."""


def _event(
    session: str, agent: str, round: str = "", usage: Usage | None = None, state_hash: str = "", call_id: str = ""
) -> event_pb.Event:
    # Without a time: the service takes calls whose times are 50 ms apart or less for one round.
    event = event_pb.Event(
        session_id=session, event_id=_text.bounded_id(call_id) or uuid.uuid4().hex, agent_id=agent,
        round_id=_text.bounded_id(round), state_hash=state_hash,
    )
    if usage is not None:
        event.usage.input_tokens = max(0, usage.input_tokens)
        event.usage.output_tokens = max(0, usage.output_tokens)
        event.usage.cost_usd = max(0.0, usage.cost_usd)
        event.usage.cached_input_tokens = min(max(0, usage.cached_input_tokens), event.usage.input_tokens)
    return event


def call(
    session: str, tool: str, args: object, result: object, error: object, *, agent: str = "", round: str = "",
    call_id: str = "", usage: Usage | None = None, state_hash: str = "", content_hash: str = "", refused: bool = False,
) -> event_pb.Event:
    """A finished call, or a refused one."""
    event = _event(session, agent, round, usage, state_hash, call_id)
    call = event.tool_call
    call.tool = tool
    _text.set_arguments(call, args)
    if error is not None:
        call.error = _text.clean(error)
    if result is not None:
        call.result = _text.clean(result)
    if content_hash:
        call.content_hash = content_hash
    if refused:
        call.outcome = event_pb.OUTCOME_BLOCKED
    elif error is not None:
        call.outcome = event_pb.OUTCOME_ERROR
    else:
        call.outcome = event_pb.OUTCOME_OK
    return event


def turn(session: str, role: str, text: str, agent: str, usage: Usage | None = None) -> event_pb.Event:
    """A message."""
    event = _event(session, agent, usage=usage)
    event.turn.role = ROLES[role]
    event.turn.text = _text.clean(text)
    return event


def compaction(session: str, agent: str, context_tokens: int) -> event_pb.Event:
    """The context was compacted."""
    event = _event(session, agent)
    event.marker.kind = event_pb.MARKER_KIND_COMPACTION
    event.marker.context_tokens = max(0, context_tokens)
    return event


def delta(session: str, text: str, turn: str, agent: str, channel: str, end: bool) -> event_pb.Delta:
    """A piece of text."""
    return event_pb.Delta(
        session_id=session, agent_id=agent, turn_id=turn, channel=CHANNELS[channel], text=_text.clean(text),
        end_of_turn=end,
    )
