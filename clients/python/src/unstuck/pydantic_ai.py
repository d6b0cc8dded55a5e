"""Pydantic AI: `Agent(model, capabilities=[UnstuckCapability()])`."""

from __future__ import annotations

from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, SkipToolExecution

from unstuck._client import Client
from unstuck._guard import Guard, appended

__all__ = ["UnstuckCapability"]

# How a call is put off, or answered elsewhere: it has not failed.
NO_FAILURES = (ApprovalRequired, CallDeferred, SkipToolExecution)


class UnstuckCapability(AbstractCapability[Any]):
    """Guards an agent's tool calls. When the run is to stop it raises `unstuck.Stopped`."""

    def __init__(self, client: Client | None = None, session: str | None = None, *, stop_at: str = "ESCALATE") -> None:
        self.guard = Guard(client, session, stop_at=stop_at)
        """The guard of the run."""

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Around each call of a tool."""
        told: dict[str, Any] = {"call_id": call.tool_call_id or "", "round": f"{ctx.run_id}-{ctx.run_step}"}
        used = ctx.usage
        self.guard.used(used, used.input_tokens, used.output_tokens, used.cache_read_tokens)
        if verdict := await self.guard.abefore(call.tool_name, args, **told):
            self.guard.raise_if_stopped()
            return verdict.text
        try:
            result = await handler(args)
        except NO_FAILURES:
            raise
        except Exception as error:
            text = await self.guard.aafter(call.tool_name, args, error=error, **told)
            self.guard.raise_if_stopped()
            # What the model reads of a tool that raised ModelRetry or ToolFailed.
            answer = getattr(error, "tool_retry", None) or getattr(error, "tool_failed", None)
            if answer is not None:
                answer.content = appended(answer.content, text)
            raise
        text = await self.guard.aafter(call.tool_name, args, result, **told)
        self.guard.raise_if_stopped()
        return appended(result, text)
