import asyncio

from claude_agent_sdk import ClaudeAgentOptions, query

from unstuck.claude import guard


async def main():
    options = ClaudeAgentOptions(permission_mode="acceptEdits")
    run = guard(options)
    async for message in query(prompt="Fix a.txt.", options=options):
        print(type(message).__name__)
    print("stopped:", run.stopped and run.stopped.pattern)


asyncio.run(main())
