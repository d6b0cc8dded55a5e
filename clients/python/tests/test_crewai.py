"""A crew of CrewAI with a model that repeats itself, by CrewAI's own text format and by native calls."""

import os

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, REPEATED_RUN, failing_tool, outcomes, read_file

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_DISABLE_TRACKING": "true", "OTEL_SDK_DISABLED": "true"}
pytest.importorskip("crewai")
from crewai import Agent, BaseLLM, Crew, Task  # noqa: E402
from crewai.tools import BaseTool  # noqa: E402

from unstuck import Stopped  # noqa: E402
from unstuck.crewai import guard  # noqa: E402


class Repeating(BaseLLM):
    """Asks for the same call 14 times."""

    tool: str
    native: bool
    requests: list = []

    def call(self, messages, tools=None, **_):
        self.requests.append(str(messages))
        if len(self.requests) > 14:
            return "Thought: I now know the final answer\nFinal Answer: done"
        arguments = '{"path": "a.txt"}'
        if not self.native:
            return f"Thought: I look.\nAction: {self.tool}\nAction Input: {arguments}"
        return [{"id": f"call-{len(self.requests)}", "type": "function", "function": {"name": self.tool, "arguments": arguments}}]

    def supports_function_calling(self):
        return self.native


def crew(client, session, function, native, between=lambda: ""):
    class Named(BaseTool):
        name: str = function.__name__
        description: str = "A tool."

        def _run(self, path: str) -> str:
            more = between()
            return function(path) + more

        def cache_function(self, *_):
            return False

    model = Repeating(model="repeating", tool=function.__name__, native=native, requests=[])
    agent = Agent(role="reader", goal="read", backstory="reads", llm=model, tools=[Named()], max_iter=15)
    crew = Crew(agents=[agent], tasks=[Task(description="Do it.", expected_output="done", agent=agent)], cache=False)
    return crew, guard(crew, client, session), model


def test_it_is_corrected_refused_and_stopped(client, service, session):
    run, run_guard, model = crew(client, session, read_file, True)
    with pytest.raises(Stopped) as stopped:
        run.kickoff()
    assert CORRECTION not in model.requests[2] and CORRECTION in model.requests[3]
    assert stopped.value.verdict >= "ESCALATE" and len(model.requests) == 7
    assert outcomes(service, session) == REPEATED_RUN


def test_it_is_stopped_in_the_text_format(client, service, session):
    # In this format CrewAI itself answers a repeated call, so more calls are made.
    run, run_guard, model = crew(client, session, read_file, False)
    with pytest.raises(Stopped):
        run.kickoff()
    assert any("[unstuck] " in request for request in model.requests[3:]) and outcomes(service, session)[-1] == 3


@pytest.mark.parametrize("native", [False, True])
def test_a_failing_tool_is_counted(client, service, session, native):
    with pytest.raises(Stopped):
        crew(client, session, failing_tool, native)[0].kickoff()
    assert outcomes(service, session) == FAILING_RUN


def test_another_crew_is_left_alone(client, service, session):
    run, _, _ = crew(client, session, read_file, True)
    crew(client, f"{session}-other", read_file, True)
    with pytest.raises(Stopped):
        run.kickoff()
    assert outcomes(service, session) == REPEATED_RUN


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(own_service, session, lambda client, kill: crew(client, session, read_file, True, kill)[0].kickoff())
