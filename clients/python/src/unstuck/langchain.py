"""LangChain and LangGraph: `create_agent(model, tools, middleware=[UnstuckMiddleware()])`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, ToolMessage

from unstuck._client import Client
from unstuck._guard import Guard, appended

__all__ = ["UnstuckMiddleware"]


class UnstuckMiddleware(AgentMiddleware[Any, Any, Any]):
    """Guards an agent's tool calls. The run ends with a message that says why, see `guard.stopped`.

    One object is one session: the given one, that of the `with` around its making, or a new one.
    """

    def __init__(self, client: Client | None = None, session: str | None = None, *, stop_at: str = "ESCALATE") -> None:
        super().__init__()
        self.guard = Guard(client, session, stop_at=stop_at)
        """The guard of the run."""

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Around each call of a tool."""
        tool, args, call_id, round = _told(request)
        if verdict := self.guard.before(tool, args, call_id=call_id, round=round):
            return _refusal(verdict.text, tool, call_id)
        try:
            result = handler(request)
        except Exception as error:
            self.guard.after(tool, args, error=error, call_id=call_id, round=round)
            raise
        return _corrected(result, self.guard.after(tool, args, call_id=call_id, round=round, **_outcome(result)))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Around each call of a tool."""
        tool, args, call_id, round = _told(request)
        if verdict := await self.guard.abefore(tool, args, call_id=call_id, round=round):
            return _refusal(verdict.text, tool, call_id)
        try:
            result = await handler(request)
        except Exception as error:
            await self.guard.aafter(tool, args, error=error, call_id=call_id, round=round)
            raise
        return _corrected(result, await self.guard.aafter(tool, args, call_id=call_id, round=round, **_outcome(result)))

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Ends the run before the next request to the model."""
        verdict = self.guard.stopped
        if verdict is None:
            return None
        return {"jump_to": "end", "messages": [AIMessage(f"[unstuck] stopped: {verdict.pattern or verdict.reason}")]}


def _told(request: Any) -> tuple[str, object, str, str]:
    call = request.tool_call
    messages = request.state.get("messages", []) if isinstance(request.state, dict) else []
    # The calls of one response are one round.
    round = next((message.id for message in reversed(messages) if isinstance(message, AIMessage)), "") or ""
    return call["name"], call["args"], call.get("id") or "", round


def _outcome(result: Any) -> dict[str, object]:
    content = getattr(result, "content", result)
    return {"error" if getattr(result, "status", "") == "error" else "result": content}


def _refusal(text: str, tool: str, call_id: str) -> ToolMessage:
    return ToolMessage(content=text, name=tool, tool_call_id=call_id, status="error")


def _corrected(result: Any, text: str) -> Any:
    if text and isinstance(result, ToolMessage):
        if isinstance(result.content, str):
            result.content = appended(result.content, text)
        else:
            result.content = [*result.content, {"type": "text", "text": text}]
    return result
