import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

import unstuck
from unstuck.autogen import UnstuckWorkbench


async def read_file(path: str) -> str:
    return "fn main() {}"


model = OpenAIChatCompletionClient(model="gpt-4o")
agent = AssistantAgent("reader", model, workbench=UnstuckWorkbench([read_file]), max_tool_iterations=20)
try:
    asyncio.run(agent.run(task="Fix a.txt."))
except unstuck.Stopped as stopped:
    print("stopped:", stopped.verdict.pattern)
