"""AutoGen's agent and team with its own scripted model client."""

import asyncio

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, REPEATED_RUN, failing_tool, outcomes, read_file

pytest.importorskip("autogen_agentchat")
from autogen_agentchat.agents import AssistantAgent  # noqa: E402
from autogen_agentchat.teams import RoundRobinGroupChat  # noqa: E402
from autogen_core import FunctionCall  # noqa: E402
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage  # noqa: E402
from autogen_core.tools import FunctionTool  # noqa: E402
from autogen_ext.models.replay import ReplayChatCompletionClient  # noqa: E402

from unstuck import Stopped  # noqa: E402
from unstuck.autogen import UnstuckTermination, UnstuckWorkbench  # noqa: E402


def agent(client, session, tool, between=lambda: ""):
    answers = [
        CreateResult(
            finish_reason="function_calls", usage=RequestUsage(prompt_tokens=1, completion_tokens=1), cached=False,
            content=[FunctionCall(id=f"call-{number}", name=tool.__name__, arguments='{"path": "a.txt"}')],
        )
        for number in range(20)
    ]
    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, structured_output=False, family=ModelFamily.UNKNOWN
    )
    model = ReplayChatCompletionClient(answers, model_info=info)

    async def handle(path: str) -> str:
        more = between()
        return tool(path) + more

    workbench = UnstuckWorkbench([FunctionTool(handle, name=tool.__name__, description="A tool.")], client, session)
    return AssistantAgent("agent", model, workbench=workbench, max_tool_iterations=15), workbench, model


def requests(model):
    return [str(call["messages"]) for call in model.create_calls]


def test_it_is_corrected_refused_and_stopped(client, service, session):
    run, _, model = agent(client, session, read_file)
    with pytest.raises(Stopped) as stopped:
        asyncio.run(run.run(task="Do it."))
    assert CORRECTION not in requests(model)[2] and CORRECTION in requests(model)[3]
    assert stopped.value.verdict >= "ESCALATE" and len(requests(model)) == 7
    assert outcomes(service, session) == REPEATED_RUN


def test_a_team_ends_with_a_message(client, service, session):
    run, workbench, model = agent(client, session, read_file)
    run._max_tool_iterations = 1
    team = RoundRobinGroupChat([run], termination_condition=UnstuckTermination(workbench), max_turns=15)
    result = asyncio.run(team.run(task="Do it."))
    assert result.stop_reason.startswith("[unstuck] stopped: ") and len(requests(model)) == 7
    assert outcomes(service, session) == REPEATED_RUN


def test_a_failing_tool_is_counted(client, service, session):
    with pytest.raises(Stopped):
        asyncio.run(agent(client, session, failing_tool)[0].run(task="Do it."))
    assert outcomes(service, session) == FAILING_RUN


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(
        own_service, session,
        lambda client, kill: asyncio.run(agent(client, session, read_file, kill)[0].run(task="Do it.")),
    )
