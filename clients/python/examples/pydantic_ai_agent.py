from pydantic_ai import Agent

import unstuck
from unstuck.pydantic_ai import UnstuckCapability


def read_file(path: str) -> str:
    return "fn main() {}"


agent = Agent("openai-chat:gpt-5", tools=[read_file], capabilities=[UnstuckCapability()])
try:
    agent.run_sync("Fix a.txt.")
except unstuck.Stopped as stopped:
    print("stopped:", stopped.verdict.pattern)
