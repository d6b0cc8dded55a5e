"""smolagents: `guard(agent)`, for `ToolCallingAgent` and `CodeAgent`."""

from __future__ import annotations

import copy
from typing import Any

from smolagents import ActionStep, CodeAgent

from unstuck._client import Client
from unstuck._guard import Guard
from unstuck._verdict import Refused

__all__ = ["guard"]


def guard(agent: Any, client: Client | None = None, session: str | None = None, *, stop_at: str = "ESCALATE") -> Guard:
    """Guards the tools that an agent has now. When the run is to stop it raises `unstuck.Stopped`.

    Code has to run in this process. The corrections are in the observations of a step, because
    code goes on with what a tool returns.
    """
    run = _Run(agent, Guard(client, session, stop_at=stop_at))
    for name, tool in agent.tools.items():
        if name != "final_answer":
            agent.tools[name] = run.guarded(tool)
    agent.step_callbacks.register(ActionStep, run.end_step)
    return run.guard


class _Run:
    def __init__(self, agent: Any, guard: Guard) -> None:
        self.guard = guard
        self.raises = isinstance(agent, CodeAgent)
        self.steps = 0
        self.texts: list[str] = []

    def guarded(self, tool: Any) -> Any:
        """A copy, because agents may share a tool."""
        call = tool.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            # The signature of a decorated function is of no use: it begins with `self`.
            told = dict(zip(tool.inputs, args)) | kwargs
            round = str(self.steps)
            if verdict := self.guard.before(tool.name, told, round=round):
                # No code goes on with a text, and no text is an image.
                if self.raises or tool.output_type in ("image", "audio"):
                    raise Refused(verdict)
                return verdict.text
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                self.note(self.guard.after(tool.name, told, error=error, round=round))
                raise
            self.note(self.guard.after(tool.name, told, result, round=round))
            return result

        copied = copy.copy(tool)
        copied.forward = forward
        return copied

    def note(self, text: str) -> None:
        if text and text not in self.texts:
            self.texts.append(text)

    def end_step(self, step: Any, agent: Any = None) -> None:
        self.steps += 1
        texts, self.texts = self.texts, []
        if texts:
            step.observations = "\n\n".join(filter(None, [step.observations, *texts]))
        self.guard.raise_if_stopped()
