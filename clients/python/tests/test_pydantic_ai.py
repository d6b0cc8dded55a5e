"""Pydantic AI's agent with its own function model."""

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, failing_tool, outcomes, read_file

pytest.importorskip("pydantic_ai")
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, ModelRetry, ToolFailed  # noqa: E402
from pydantic_ai.messages import ModelResponse, ToolCallPart  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from unstuck import Stopped  # noqa: E402
from unstuck.pydantic_ai import UnstuckCapability  # noqa: E402


def agent(client, session, tool, between=lambda: "", **settings):
    requests = []

    def answer(messages, info):
        requests.append(list(messages))
        assert len(requests) <= 20, "the script has ended"
        return ModelResponse(parts=[ToolCallPart(tool.__name__, {"path": "a.txt"}, f"call-{len(requests)}")])

    def handle(path: str) -> str:
        more = between()
        return tool(path) + more

    handle.__name__ = tool.__name__
    capabilities = [UnstuckCapability(client, session)]
    return Agent(FunctionModel(answer), tools=[handle], capabilities=capabilities, **settings), requests


def test_it_is_corrected_refused_and_stopped(client, service, session):
    run, requests = agent(client, session, read_file)
    with pytest.raises(Stopped) as stopped:
        run.run_sync("Do it.")
    assert CORRECTION in str(requests[3][-1].parts[-1].content)
    assert stopped.value.verdict >= "ESCALATE" and len(requests) == 7
    used = service.get(session).session.usage
    # The function model counts the words of all messages in each request.
    assert used.input_tokens > 7 * 50 and used.output_tokens > 0


def test_a_failing_tool_is_counted(client, service, session):
    run, _ = agent(client, session, failing_tool)
    with pytest.raises(OSError):
        run.run_sync("Do it.")
    assert outcomes(service, session) == FAILING_RUN[:1]


@pytest.mark.parametrize("kind", [ModelRetry, ToolFailed])
def test_the_model_reads_the_correction_in_a_failure_that_it_is_told(client, service, session, kind):
    def retry(path: str) -> str:
        raise kind("no such file")

    run, requests = agent(client, session, retry, retries=9)
    with pytest.raises(Stopped):
        run.run_sync("Do it.")
    assert "no such file" in str(requests[3][-1]) and "[unstuck] " in str(requests[3][-1])
    assert outcomes(service, session) == FAILING_RUN


def test_a_call_that_waits_for_a_person_is_no_failure(client, session):
    def deploy(path: str) -> str:
        raise ApprovalRequired

    run, requests = agent(client, session, deploy, output_type=[str, DeferredToolRequests])
    assert len(run.run_sync("Do it.").output.approvals) == 1 and client.stats.recorded == 0


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(own_service, session, lambda client, kill: agent(client, session, read_file, kill)[0].run_sync("Do it."))
