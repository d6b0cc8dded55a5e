"""What the adapters and `guarded` share: ask before a call, record it, and say what the model reads."""

from __future__ import annotations

import collections
import functools
import inspect
import threading
import uuid
from collections.abc import Callable
from typing import Any, TypeVar, overload

from unstuck._client import Client
from unstuck._events import Usage
from unstuck._session import current
from unstuck._verdict import Action, Refused, Stopped, Verdict

# Of one guard, whose tokens are known; the one that was used longest ago is forgotten.
RUNS_MAX = 256
F = TypeVar("F", bound=Callable[..., Any])


class Guard:
    """Guards the calls of one run.

    A run stops at `stop_at` and stronger; with ESCALATE the caller hands over to another model or
    a person. From WARN on the model reads the correction.
    """

    def __init__(
        self, client: Client | None = None, session: str | None = None, *, agent: str = "", stop_at: str = "ESCALATE"
    ) -> None:
        self.client = client if client is not None else default_client()
        """The client."""
        opened = current.get()
        self.session = session or (opened.id if opened else uuid.uuid4().hex)
        """The session's id: the given one, that of the `with` around it, or a new one."""
        self.agent = agent
        self.stop_at = Action[stop_at]
        self._stopped: Verdict | None = None
        self._lock = threading.Lock()
        # Of each run the tokens so far: of the input, of the output, of the input from the cache.
        self._totals: collections.OrderedDict[object, tuple[object, list[int]]] = collections.OrderedDict()
        self._unsent = [0, 0, 0]

    @property
    def stopped(self) -> Verdict | None:
        """Why the run is to stop. None: it goes on."""
        return self._stopped or self.client.stopped(self.session, self.agent)

    def raise_if_stopped(self) -> None:
        """Raises `Stopped` if the run is to stop."""
        verdict = self.stopped
        if verdict is not None:
            raise Stopped(verdict)

    def before(self, tool: str, args: object, *, call_id: str = "", round: str = "") -> Verdict | None:
        """Asks whether a call may be made. A verdict means that it is refused, which is recorded."""
        verdict = self._refusal(self.stopped or self.client.check(self.session, tool, args, agent=self.agent))
        if verdict is not None:
            self._note(self.client.record(
                self.session, tool, args, verdict.text, agent=self.agent, call_id=call_id, round=round, refused=True,
                usage=self._take_usage(),
            ))
        return verdict

    async def abefore(self, tool: str, args: object, *, call_id: str = "", round: str = "") -> Verdict | None:
        """`before`, without blocking the loop."""
        verdict = self._refusal(self.stopped or await self.client.acheck(self.session, tool, args, agent=self.agent))
        if verdict is not None:
            self._note(await self.client.arecord(
                self.session, tool, args, verdict.text, agent=self.agent, call_id=call_id, round=round, refused=True,
                usage=self._take_usage(),
            ))
        return verdict

    def after(
        self, tool: str, args: object, result: object = None, error: object = None, *, call_id: str = "", round: str = ""
    ) -> str:
        """Records a call. Returns the text for the model, or nothing. One without a result returned nothing."""
        return self._note(self.client.record(
            self.session, tool, args, _ended(result, error), error, agent=self.agent, call_id=call_id, round=round,
            usage=self._take_usage(),
        ))

    async def aafter(
        self, tool: str, args: object, result: object = None, error: object = None, *, call_id: str = "", round: str = ""
    ) -> str:
        """`after`, without blocking the loop."""
        return self._note(await self.client.arecord(
            self.session, tool, args, _ended(result, error), error, agent=self.agent, call_id=call_id, round=round,
            usage=self._take_usage(),
        ))

    def used(self, run: object, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0) -> None:
        """Tells how many tokens a run has used so far. What is new goes with the next event.

        `run` is an object that stays the same for the run, or an id of it, or of a single response.
        """
        total = [input_tokens or 0, output_tokens or 0, cached_input_tokens or 0]
        with self._lock:
            key = run if isinstance(run, str) else id(run)
            _, before = self._totals.pop(key, (run, [0, 0, 0]))
            # With the object, so that no other gets its id.
            self._totals[key] = (run, total)
            if len(self._totals) > RUNS_MAX:
                self._totals.popitem(last=False)
            self._unsent = [unsent + max(0, now - old) for unsent, now, old in zip(self._unsent, total, before)]

    def _take_usage(self) -> Usage | None:
        with self._lock:
            unsent, self._unsent = self._unsent, [0, 0, 0]
        return Usage(unsent[0], unsent[1], cached_input_tokens=unsent[2]) if any(unsent) else None

    def _refusal(self, verdict: Verdict | None) -> Verdict | None:
        """A verdict that refuses the call: nobody can be asked here, so ASK refuses too."""
        if verdict is None or verdict < Action.ASK:
            return None
        self._note(verdict)
        return verdict

    def _note(self, verdict: Verdict | None) -> str:
        if verdict is None:
            return ""
        if verdict >= self.stop_at and self._stopped is None:
            self._stopped = verdict
        return verdict.text if verdict >= Action.WARN else ""


