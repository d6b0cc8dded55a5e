from crewai import Agent
from crewai.tools import tool

import unstuck
from unstuck.crewai import guard


@tool
def read_file(path: str) -> str:
    """Reads a file."""
    return "fn main() {}"


agent = Agent(role="reader", goal="fix it", backstory="reads", llm="openai/gpt-4o", tools=[read_file])
guard(agent)
try:
    agent.kickoff("Fix a.txt.")
except unstuck.Stopped as stopped:
    print("stopped:", stopped.verdict.pattern)
