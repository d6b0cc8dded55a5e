from agents import Agent, Runner, function_tool

import unstuck
from unstuck.openai_agents import guard

@function_tool
def read_file(path: str) -> str:
    return "fn main() {}"

agent = Agent(name="reader", model="gpt-5", tools=[read_file])
guard(agent)
try:
    Runner.run_sync(agent, "Fix a.txt.")
except unstuck.Stopped as stopped:
    print("stopped:", stopped.verdict.pattern)
