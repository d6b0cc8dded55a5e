"""The client: one stream a process, which never raises into the agent and never blocks it for long."""

from __future__ import annotations

import asyncio
import atexit
import collections
import functools
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import grpc

from unstuck import _events, _text
from unstuck._connection import Connection
from unstuck._events import Usage
from unstuck._session import Session
from unstuck._states import SESSIONS_MAX, States
from unstuck._stream import Item, Stream
from unstuck._verdict import Action, Verdict, from_proto
from unstuck.v1 import detection_service_pb2 as detection_pb
from unstuck.v1 import event_pb2 as event_pb
from unstuck.v1 import session_service_pb2 as session_pb

log = logging.getLogger("unstuck")
P = ParamSpec("P")
R = TypeVar("R")

MISSED_MAX = 3
PAUSE_SECS = 5.0
OPEN_SECS = 5.0


@dataclass(frozen=True)
class Stats:
    """What a client has done since it was made."""

    recorded: int
    """Events that were queued."""
    answered: int
    """Events that the service has answered."""
    refused: int
    """Events that it did not accept, such as those with an invalid session id."""
    missed: int
    """Calls that got no answer before their deadline, or did not wait for one."""
    dropped: int
    """Events and deltas that were lost: the buffer was full, or the client was closed."""
    resent: int
    """Events that were sent again after the stream had ended."""
    reconnects: int
    """How often the stream had to be opened again."""
    errors: int
    """Failures inside the client, which the agent did not see."""
    pending: int
    """Events without an answer now."""
    connected: bool
    """Whether the stream is open."""


class _Pending(Item):
    __slots__ = ("done", "verdict", "answered")

    def __init__(self, message: Any, done: Callable[[], None] | None) -> None:
        super().__init__(message)
        self.done = done
        self.verdict: Verdict | None = None
        self.answered = False


