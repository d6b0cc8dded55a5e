"""AutoGen: `AssistantAgent(…, workbench=UnstuckWorkbench(tools))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autogen_agentchat.base import TerminatedException, TerminationCondition
from autogen_agentchat.messages import StopMessage
from autogen_core import CancellationToken
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench, TextResultContent, ToolResult, ToolSchema, Workbench

from unstuck._client import Client
from unstuck._guard import Guard

__all__ = ["UnstuckTermination", "UnstuckWorkbench"]


class UnstuckWorkbench(Workbench):
    """Guards the tools of a workbench, or a list of tools and functions.

    When the run is to stop, that of a single agent raises `unstuck.Stopped`. A team needs
    `UnstuckTermination(workbench)`, with which it ends with a message.
    """

    component_config_schema: Any = None

    def __init__(
        self, tools: Workbench | Sequence[Any], client: Client | None = None, session: str | None = None,
        *, stop_at: str = "ESCALATE",
    ) -> None:
        self.guard = Guard(client, session, stop_at=stop_at)
        """The guard of the run."""
        self._inner = tools if isinstance(tools, Workbench) else StaticWorkbench([_tool(tool) for tool in tools])
        self._raises = True

    async def list_tools(self) -> list[ToolSchema]:
        """The tools of the workbench. An agent asks for them before each request to its model."""
        if self.guard.stopped is not None:
            if self._raises:
                # An agent whose call raises waits for ever.
                self.guard.raise_if_stopped()
            return []
        return await self._inner.list_tools()

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None, call_id: str | None = None,
    ) -> ToolResult:
        """Makes a call unless it is refused; the model reads the correction in its result."""
        args = dict(arguments or {})
        if verdict := await self.guard.abefore(name, args, call_id=call_id or ""):
            return ToolResult(name=name, result=[TextResultContent(content=verdict.text)], is_error=True)
        result = await self._inner.call_tool(name, arguments, cancellation_token, call_id)
        text = result.to_text(replace_image="[image]")
        outcome = {"error" if result.is_error else "result": text}
        correction = await self.guard.aafter(name, args, call_id=call_id or "", **outcome)
        if correction:
            result.result.append(TextResultContent(content=correction))
        return result

    async def start(self) -> None:
        """Starts the workbench."""
        await self._inner.start()

    async def stop(self) -> None:
        """Stops the workbench."""
        await self._inner.stop()

    async def reset(self) -> None:
        """Resets the workbench."""
        await self._inner.reset()

    async def save_state(self) -> Mapping[str, Any]:
        """The state of the workbench."""
        return await self._inner.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Sets the state of the workbench."""
        await self._inner.load_state(state)


class UnstuckTermination(TerminationCondition):
    """Ends a team's run when it is to stop. Combines with other conditions by `|`."""

    component_config_schema: Any = None

    def __init__(self, *workbenches: UnstuckWorkbench) -> None:
        self._workbenches = workbenches
        self._terminated = False
        for workbench in workbenches:
            workbench._raises = False

    @property
    def terminated(self) -> bool:
        """Whether it has ended the run."""
        return self._terminated

    async def __call__(self, messages: Sequence[Any]) -> StopMessage | None:
        """Says after each message whether the run ends."""
        if self._terminated:
            raise TerminatedException("the condition has been reached")
        for workbench in self._workbenches:
            if verdict := workbench.guard.stopped:
                self._terminated = True
                return StopMessage(content=f"[unstuck] stopped: {verdict.pattern or verdict.reason}", source="unstuck")
        return None

    async def reset(self) -> None:
        """Allows another run."""
        self._terminated = False


def _tool(tool: Any) -> BaseTool[Any, Any]:
    return tool if isinstance(tool, BaseTool) else FunctionTool(tool, description=tool.__doc__ or "")
