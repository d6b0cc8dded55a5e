"""LangChain's agent with its own fake model."""

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, failing_tool, outcomes, read_file

pytest.importorskip("langchain")
from langchain.agents import create_agent  # noqa: E402
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


def answers(tool):
    for number in range(20):
        call = {"name": tool, "args": {"path": "a.txt"}, "id": f"call-{number}"}
        yield AIMessage(content="", tool_calls=[call], id=f"answer-{number}")


def agent(client, session, tool, between=lambda: ""):
    model = Model(messages=answers(tool.__name__), requests=[])
    middleware = UnstuckMiddleware(client, session)

    def handle(path: str) -> str:
        """A tool."""
        more = between()
        return tool(path) + more

    handle.__name__ = tool.__name__
    from langchain_core.tools import tool as as_tool

    return create_agent(model, [as_tool(handle)], middleware=[middleware]), model, middleware


START = {"messages": [{"role": "user", "content": "Do it."}]}


def test_it_is_corrected_refused_and_stopped(client, session):
    run, model, middleware = agent(client, session, read_file)
    result = run.invoke(START)
    assert CORRECTION in str(model.requests[3][-1].content)
    assert "stopped" in result["messages"][-1].content and middleware.guard.stopped >= "ESCALATE"
    assert len(model.requests) == 7


async def test_it_is_corrected_and_stopped_with_asyncio(client, session):
    run, model, middleware = agent(client, session, read_file)
    await run.ainvoke(START)
    assert CORRECTION in str(model.requests[3][-1].content) and len(model.requests) == 7


def test_a_failing_tool_is_counted(client, service, session):
    run, _, _ = agent(client, session, failing_tool)
    with pytest.raises(OSError):
        run.invoke(START)
    assert outcomes(service, session) == FAILING_RUN[:1]


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(own_service, session, lambda client, kill: agent(client, session, read_file, kill)[0].invoke(
        START, {"recursion_limit": 100}
    ))