def _never_raises(function: Callable[P, R]) -> Callable[P, R | None]:
    """A failure of the client is counted and is not the agent's."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            args[0]._failed(error)  # type: ignore[attr-defined]
            return None

    return call


class Client:
    """Sends an agent's calls to the service and returns what to do.

    No method raises, and none blocks longer than `deadline` (seconds). After three missed
    deadlines in a row none waits at all for 5 seconds, and then only once the service answers in
    time again. Events go on in the background, so nothing is lost meanwhile, up to `buffer`
    events; then the oldest that are not sent are dropped. A client may be used by all threads of
    a process, and after a fork in both processes. One that is not closed sends what waits, for at
    most its deadline, when the process ends.

    `target` is `host:port`, `unix:/path`, or with `https://` in front for TLS; by default
    `UNSTUCK_SERVER`, else 127.0.0.1:50551. `token` is by default `UNSTUCK_TOKEN`, else what is in
    the file `UNSTUCK_TOKEN_FILE`. `ca`, `certificate` and `key` are PEM; `ca` or `certificate`
    also turns TLS on. With TLS the files `UNSTUCK_CA`, `UNSTUCK_CERT` and `UNSTUCK_KEY` are read
    for those that are not given.
    """

    def __init__(
        self,
        target: str | None = None,
        token: str | None = None,
        *,
        deadline: float = 0.25,
        max_batch: int = 256,
        buffer: int = 4096,
        ca: bytes | None = None,
        certificate: bytes | None = None,
        key: bytes | None = None,
    ) -> None:
        self._connection = Connection(target, token, ca, certificate, key)
        self._deadline = deadline
        self._max_batch = max(1, min(max_batch, 256))
        self._buffer = max(1, buffer)
        self._push: list[Callable[[Verdict], object]] = []
        self._profiles: dict[str, tuple[str, dict[str, str]]] = {}
        self._closed = False
        self._errors = 0
        self._reset()
        _clients.add(self)

    def _reset(self) -> None:
        """Begins anew, as in a child process: the parent's threads and events are the parent's."""
        self._lock = threading.Lock()
        self._connection.reset()
        self._states = States()
        self._turns: collections.OrderedDict[tuple[str, str, str], list[Any]] = collections.OrderedDict()
        self._unopened: set[str] = set(self._profiles)
        self._recorded = self._answered = self._refused = self._missed = 0
        self._missed_in_a_row = 0
        self._pause_until = 0.0
        self._paused_at = 0.0
        self._prompt_at = 0.0
        self._events: Stream[_Pending] = Stream(
            name="unstuck-events",
            connect=lambda requests: self._connection.detection.StreamEvents(requests, metadata=self._connection.metadata),
            pack=lambda sequence, events: detection_pb.StreamEventsRequest(sequence=sequence, events=events),
            unpack=self._receive_events,
            opened=self._open_sessions,
            lost=self._stop_waiting,
            resend=True,
            max_batch=self._max_batch,
            buffer=self._buffer,
        )
        self._deltas: Stream[Item] = Stream(
            name="unstuck-deltas",
            connect=lambda requests: self._connection.detection.StreamDeltas(requests, metadata=self._connection.metadata),
            pack=lambda _, deltas: detection_pb.StreamDeltasRequest(deltas=deltas),
            unpack=self._receive_delta,
            resend=False,
            max_batch=self._max_batch,
            buffer=self._buffer,
        )

    # Recording.

    @_never_raises
    def record(
        self,
        session: str,
        tool: str,
        args: object = None,
        result: object = None,
        error: object = None,
        *,
        agent: str = "",
        round: str = "",
        call_id: str = "",
        usage: Usage | None = None,
        state_hash: str = "",
        content_hash: str = "",
        refused: bool = False,
    ) -> Verdict | None:
        """Records a finished call. `error` means that it failed, `refused` that it was not made."""
        return self._send(_events.call(
            session, tool, args, result, error, agent=agent, round=round, call_id=call_id, usage=usage,
            state_hash=state_hash, content_hash=content_hash, refused=refused,
        ))

    async def arecord(
        self,
        session: str,
        tool: str,
        args: object = None,
        result: object = None,
        error: object = None,
        *,
        agent: str = "",
        round: str = "",
        call_id: str = "",
        usage: Usage | None = None,
        state_hash: str = "",
        content_hash: str = "",
        refused: bool = False,
    ) -> Verdict | None:
        """`record`, without blocking the loop."""
        try:
            return await self._asend(_events.call(
                session, tool, args, result, error, agent=agent, round=round, call_id=call_id, usage=usage,
                state_hash=state_hash, content_hash=content_hash, refused=refused,
            ))
        except Exception as failure:
            self._failed(failure)
            return None

    @_never_raises
    def turn(self, session: str, role: str, text: str, *, agent: str = "", usage: Usage | None = None) -> Verdict | None:
        """Records a message of `agent`, `user` or `system`. A user's message resets all counts."""
        return self._send(_events.turn(session, role, text, agent, usage))

    async def aturn(
        self, session: str, role: str, text: str, *, agent: str = "", usage: Usage | None = None
    ) -> Verdict | None:
        """`turn`, without blocking the loop."""
        try:
            return await self._asend(_events.turn(session, role, text, agent, usage))
        except Exception as failure:
            self._failed(failure)
            return None

    @_never_raises
    def compacted(self, session: str, *, agent: str = "", context_tokens: int = 0) -> Verdict | None:
        """Records that the context was compacted: the model may read again what it had read."""
        return self._send(_events.compaction(session, agent, context_tokens))

    async def acompacted(self, session: str, *, agent: str = "", context_tokens: int = 0) -> Verdict | None:
        """`compacted`, without blocking the loop."""
        try:
            return await self._asend(_events.compaction(session, agent, context_tokens))
        except Exception as failure:
            self._failed(failure)
            return None

    @_never_raises
    def delta(
        self, session: str, text: str, *, turn: str = "", agent: str = "", channel: str = "visible", end: bool = False
    ) -> Verdict | None:
        """Sends a piece of text while the model writes it, without waiting.

        Returns the strongest verdict on this text so far. With `end` the text is complete.
        Deltas are not sent again after a reconnect.
        """
        message = _events.delta(session, text, turn, agent, channel, end)
        place = (session, agent, turn)
        found: Verdict | None = None
        with self._lock:
            if place in self._turns:
                found = self._turns[place][0]
                if end:
                    del self._turns[place]
            elif not end:
                self._turns[place] = [None]
                while len(self._turns) > SESSIONS_MAX:
                    self._turns.popitem(last=False)
        self._deltas.put(Item(message))
        return found

    # Asking.

    @_never_raises
    def check(self, session: str, tool: str, args: object = None, *, agent: str = "") -> Verdict | None:
        """Whether a call may be made. None: yes. BLOCK and stronger: refuse it. ASK: a person decides.

        Asks the service only if it has said that some action is in force, or has said nothing yet.
        """
        known_already, verdict = self._check_locally(session, tool, args, agent)
        if known_already:
            return verdict
        try:
            answer = self._connection.detection.CheckCall(
                self._check_request(session, tool, args, agent), timeout=self._deadline, metadata=self._connection.metadata
            )
        except grpc.RpcError as error:
            self._check_failed(error)
            return verdict
        return self._checked(answer, session, agent)

    async def acheck(self, session: str, tool: str, args: object = None, *, agent: str = "") -> Verdict | None:
        """`check`, without blocking the loop."""
        try:
            known_already, verdict = self._check_locally(session, tool, args, agent)
            if known_already:
                return verdict
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()
            request = self._check_request(session, tool, args, agent)
            call = self._connection.detection.CheckCall.future(request, timeout=self._deadline, metadata=self._connection.metadata)
            call.add_done_callback(lambda _: _wake(loop, done))
            try:
                await asyncio.wait_for(done, self._deadline)
                answer = call.result(timeout=0)
            except asyncio.TimeoutError:
                # The deadline of the call is the same one; either may be noticed first.
                call.cancel()
                self._miss()
                return verdict
            except grpc.RpcError as error:
                self._check_failed(error)
                return verdict
            return self._checked(answer, session, agent)
        except Exception as failure:
            self._failed(failure)
            return None

    def session(
        self, id: str | None = None, profile: str = "", labels: Mapping[str, str] | None = None
    ) -> Session:
        """A session as a context manager, also with `async with`. Without an id it gets a new one."""
        return Session(self, id or uuid.uuid4().hex, profile, dict(labels or {}))

    def on_push(self, function: Callable[[Verdict], object]) -> Callable[[Verdict], object]:
        """Calls the function when a session is terminated between its events.

        It runs in the client's thread, where no method of the client waits for an answer.
        """
        self._push.append(function)
        return function

    def stopped(self, session: str, agent: str = "") -> Verdict | None:
        """The verdict that has terminated the session or sub-agent, as far as this client knows."""
        with self._lock:
            return self._states.terminated(session, agent)

    @property
    def deadline(self) -> float:
        """The longest wait, in seconds."""
        return self._deadline

    @property
    def stats(self) -> Stats:
        """What the client has done."""
        events, deltas = self._events, self._deltas
        return Stats(
            recorded=self._recorded, answered=self._answered, refused=self._refused, missed=self._missed,
            dropped=events.dropped + deltas.dropped, resent=events.resent,
            reconnects=events.reconnects, errors=self._errors, pending=events.pending(),
            connected=events._call is not None and not events.down,
        )

    def close(self, timeout: float | None = None) -> None:
        """Sends what waits, for at most `timeout` seconds, and closes the connection.

        Without a time for at most the deadline, and not at all while nothing else waits either.
        """
        try:
            if timeout is None:
                timeout = self._deadline if self._may_wait() else 0.0
            until = time.monotonic() + timeout
            self._closed = True
            self._events.close(until)
            self._deltas.close(until)
            self._connection.close()
        except Exception as error:
            self._failed(error)

    async def aclose(self, timeout: float | None = None) -> None:
        """`close`, without blocking the loop."""
        await asyncio.to_thread(self.close, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _failed(self, error: Exception) -> None:
        # Only the kind: a message may hold the agent's text.
        self._errors += 1
        log.debug("unstuck: %s", type(error).__name__)

    # Events.

    def _send(self, event: event_pb.Event) -> Verdict | None:
        self._recorded += 1
        if not self._may_wait():
            self._missed += 1
            self._events.put(_Pending(event, None))
            return None
        answered = threading.Lock()
        answered.acquire()
        pending = _Pending(event, answered.release)
        self._events.put(pending)
        return self._answer(pending, answered.acquire(timeout=self._deadline))

    async def _asend(self, event: event_pb.Event) -> Verdict | None:
        self._recorded += 1
        if not self._may_wait():
            self._missed += 1
            self._events.put(_Pending(event, None))
            return None
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        pending = _Pending(event, lambda: _wake(loop, answered))
        self._events.put(pending)
        try:
            await asyncio.wait_for(answered, self._deadline)
            return self._answer(pending, True)
        except asyncio.TimeoutError:
            return self._answer(pending, False)

    def _answer(self, pending: _Pending, in_time: bool) -> Verdict | None:
        with self._lock:
            if in_time:
                if pending.answered:
                    self._missed_in_a_row = 0
                else:
                    self._missed += 1
                return pending.verdict
            if pending.done is None:
                # It came between the deadline and this line.
                return pending.verdict
            pending.done = None
        self._miss()
        return None

    def _miss(self) -> None:
        with self._lock:
            self._missed += 1
            self._missed_in_a_row += 1
            if self._missed_in_a_row >= MISSED_MAX:
                self._paused_at = time.monotonic()
                self._pause_until = self._paused_at + PAUSE_SECS

    def _may_wait(self) -> bool:
        """Whether an answer can be expected before the deadline."""
        if self._events.down or self._closed or self._events.is_own_thread():
            return False
        if self._missed_in_a_row < MISSED_MAX:
            return True
        # Events still go out, so their answers tell whether waiting is worth it again. Where
        # there are none, one call finds out.
        is_prompt = self._prompt_at > self._paused_at or not self._events.pending()
        if time.monotonic() < self._pause_until or not is_prompt:
            return False
        self._missed_in_a_row = MISSED_MAX - 1
        return True

    def _stop_waiting(self, item: _Pending) -> None:
        """The stream has ended: the event is sent again, but nobody waits for its answer."""
        with self._lock:
            done, item.done = item.done, None
        if done is not None:
            done()

    def _receive_events(self, response: Any, items: list[_Pending]) -> None:
        """In the stream's thread: one response, or a push if it answers nothing."""
        now = time.monotonic()
        if not response.sequence:
            for result in response.results:
                self._pushed(result)
            return
        for item, result in zip(items, response.results):
            self._answered += 1
            if result.HasField("error"):
                self._refused += 1
            if now - item.sent_at <= self._deadline:
                self._prompt_at = now
            with self._lock:
                state = self._states.of(item.message.session_id, item.message.agent_id)
                verdict = state.note(result)
                done, item.done = item.done, None
                if done is None:
                    # Nobody waits any more: the next call of the session gets it.
                    state.missed = verdict
                item.verdict = verdict
                item.answered = True
            if result.state_lost and item.message.session_id in self._profiles:
                self._open(item.message.session_id)
            if done is not None:
                done()

    def _pushed(self, result: Any) -> None:
        verdict = from_proto(result.action or result.verdict.action, result.verdict)
        if verdict is None:
            return
        with self._lock:
            self._states.of(result.session_id or verdict.session, verdict.agent).note_push(verdict)
        for function in self._push:
            try:
                function(verdict)
            except Exception as error:
                self._failed(error)

    def _receive_delta(self, response: Any, _: list[Item]) -> None:
        verdict = from_proto(response.action, response.verdict)
        place = (response.session_id, response.agent_id, response.turn_id)
        with self._lock:
            cell = self._turns.get(place)
            if cell is not None and verdict is not None and (cell[0] is None or verdict > cell[0]):
                cell[0] = verdict
            elif cell is None and verdict is not None:
                # The text had ended: the session's next call gets it.
                self._states.of(response.session_id, response.agent_id).missed = verdict

    # Checks.

    def _check_locally(self, session: str, tool: str, args: object, agent: str) -> tuple[bool, Verdict | None]:
        """What the last answers say: whether that is enough, and the verdict."""
        terminated = self.stopped(session, agent)
        if terminated is not None:
            return True, terminated
        with self._lock:
            state = self._states.find(session, agent)
            if state is not None and state.allows_all:
                return True, None
            blocked = state is not None and state.refuses(tool, args)
        refusal = Verdict(Action.BLOCK, pattern="this call is part of a loop", session=session) if blocked else None
        return not self._may_wait(), refusal

    def _check_request(self, session: str, tool: str, args: object, agent: str) -> detection_pb.CheckCallRequest:
        request = detection_pb.CheckCallRequest(session_id=session, agent_id=agent, tool=tool)
        _text.set_arguments(request, args)
        return request

    def _checked(self, answer: detection_pb.CheckCallResponse, session: str, agent: str) -> Verdict | None:
        with self._lock:
            self._missed_in_a_row = 0
            return self._states.of(session, agent).note_check(answer)

    def _check_failed(self, error: grpc.RpcError) -> None:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._miss()
        else:
            log.debug("unstuck: check: %s", error.code())

    # Sessions.

    def _open(self, session: str) -> None:
        """Opens a session in the background. If that fails, it is opened after the next reconnect."""
        profile, labels = self._profiles[session]
        request = session_pb.OpenSessionRequest(session_id=session, profile=profile, labels=labels)
        self._unopened.discard(session)
        call = self._connection.sessions.OpenSession.future(request, timeout=OPEN_SECS, metadata=self._connection.metadata)

        def ended(call: Any) -> None:
            # Not what the service refuses: it would be refused again.
            if call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._unopened.add(session)

        call.add_done_callback(ended)

    def _open_sessions(self) -> None:
        for session in list(self._unopened):
            if session in self._profiles:
                self._open(session)

    @_never_raises
    def _begin_session(self, session: str, profile: str, labels: dict[str, str]) -> None:
        self._profiles[session] = (profile, labels)
        request = session_pb.OpenSessionRequest(session_id=session, profile=profile, labels=labels)
        if not self._may_wait():
            self._unopened.add(session)
            return
        try:
            self._connection.sessions.OpenSession(request, timeout=self._deadline, metadata=self._connection.metadata)
        except grpc.RpcError as error:
            self._unopened.add(session)
            self._check_failed(error)

    @_never_raises
    def _end_session(self, session: str) -> None:
        self._profiles.pop(session, None)
        self._unopened.discard(session)
        # An event that comes later would begin the session anew; the service ends it when idle.
        if self._may_wait() and not self._events.unanswered(lambda item: item.message.session_id == session):
            try:
                request = session_pb.EndSessionRequest(session_id=session)
                self._connection.sessions.EndSession(request, timeout=self._deadline, metadata=self._connection.metadata)
            except grpc.RpcError as error:
                self._check_failed(error)
        with self._lock:
            self._states.forget(session)


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        # The loop has ended, and nobody waits.
        pass


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_clients() -> None:
    for client in list(_clients):
        client.close()


def _after_fork() -> None:
    for client in list(_clients):
        client._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
