"""LiteLLM: `unstuck.litellm.Guard` guards every agent behind the gateway.

In the configuration of the proxy, with the service's address in `UNSTUCK_SERVER`:

    guardrails:
      - guardrail_name: unstuck
        litellm_params: {guardrail: unstuck.litellm.Guard, mode: pre_call, default_on: true}
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import json
from typing import Any, NoReturn

from fastapi import HTTPException
from litellm.integrations.custom_guardrail import CustomGuardrail

from unstuck import _events, _gateway, _text
from unstuck._client import Client
from unstuck._gateway import Call, Turn
from unstuck._guard import default_client
from unstuck._verdict import Action, Verdict
from unstuck.v1 import event_pb2 as event_pb

__all__ = ["Guard"]

# Of a history that is seen for the first time; the service knows as many event ids of a session.
EVENTS_MAX = 250
# Calls and turns that were sent and are remembered; the oldest is forgotten.
SENT_MAX = 100_000


class Guard(CustomGuardrail):
    """Reads the calls and results in each request, and appends the correction to the last result.

    At `stop_at` and stronger a request is answered with status 429, but only while it ends with a
    result: what a user says always passes. The formats are those of Chat Completions, Responses,
    Anthropic and Gemini. A session is `metadata.session_id`, the header `x-litellm-session-id`, or
    that of Claude Code's `metadata.user_id`; else it is known by its first messages and calls.
    Sessions have the profile and the labels `source` and `model`.
    """

    def __init__(
        self, client: Client | None = None, stop_at: str = "ESCALATE", profile: str = "", **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.client = client if client is not None else default_client()
        """The client."""
        self.stop_at = Action[stop_at]
        self._profile = profile
        self._sent: collections.OrderedDict[tuple[str, str], str] = collections.OrderedDict()

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: Any) -> Any:
        """Before each request to a model."""
        try:
            verdict, ends_with_result = await self._observe(data, getattr(user_api_key_dict, "api_key", None))
            if verdict is None or not ends_with_result or verdict < Action.WARN:
                return data
            if verdict < self.stop_at:
                return _gateway.with_correction(data, verdict.text)
        except Exception as error:
            # What cannot be read passes.
            self.client._failed(error)
            return data
        _refuse(verdict)

    async def _observe(self, data: dict[str, Any], key: str | None) -> tuple[Verdict | None, bool]:
        """Sends what is new, and returns what holds for the last calls of a history."""
        history = _gateway.read(data)
        calls = [entry for entry in history.entries if isinstance(entry, Call)]
        if not calls:
            return None, False
        given = _gateway.session_of(data)
        # Two users who begin with the same words have different keys.
        base = given or _hash(key or "", *history.opening)
        # Sub-agents share a session that is given.
        agent = _hash(*history.opening)[:12] if given else ""
        first = calls[0].id
        known = next(filter(None, (self._sent.get((base, entry.id)) for entry in calls)), None)
        session = known or given or _hash(base, first)
        new = [entry for entry in history.entries if (base, entry.id) not in self._sent][-EVENTS_MAX:]
        for entry in history.entries:
            self._sent[base, entry.id] = session
            self._sent.move_to_end((base, entry.id))
        while len(self._sent) > SENT_MAX:
            self._sent.popitem(last=False)
        if known is None:
            labels = {"source": "gateway", "model": str(data.get("model") or "")[:64]}
            await asyncio.to_thread(self.client._begin_session, session, self._profile, labels)
            self.client._profiles.pop(session, None)
            self.client._unopened.discard(session)
        answers = await asyncio.gather(*(self.client._asend(self._event(session, agent, entry)) for entry in new))
        if not history.ends_with_result:
            return None, False
        last = calls[-1]
        found = [
            verdict for entry, verdict in zip(new, answers)
            if verdict is not None and isinstance(entry, Call) and entry.round == last.round
        ]
        # A request that is sent again has nothing new; what holds still holds.
        held = await self.client.acheck(session, last.tool, last.args, agent=agent)
        return max([*found, *([held] if held else [])], key=lambda verdict: verdict.action, default=None), True

    def _event(self, session: str, agent: str, entry: Call | Turn) -> event_pb.Event:
        if isinstance(entry, Turn):
            event = _events.turn(session, entry.role, entry.text, agent)
            event.event_id = _text.bounded_id(entry.id)
            return event
        error, result = (entry.text, None) if entry.failed else (None, entry.text)
        event = _events.call(
            session, entry.tool, entry.args, result, error, agent=agent, round=entry.round, call_id=entry.id
        )
        if entry.failed is None:
            # The service reads the exit code in a result.
            event.tool_call.outcome = event_pb.OUTCOME_UNSPECIFIED
        return event


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _refuse(verdict: Verdict) -> NoReturn:
    detail = {"error": verdict.text, "pattern": verdict.pattern, "action": verdict.action.name}
    # The clients of OpenAI and Anthropic would send the request again.
    raise HTTPException(429, detail, headers={"x-should-retry": "false"})
