"""LangChain's agent with its own fake model."""

import itertools
from typing import Annotated

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, REPEATED_RUN, failing_tool, outcomes, read_file

pytest.importorskip("langchain")
from langchain.agents import create_agent  # noqa: E402
from langchain.agents.middleware import ToolRetryMiddleware  # noqa: E402
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage  # noqa: E402

from unstuck.langchain import UnstuckMiddleware  # noqa: E402


class Model(GenericFakeChatModel):
    """Asks for the same call again and again, and keeps what it was asked."""

    requests: list = []

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, *args, **kwargs):
        self.requests.append(list(messages))
        return super()._generate(messages, *args, **kwargs)


USAGE = {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107, "input_token_details": {"cache_read": 90}}


def answers(tool):
    for number in range(20):
        call = {"name": tool, "args": {"path": "a.txt"}, "id": f"call-{number}"}
        yield AIMessage(content="", tool_calls=[call], id=f"answer-{number}", usage_metadata=USAGE)


def agent(client, session, tool, between=lambda: "", before=()):
    model = Model(messages=answers(tool.__name__), requests=[])
    middleware = UnstuckMiddleware(client, session)

    def handle(path: str) -> str:
        """A tool."""
        more = between()
        return tool(path) + more

    handle.__name__ = tool.__name__
    from langchain_core.tools import tool as as_tool

    return create_agent(model, [as_tool(handle)], middleware=[*before, middleware]), model, middleware


START = {"messages": [{"role": "user", "content": "Do it."}]}


def test_it_is_corrected_refused_and_stopped(client, service, session):
    run, model, middleware = agent(client, session, read_file)
    result = run.invoke(START)
    assert CORRECTION in str(model.requests[3][-1].content)
    assert "stopped" in result["messages"][-1].content and middleware.guard.stopped >= "ESCALATE"
    assert len(model.requests) == 7
    # Also those of refused calls.
    used = service.get(session).session.usage
    assert (used.input_tokens, used.output_tokens, used.cached_input_tokens) == (700, 49, 630)


async def test_it_is_corrected_and_stopped_with_asyncio(client, session):
    run, model, middleware = agent(client, session, read_file)
    await run.ainvoke(START)
    assert CORRECTION in str(model.requests[3][-1].content) and len(model.requests) == 7


def test_a_failing_tool_is_counted(client, service, session):
    run, _, _ = agent(client, session, failing_tool)
    with pytest.raises(OSError):
        run.invoke(START)
    assert outcomes(service, session) == FAILING_RUN[:1]


def test_a_failure_that_another_middleware_handles_is_corrected(client, service, session):
    retries = ToolRetryMiddleware(max_retries=0, on_failure="continue")
    run, model, middleware = agent(client, session, failing_tool, before=[retries])
    run.invoke(START)
    assert "[unstuck] " not in str(model.requests[2]) and "[unstuck] " in str(model.requests[3])
    assert middleware.guard.stopped and outcomes(service, session) == FAILING_RUN


def test_an_interrupt_for_a_person_is_no_failure(client, service, session):
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command, interrupt

    @tool
    def deploy(path: str) -> str:
        """Deploys."""
        return f"deployed: {interrupt('May I?')}"

    model = Model(messages=iter([*itertools.islice(answers("deploy"), 1), AIMessage("done")]), requests=[])
    run = create_agent(model, [deploy], middleware=[UnstuckMiddleware(client, session)], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    run.invoke(START, thread)
    assert client.stats.recorded == 0
    run.invoke(Command(resume="yes"), thread)
    assert "deployed: yes" in str(model.requests[-1][-1].content) and outcomes(service, session) == [1]


def test_a_tool_that_changes_the_state_is_corrected(client, service, session):
    from langchain.tools import InjectedToolCallId
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langgraph.types import Command

    @tool
    def read_file(path: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Reads a file."""
        return Command(update={"messages": [ToolMessage("fn main() {}", tool_call_id=tool_call_id)]})

    model = Model(messages=answers("read_file"), requests=[])
    run = create_agent(model, [read_file], middleware=[UnstuckMiddleware(client, session)])
    run.invoke(START)
    assert CORRECTION in str(model.requests[3][-1].content) and outcomes(service, session) == REPEATED_RUN


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(own_service, session, lambda client, kill: agent(client, session, read_file, kill)[0].invoke(
        START, {"recursion_limit": 100}
    ))
