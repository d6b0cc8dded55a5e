from smolagents import OpenAIServerModel, ToolCallingAgent, tool

import unstuck
from unstuck.smolagents import guard


@tool
def read_file(path: str) -> str:
    """Reads a file.

    Args:
        path: The file."""
    return "fn main() {}"


agent = ToolCallingAgent(tools=[read_file], model=OpenAIServerModel("gpt-5"))
guard(agent)
try:
    agent.run("Fix a.txt.")
except unstuck.Stopped as stopped:
    print("stopped:", stopped.verdict.pattern)