def _ended(result: object, error: object) -> object:
    """An empty result is one that can be compared; an unknown one is not."""
    return "" if result is None and error is None else result


@functools.cache
def default_client() -> Client:
    """The process's client, with the settings of the environment."""
    return Client()


def appended(result: Any, text: str) -> Any:
    """A result with the text after it. One that is no text is left as it is."""
    return f"{result}\n\n{text}" if text and isinstance(result, str) else result


@overload
def guarded(
    function: F, /, *, client: Client | None = None, session: str | None = None, stop_at: str = "ESCALATE",
    correct: bool = True,
) -> F: ...


@overload
def guarded(
    *, client: Client | None = None, session: str | None = None, stop_at: str = "ESCALATE", correct: bool = True
) -> Callable[[F], F]: ...


def guarded(
    function: F | None = None,
    /,
    *,
    client: Client | None = None,
    session: str | None = None,
    stop_at: str = "ESCALATE",
    correct: bool = True,
) -> Any:
    """Guards a tool function, sync or async: `@guarded` or `@guarded(session="…")`.

    Without a session it is that of the `with client.session()` around the call. A text that the
    function returns gets the correction appended, and a refused call returns it; with
    `correct=False` results stay as they are and a refused call raises `Refused`. When the run is
    to stop, `Stopped` is raised.
    """
    if function is None:
        return functools.partial(guarded, client=client, session=session, stop_at=stop_at, correct=correct)
    signature = inspect.signature(function)
    tool = getattr(function, "__name__", "tool")

    def begin(args: Any, kwargs: Any) -> tuple[Guard, dict[str, Any]]:
        opened = current.get()
        used = client or (opened.client if opened else None)
        try:
            told = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:
            told = {"args": args, **kwargs}
        told.pop("self", None)
        return Guard(used, session or (opened.id if opened else f"process-{_process}"), stop_at=stop_at), told

    def refuse(guard: Guard, verdict: Verdict) -> str:
        guard.raise_if_stopped()
        if not correct:
            raise Refused(verdict)
        return verdict.text

    def end(guard: Guard, result: Any, text: str) -> Any:
        guard.raise_if_stopped()
        return appended(result, text) if correct else result

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            guard, told = begin(args, kwargs)
            if verdict := await guard.abefore(tool, told):
                return refuse(guard, verdict)
            try:
                result = await function(*args, **kwargs)
            except Exception as error:
                await guard.aafter(tool, told, error=error)
                guard.raise_if_stopped()
                raise
            return end(guard, result, await guard.aafter(tool, told, result))

        return acall

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        guard, told = begin(args, kwargs)
        if verdict := guard.before(tool, told):
            return refuse(guard, verdict)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            guard.after(tool, told, error=error)
            guard.raise_if_stopped()
            raise
        return end(guard, result, guard.after(tool, told, result))

    return call


_process = uuid.uuid4().hex
