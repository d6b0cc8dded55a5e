"""The examples, as they stand, with a model on loopback; those whose framework is in this environment."""

import importlib.util
import subprocess
import sys

import pytest
from conftest import PACKAGE, PATIENCE_SECS
from fakes import FakeModels, environment

NEEDED = {
    "langchain_agent": "langchain_openai", "openai_agents_agent": "agents", "pydantic_ai_agent": "pydantic_ai",
    "smolagents_agent": "smolagents", "claude_agent": "claude_agent_sdk", "autogen_agent": "autogen_agentchat",
    "crewai_agent": "crewai",
}
HERE = [name for name, needed in NEEDED.items() if importlib.util.find_spec(needed)]
# A busy machine may miss the deadline, which is no part of the example.
RUN = f"""
import runpy, sys, unstuck
unstuck.Client.__init__.__kwdefaults__["deadline"] = {PATIENCE_SECS}
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_each_example_is_run_in_some_environment():
    assert {path.stem for path in (PACKAGE / "examples").glob("*.py")} == set(NEEDED)


@pytest.mark.parametrize("name", HERE)
def test_an_example_has_at_most_15_lines_and_is_stopped(name, service, tmp_path):
    example = PACKAGE / f"examples/{name}.py"
    assert len([line for line in example.read_text().splitlines() if line]) <= 15
    (tmp_path / "a.txt").write_text("hello\n")
    with FakeModels(tmp_path) as models:
        models.default_play = "read-loop"
        env = environment(models, service) | {"PYTHONPATH": str(PACKAGE / "src"), "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", RUN, example], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=2 * PATIENCE_SECS
        )
    assert done.returncode == 0, done.stderr
    assert "stopped: asked 3 times for what was refused" in done.stdout, done.stdout
    assert len(models.turns("read-loop")) <= 8
