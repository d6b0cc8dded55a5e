"""The two agents of smolagents with a model that repeats itself."""

import pytest
from adapters import AWAY, CORRECTION, FAILING_RUN, REPEATED_RUN, failing_tool, outcomes, read_file

pytest.importorskip("smolagents")
from smolagents import CodeAgent, Model, Tool, ToolCallingAgent, tool  # noqa: E402
from smolagents.models import (  # noqa: E402
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
)

from unstuck import Stopped  # noqa: E402
from unstuck.smolagents import guard  # noqa: E402


class Repeating(Model):
    """Asks for the same call, as a tool call or as code."""

    def __init__(self, tool, kind):
        super().__init__(model_id="repeating")
        self.tool, self.kind, self.requests = tool, kind, []

    def generate(self, messages, **_):
        self.requests.append(str(messages))
        if self.kind is CodeAgent:
            return ChatMessage(MessageRole.ASSISTANT, f'<code>\nprint({self.tool}(path="a.txt"))\n</code>')
        function = ChatMessageToolCallFunction(name=self.tool, arguments={"path": "a.txt"})
        call = ChatMessageToolCall(id=f"call-{len(self.requests)}", type="function", function=function)
        return ChatMessage(MessageRole.ASSISTANT, "", tool_calls=[call])


def run(kind, client, session, function, between=lambda: ""):
    class Named(Tool):
        name = function.__name__
        description = "A tool."
        inputs = {"path": {"type": "string", "description": "A path."}}
        output_type = "string"

        def forward(self, path):
            more = between()
            return function(path) + more

    model = Repeating(function.__name__, kind)
    agent = kind(tools=[Named()], model=model, max_steps=15, verbosity_level=0)
    guard(agent, client, session)
    return agent, model


@pytest.mark.parametrize("kind", [ToolCallingAgent, CodeAgent])
def test_it_is_corrected_refused_and_stopped(client, session, service, kind):
    agent, model = run(kind, client, session, read_file)
    with pytest.raises(Stopped) as stopped:
        agent.run("Do it.")
    assert CORRECTION not in model.requests[2] and CORRECTION in model.requests[3]
    assert stopped.value.verdict >= "ESCALATE" and len(model.requests) == 7
    assert outcomes(service, session) == REPEATED_RUN


@pytest.mark.parametrize("kind", [ToolCallingAgent, CodeAgent])
def test_a_failing_tool_is_counted(client, service, session, kind):
    with pytest.raises(Stopped):
        run(kind, client, session, failing_tool)[0].run("Do it.")
    assert outcomes(service, session) == FAILING_RUN


@AWAY
def test_it_goes_on_without_the_service(away, own_service, session):
    away(
        own_service, session, lambda client, kill: run(ToolCallingAgent, client, session, read_file, kill)[0].run("Do it.")
    )


def test_a_decorated_function_is_guarded(client, service, session):
    @tool
    def read_file(path: str) -> str:
        """Reads a file.

        Args:
            path: The file.
        """
        return "fn main() {}"

    agent = ToolCallingAgent(tools=[read_file], model=Repeating("read_file", ToolCallingAgent), max_steps=15, verbosity_level=0)
    guard(agent, client, session)
    with pytest.raises(Stopped):
        agent.run("Do it.")
    assert outcomes(service, session) == REPEATED_RUN
