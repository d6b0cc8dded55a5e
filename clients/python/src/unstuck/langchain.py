"""LangChain and LangGraph: `create_agent(model, tools, middleware=[UnstuckMiddleware()])`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

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
        # Corrections of calls that raised. What another middleware makes of it is not known here.
        self._untold: list[str] = []

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Around each call of a tool."""
        tool, args, call_id, round = self._told(request)
        if verdict := self.guard.before(tool, args, call_id=call_id, round=round):
            return _refusal(verdict.text, tool, call_id)
        try:
            result = handler(request)
        except GraphBubbleUp:
            # An interrupt for a person, not a failure: the call is made again later.
            raise
        except Exception as error:
            self._tell_later(self.guard.after(tool, args, error=error, call_id=call_id, round=round))
            raise
        answer = _answer(result, call_id)
        _correct(answer, self.guard.after(tool, args, call_id=call_id, round=round, **_outcome(answer)))
        return result

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Around each call of a tool."""
        tool, args, call_id, round = self._told(request)
        if verdict := await self.guard.abefore(tool, args, call_id=call_id, round=round):
            return _refusal(verdict.text, tool, call_id)
        try:
            result = await handler(request)
        except GraphBubbleUp:
            raise
        except Exception as error:
            self._tell_later(await self.guard.aafter(tool, args, error=error, call_id=call_id, round=round))
            raise
        answer = _answer(result, call_id)
        _correct(answer, await self.guard.aafter(tool, args, call_id=call_id, round=round, **_outcome(answer)))
        return result

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Ends the run before the next request to the model, or adds the corrections of calls that raised."""
        texts, self._untold = self._untold, []
        verdict = self.guard.stopped
        if verdict is None:
            return {"messages": [HumanMessage("\n".join(texts))]} if texts else None
        return {"jump_to": "end", "messages": [AIMessage(f"[unstuck] stopped: {verdict.pattern or verdict.reason}")]}

    def _tell_later(self, text: str) -> None:
        if text and text not in self._untold:
            self._untold.append(text)

    def _told(self, request: Any) -> tuple[str, object, str, str]:
        call = request.tool_call
        messages = request.state.get("messages", []) if isinstance(request.state, dict) else []
        # The calls of one response are one round, and have used its tokens.
        response = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
        round = (response.id if response else "") or ""
        if response and round and (used := response.usage_metadata):
            cached = (used.get("input_token_details") or {}).get("cache_read", 0)
            self.guard.used(round, used.get("input_tokens", 0), used.get("output_tokens", 0), cached)
        return call["name"], call["args"], call.get("id") or "", round


def _answer(result: Any, call_id: str) -> Any:
    """What the model reads: of a tool that changes the state, the answer among the new messages."""
    if not isinstance(result, Command):
        return result
    messages = result.update.get("messages", []) if isinstance(result.update, dict) else []
    return next((one for one in messages if isinstance(one, ToolMessage) and one.tool_call_id == call_id), "")


def _outcome(answer: Any) -> dict[str, Any]:
    content = getattr(answer, "content", answer)
    return {"error" if getattr(answer, "status", "") == "error" else "result": content}


def _refusal(text: str, tool: str, call_id: str) -> ToolMessage:
    return ToolMessage(content=text, name=tool, tool_call_id=call_id, status="error")


def _correct(answer: Any, text: str) -> None:
    if text and isinstance(answer, ToolMessage):
        if isinstance(answer.content, str):
            answer.content = appended(answer.content, text)
        else:
            answer.content = [*answer.content, {"type": "text", "text": text}]
