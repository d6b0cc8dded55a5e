"""A session as a context manager."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, TypedDict

from unstuck._verdict import Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from unstuck._client import Client
    from unstuck._events import Usage

current: contextvars.ContextVar[Session | None] = contextvars.ContextVar("unstuck_session", default=None)


class CallFields(TypedDict, total=False):
    """What may be known of a call, as in `Client.record`."""

    agent: str
    round: str
    call_id: str
    usage: Usage | None
    state_hash: str
    content_hash: str
    refused: bool


class Session:
    """One session of a client. Inside `with` it is the session of guarded functions."""

    def __init__(self, client: Client, id: str, profile: str, labels: dict[str, str]) -> None:
        self.client = client
        """The client."""
        self.id = id
        """The session's id."""
        self._profile = profile
        self._labels = labels
        self._before: list[contextvars.Token[Session | None]] = []

    def record(
        self, tool: str, args: object = None, result: object = None, error: object = None, **more: Unpack[CallFields]
    ) -> Verdict | None:
        """`Client.record` in this session."""
        return self.client.record(self.id, tool, args, result, error, **more)

    async def arecord(
        self, tool: str, args: object = None, result: object = None, error: object = None, **more: Unpack[CallFields]
    ) -> Verdict | None:
        """`Client.arecord` in this session."""
        return await self.client.arecord(self.id, tool, args, result, error, **more)

    def check(self, tool: str, args: object = None, *, agent: str = "") -> Verdict | None:
        """`Client.check` in this session."""
        return self.client.check(self.id, tool, args, agent=agent)

    async def acheck(self, tool: str, args: object = None, *, agent: str = "") -> Verdict | None:
        """`Client.acheck` in this session."""
        return await self.client.acheck(self.id, tool, args, agent=agent)

    def turn(self, role: str, text: str, *, agent: str = "", usage: Usage | None = None) -> Verdict | None:
        """`Client.turn` in this session."""
        return self.client.turn(self.id, role, text, agent=agent, usage=usage)

    async def aturn(self, role: str, text: str, *, agent: str = "", usage: Usage | None = None) -> Verdict | None:
        """`Client.aturn` in this session."""
        return await self.client.aturn(self.id, role, text, agent=agent, usage=usage)

    def compacted(self, *, agent: str = "", context_tokens: int = 0) -> Verdict | None:
        """`Client.compacted` in this session."""
        return self.client.compacted(self.id, agent=agent, context_tokens=context_tokens)

    async def acompacted(self, *, agent: str = "", context_tokens: int = 0) -> Verdict | None:
        """`Client.acompacted` in this session."""
        return await self.client.acompacted(self.id, agent=agent, context_tokens=context_tokens)

    def delta(
        self, text: str, *, turn: str = "", agent: str = "", channel: str = "visible", end: bool = False
    ) -> Verdict | None:
        """`Client.delta` in this session."""
        return self.client.delta(self.id, text, turn=turn, agent=agent, channel=channel, end=end)

    def stopped(self, agent: str = "") -> Verdict | None:
        """`Client.stopped` in this session."""
        return self.client.stopped(self.id, agent)

    def __enter__(self) -> Session:
        self.client._begin_session(self.id, self._profile, self._labels)
        self._before.append(current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        current.reset(self._before.pop())
        self.client._end_session(self.id)

    async def __aenter__(self) -> Session:
        await asyncio.to_thread(self.client._begin_session, self.id, self._profile, self._labels)
        self._before.append(current.set(self))
        return self

    async def __aexit__(self, *_: object) -> None:
        current.reset(self._before.pop())
        await asyncio.to_thread(self.client._end_session, self.id)
