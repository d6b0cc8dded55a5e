"""The agent of the OpenAI Agents SDK with its own scripted model."""

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, REPEATED_RUN, failing_tool, outcomes, read_file

pytest.importorskip("agents")
from agents import Agent, RunConfig, Runner, Usage, function_tool  # noqa: E402
from agents.testing import ScriptedModel, assistant_message, function_call  # noqa: E402

from unstuck import Stopped  # noqa: E402
from unstuck.openai_agents import guard  # noqa: E402


def run(client, session, tool, between=lambda: ""):
    def handle(path: str) -> str:
        more = between()
        return tool(path) + more

    name = tool.__name__
    model = ScriptedModel([[function_call(name, {"path": "a.txt"}, call_id=f"call-{number}")] for number in range(20)])
    agent = Agent(name="agent", model=model, tools=[function_tool(handle, name_override=name)])
    guard(agent, client, session)
    # Traces would go to the provider.
    config = RunConfig(tracing_disabled=True)
    return model, lambda: Runner.run_sync(agent, "Do it.", max_turns=15, run_config=config)


def test_it_is_corrected_refused_and_stopped(client, service, session):
    model, start = run(client, session, read_file)
    with pytest.raises(Stopped) as stopped:
        start()
    assert CORRECTION not in str(model.calls[2].input) and CORRECTION in str(model.calls[3].input)
    assert stopped.value.verdict >= "ESCALATE" and len(model.calls) == 7
    assert outcomes(service, session) == REPEATED_RUN


def test_a_failing_tool_is_counted(client, service, session):
    _, start = run(client, session, failing_tool)
    with pytest.raises(Stopped):
        start()
    assert outcomes(service, session) == FAILING_RUN


def test_calls_of_one_response_are_one_round_and_carry_its_tokens(client, service, session):
    calls = [function_call("read_file", {"path": "a.txt"}, call_id=f"call-{number}") for number in range(3)]
    model = ScriptedModel([calls, [assistant_message("done")]], default_usage=Usage(requests=1, input_tokens=100, output_tokens=7))
    agent = Agent(name="agent", model=model, tools=[function_tool(read_file)])
    run_guard = guard(agent, client, session)
    Runner.run_sync(agent, "Do it.", run_config=RunConfig(tracing_disabled=True))
    found = service.get(session).session
    assert run_guard.stopped is None and found.events == 3 and not found.last_verdicts
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 7)


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(own_service, session, lambda client, kill: run(client, session, read_file, kill)[1]())
