"""What the answers of the service have said of each session and sub-agent."""

from __future__ import annotations

import collections
from typing import Any

from unstuck import _text
from unstuck._verdict import Action, Verdict, from_proto, known
from unstuck.v1 import verdict_pb2 as verdict_pb

# The least recently used session is forgotten.
SESSIONS_MAX = 4096


class State:
    """What is known of a session or sub-agent."""

    __slots__ = ("action", "blocked", "verdict_id", "missed", "terminated")

    def __init__(self) -> None:
        self.action: Action | None = None
        """The action in force."""
        self.blocked: frozenset[str] = frozenset()
        """The keys of the calls that are refused."""
        self.verdict_id = ""
        self.missed: Verdict | None = None
        """A verdict that came when nobody waited for it any more."""
        self.terminated: Verdict | None = None

    def set_standing(self, answer: Any) -> None:
        """Remembers the action in force that an answer names."""
        standing: verdict_pb.Standing | None = answer.standing if answer.HasField("standing") else None
        self.action = known(standing.action) if standing else None
        self.blocked = frozenset(standing.blocked) if standing else frozenset()
        self.verdict_id = standing.verdict_id if standing else ""

    def note(self, result: Any) -> Verdict | None:
        """Remembers the answer to an event, and returns what to do."""
        verdict = from_proto(result.action, result.verdict)
        self.set_standing(result)
        missed, self.missed = self.missed, None
        if verdict is None and missed is not None and missed.verdict_id == self.verdict_id:
            verdict = missed
        if verdict is not None and verdict.action is Action.TERMINATE:
            self.terminated = verdict
        elif self.action is not Action.TERMINATE:
            self.terminated = None
        return verdict

    def note_check(self, answer: Any) -> Verdict | None:
        """Remembers the answer to a check, and returns what to do."""
        verdict = from_proto(answer.action, answer.verdict)
        self.set_standing(answer)
        if verdict is not None and verdict.action is Action.TERMINATE:
            self.terminated = verdict
        return verdict

    def note_push(self, verdict: Verdict) -> None:
        """Remembers what came between two events."""
        self.action = verdict.action
        if verdict.action is Action.TERMINATE:
            self.terminated = verdict

    def refuses(self, tool: str, args: object) -> bool:
        """Whether this call is one of those that are refused."""
        return bool(self.blocked) and _text.call_key(tool, args) in self.blocked

    @property
    def allows_all(self) -> bool:
        """No action in force refuses a call."""
        return self.action is None or self.action < Action.ASK


class States:
    """Of all sessions. The client's lock is held by whoever calls."""

    def __init__(self) -> None:
        self._states: collections.OrderedDict[tuple[str, str], State] = collections.OrderedDict()

    def find(self, session: str, agent: str) -> State | None:
        """The state, if anything is known."""
        return self._states.get((session, agent))

    def of(self, session: str, agent: str) -> State:
        """The state, new if nothing was known."""
        place = (session, agent)
        state = self._states.get(place)
        if state is None:
            state = self._states[place] = State()
            while len(self._states) > SESSIONS_MAX:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(place)
        return state

    def terminated(self, session: str, agent: str) -> Verdict | None:
        """What has terminated the sub-agent or its session."""
        for name in {agent, ""}:
            state = self.find(session, name)
            if state is not None and state.terminated is not None:
                return state.terminated
        return None

    def forget(self, session: str) -> None:
        """Forgets a session and its sub-agents."""
        for place in [place for place in self._states if place[0] == session]:
            del self._states[place]
