"""Claude Agent SDK: `guard(options)`, for `query` and `ClaudeSDKClient`."""

from __future__ import annotations

import collections
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

from unstuck._client import Client
from unstuck._guard import Guard

__all__ = ["guard"]

# Sub-agents and calls of a session that are remembered; the oldest is forgotten.
KEPT_MAX = 1_024


def guard(
    options: ClaudeAgentOptions, client: Client | None = None, session: str | None = None, *, stop_at: str = "ESCALATE"
) -> Guard:
    """Adds hooks to the options of a run. When the run is to stop it ends; see `guard.stopped`.

    A sub-agent is watched separately and is stopped alone.
    """
    guard = Guard(client, session, stop_at=stop_at)
    run = _Run(guard)
    hooks: dict[Any, list[HookMatcher]] = dict(options.hooks or {})
    added = {"PreToolUse": run.before, "PostToolUseFailure": run.failed, "PostToolBatch": run.after}
    for event, hook in added.items():
        hooks[event] = [*hooks.get(event, []), HookMatcher(hooks=[hook])]
    options.hooks = hooks
    return guard


class _Run:
    def __init__(self, guard: Guard) -> None:
        self.main = guard
        self.sub_agents: collections.OrderedDict[str, Guard] = collections.OrderedDict()
        # What is known of calls until their batch ends. None: refused.
        self.ends: collections.OrderedDict[str, object] = collections.OrderedDict()

    def guard(self, agent: str | None) -> Guard:
        if not agent:
            return self.main
        if agent not in self.sub_agents:
            main = self.main
            self.sub_agents[agent] = Guard(main.client, main.session, agent=agent, stop_at=main.stop_at.name)
            _bound(self.sub_agents)
        return self.sub_agents[agent]

    async def before(self, told: Any, call_id: str | None, context: Any) -> Any:
        guard = self.guard(told.get("agent_id"))
        verdict = await guard.abefore(told["tool_name"], told["tool_input"], call_id=told["tool_use_id"])
        if verdict is None:
            return {}
        self.ends[told["tool_use_id"]] = None
        _bound(self.ends)
        denied = {
            "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": verdict.text,
        }
        return _stop(guard) | {"hookSpecificOutput": denied}

    async def failed(self, told: Any, call_id: str | None, context: Any) -> Any:
        self.ends[told["tool_use_id"]] = told["error"]
        _bound(self.ends)
        return {}

    async def after(self, told: Any, call_id: str | None, context: Any) -> Any:
        """All calls of one answer of the model, with their results as the model reads them."""
        guard = self.guard(told.get("agent_id"))
        calls = told["tool_calls"]
        texts = []
        for call in calls:
            name, args, id = call["tool_name"], call["tool_input"], call["tool_use_id"]
            error = self.ends.pop(id, _Succeeded)
            # A refused call was recorded when it was refused.
            if error is not None:
                outcome = {"result": call.get("tool_response")} if error is _Succeeded else {"error": error}
                texts.append(await guard.aafter(name, args, call_id=id, round=calls[0]["tool_use_id"], **outcome))
        text = "\n".join(filter(None, texts))
        if not text:
            return _stop(guard)
        return _stop(guard) | {"hookSpecificOutput": {"hookEventName": "PostToolBatch", "additionalContext": text}}


class _Succeeded:
    """No failure was told."""


def _stop(guard: Guard) -> dict[str, Any]:
    verdict = guard.stopped
    return {"continue_": False, "stopReason": verdict.text} if verdict else {}


def _bound(kept: collections.OrderedDict[str, Any]) -> None:
    while len(kept) > KEPT_MAX:
        kept.popitem(last=False)
