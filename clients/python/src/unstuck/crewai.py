"""CrewAI: `guard(crew)`, or `guard(agent)` for an agent that runs alone."""

from __future__ import annotations

import weakref
from typing import Any

from crewai.hooks import (
    HookAborted,
    register_after_tool_call_hook,
    register_before_tool_call_hook,
    unregister_after_tool_call_hook,
    unregister_before_tool_call_hook,
)
from crewai.tools.tool_failure import detect_tool_failure

from unstuck._client import Client
from unstuck._guard import Guard, appended
from unstuck._verdict import Stopped, Verdict

__all__ = ["guard"]

# How CrewAI tells the model that a tool has raised. Its hooks learn it in no other way.
FAILED = ("Error executing tool: ", "I encountered an error while trying to use the tool.")


class _RunStopped(Stopped, HookAborted):
    """CrewAI swallows any other exception of a hook."""


def guard(runner: Any, client: Client | None = None, session: str | None = None, *, stop_at: str = "ESCALATE") -> Guard:
    """Guards the tool calls of a crew or an agent. When the run is to stop it raises `unstuck.Stopped`.

    CrewAI's hooks are those of the process; these leave other crews alone and go with the runner.
    """
    guard = Guard(client, session, stop_at=stop_at)
    known = weakref.ref(runner)
    # The refused calls, by the object that holds their arguments, until CrewAI tells their results.
    refused: dict[int, Verdict] = {}

    def is_ours(call: Any) -> bool:
        runner = known()
        return runner is not None and (
            call.crew is runner or call.agent is runner
            or any(call.agent is agent for agent in getattr(runner, "agents", ()))
        )

    def before(call: Any) -> bool | None:
        if not is_ours(call):
            return None
        verdict = guard.before(call.tool_name, call.tool_input)
        if verdict is None:
            return None
        refused[id(call.tool_input)] = verdict
        return False

    def after(call: Any) -> str | None:
        if not is_ours(call):
            return None
        if verdict := refused.pop(id(call.tool_input), None):
            text = verdict.text
        else:
            result = call.tool_result or ""
            failed = result.lstrip().startswith(FAILED) or detect_tool_failure(call.raw_tool_result) is not None
            outcome: dict[str, Any] = {"error" if failed else "result": result}
            correction = guard.after(call.tool_name, call.tool_input, **outcome)
            text = appended(result, correction)
        if stopped := guard.stopped:
            raise _RunStopped(stopped)
        return text

    register_before_tool_call_hook(before)
    register_after_tool_call_hook(after)
    weakref.finalize(runner, unregister_before_tool_call_hook, before)
    weakref.finalize(runner, unregister_after_tool_call_hook, after)
    return guard
