"""OpenAI Agents SDK: `guard(agent)`."""

from __future__ import annotations

import copy
from typing import Any

from agents import (
    AgentsException,
    FunctionTool,
    RunContextWrapper,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    default_tool_error_function,
)

from unstuck._client import Client
from unstuck._guard import Guard, appended
from unstuck._verdict import Stopped

__all__ = ["guard"]


class _RunStopped(Stopped, AgentsException):
    """The SDK wraps any other exception of a guardrail."""


def guard(agent: Any, client: Client | None = None, session: str | None = None, *, stop_at: str = "ESCALATE") -> Guard:
    """Guards the function tools of an agent. When the run is to stop it raises `unstuck.Stopped`.

    Tools that run at the model's provider and tools of MCP servers are not guarded. A tool has
    failed if it answers with the SDK's own message of a failure.
    """
    guard = Guard(client, session, stop_at=stop_at)
    failure = default_tool_error_function(RunContextWrapper(None), Exception())

    def raise_if_stopped() -> None:
        if verdict := guard.stopped:
            raise _RunStopped(verdict)

    def round_of(context: Any) -> str:
        # The calls of one response of the model are made before the next request.
        return f"{id(context.usage):x}-{context.usage.requests}"

    async def before(data: Any) -> ToolGuardrailFunctionOutput:
        context, used = data.context, data.context.usage
        cached = getattr(used.input_tokens_details, "cached_tokens", 0)
        guard.used(used, used.input_tokens, used.output_tokens, cached)
        verdict = await guard.abefore(
            context.tool_name, context.tool_arguments, call_id=context.tool_call_id, round=round_of(context)
        )
        raise_if_stopped()
        return ToolGuardrailFunctionOutput.reject_content(verdict.text) if verdict else ToolGuardrailFunctionOutput.allow()

    async def after(data: Any) -> ToolGuardrailFunctionOutput:
        context, output = data.context, data.output
        outcome = {"error" if output == failure else "result": output}
        text = await guard.aafter(
            context.tool_name, context.tool_arguments, call_id=context.tool_call_id, round=round_of(context), **outcome
        )
        raise_if_stopped()
        if text and isinstance(output, str):
            return ToolGuardrailFunctionOutput.reject_content(appended(output, text))
        return ToolGuardrailFunctionOutput.allow()

    def guarded(tool: Any) -> Any:
        if not isinstance(tool, FunctionTool):
            return tool
        # A copy, because agents may share a tool.
        tool = copy.copy(tool)
        tool.tool_input_guardrails = [*(tool.tool_input_guardrails or []), ToolInputGuardrail(before, "unstuck")]
        tool.tool_output_guardrails = [*(tool.tool_output_guardrails or []), ToolOutputGuardrail(after, "unstuck")]
        return tool

    agent.tools = [guarded(tool) for tool in agent.tools]
    return guard
