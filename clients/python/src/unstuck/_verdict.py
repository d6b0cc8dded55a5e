"""Verdicts, in Python's words."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

from unstuck.v1 import verdict_pb2

PREFIX = "[unstuck] "


class Action(enum.IntEnum):
    """What to do, weakest to strongest."""

    ALERT = 1
    """Notify the user."""
    WARN = 2
    """Notify the controller too: the model reads the correction."""
    THROTTLE = 3
    """Wait `Verdict.retry_after`, then continue."""
    CHECKPOINT = 4
    """Save what works."""
    ASK = 5
    """A person confirms before the session continues."""
    BLOCK = 6
    """Refuse the calls of the loop; the run continues."""
    BREAK = 7
    """Stop the running generation and inject the correction."""
    ESCALATE = 8
    """Hand over to another model, or to a person."""
    TERMINATE = 9
    """End the session, or the sub-agent that the verdict names."""


def known(number: int) -> Action | None:
    """The action of a number. One that this version does not know is a warning; 0 is none."""
    if not number:
        return None
    try:
        return Action(number)
    except ValueError:
        return Action.WARN


@dataclass(frozen=True)
class Member:
    """A distinct call in a loop."""

    tool: str
    target: str
    call_key: str


@functools.total_ordering
@dataclass(frozen=True, eq=False)
class Verdict:
    """What was found and what to do. Compares with an action: `verdict >= "WARN"`."""

    action: Action
    """What to do."""
    pattern: str = ""
    """What happened, for a person."""
    correction: str = ""
    """Text for the model. May be empty."""
    detector: str = ""
    """The detector, or `operator`."""
    reason: str = ""
    """Why this action now; or the operator's reason."""
    members: tuple[Member, ...] = ()
    """The distinct calls in the loop."""
    retry_after: float = 0.0
    """With THROTTLE: how many seconds to wait."""
    session: str = ""
    """The session it is about."""
    agent: str = ""
    """The sub-agent it is about. Empty: the whole session."""
    verdict_id: str = ""
    """Unique; sorts by time."""

    def __eq__(self, other: object) -> bool:
        rank = _rank(other)
        return NotImplemented if rank is None else self.action == rank

    def __lt__(self, other: object) -> bool:
        rank = _rank(other)
        return NotImplemented if rank is None else self.action < rank

    def __hash__(self) -> int:
        return hash(self.action)

    @property
    def text(self) -> str:
        """The correction as the model reads it, with a mark by which the service recognises it."""
        text = self.correction or self.pattern or self.reason
        if self.action is Action.THROTTLE and self.retry_after:
            text += f" Wait {self.retry_after:.0f} s before you go on."
        return PREFIX + text


def _rank(other: object) -> int | None:
    if isinstance(other, Verdict):
        return other.action
    if isinstance(other, str):
        return Action[other.upper()]
    return other if isinstance(other, int) else None


def from_proto(action: int, verdict: verdict_pb2.Verdict) -> Verdict | None:
    """The verdict with the action that an answer asks for. None: there is nothing to do."""
    found = known(action)
    if found is None:
        return None
    return Verdict(
        action=found,
        pattern=verdict.pattern,
        correction=verdict.correction,
        detector=verdict.detector,
        reason=verdict.reason,
        members=tuple(Member(m.tool, m.target, m.call_key) for m in verdict.members),
        retry_after=verdict.retry_after.seconds + verdict.retry_after.nanos / 1e9,
        session=verdict.session_id,
        agent=verdict.agent_id,
        verdict_id=verdict.verdict_id,
    )


class Stopped(Exception):
    """The run is to stop: the session was terminated, or handed over."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.action.name}: {verdict.pattern or verdict.reason}")
        self.verdict = verdict
        """Why."""


class Refused(Exception):
    """A guarded function was not called, because the call is part of a loop."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict
        """Why."""
