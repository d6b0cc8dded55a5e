"""A session as a context manager."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

from unstuck._verdict import Verdict

if TYPE_CHECKING:
    from unstuck._client import Client, Usage

current: contextvars.ContextVar[Session | None] = contextvars.ContextVar("unstuck_session", default=None)


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

    def record(self, tool: str, args: object = None, result: object = None, error: object = None, **more: Any) -> Verdict | None:
        """`Client.record` in this session."""
        return self.client.record(self.id, tool, args, result, error, **more)

    async def arecord(self, tool: str, args: object = None, result: object = None, error: object = None, **more: Any) -> Verdict | None:
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

    def delta(self, text: str, **more: Any) -> Verdict | None:
        """`Client.delta` in this session."""
        return self.client.delta(self.id, text, **more)

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
