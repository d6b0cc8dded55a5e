from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from unstuck.langchain import UnstuckMiddleware


def read_file(path: str) -> str:
    """Reads a file."""
    return "fn main() {}"


middleware = UnstuckMiddleware()
agent = create_agent(ChatOpenAI(model="gpt-5"), [read_file], middleware=[middleware])
print(agent.invoke({"messages": [{"role": "user", "content": "Fix a.txt."}]})["messages"][-1].content)
