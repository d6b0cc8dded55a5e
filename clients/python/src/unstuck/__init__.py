"""The client of Unstuck: it finds agents that go in circles.

`Client` sends an agent's calls and returns verdicts, `guarded` guards a tool function, and a module
for each agent framework guards its runs: `unstuck.langchain`, `unstuck.openai_agents`,
`unstuck.pydantic_ai`, `unstuck.claude`, `unstuck.smolagents`, `unstuck.autogen` and
`unstuck.crewai`. `unstuck.litellm` guards every agent behind a gateway.
"""

from unstuck._client import Client, Stats
from unstuck._events import Usage
from unstuck._guard import Guard, guarded
from unstuck._session import Session
from unstuck._verdict import Action, Member, Refused, Stopped, Verdict

__all__ = [
    "Action", "Client", "Guard", "Member", "Refused", "Session", "Stats", "Stopped", "Usage", "Verdict", "guarded",
]
__version__ = "0.1.0"
