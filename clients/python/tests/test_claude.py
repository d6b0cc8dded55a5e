"""The Claude Agent SDK with the real Claude Code, which the SDK brings, and a model on loopback."""

import pytest
from adapters import AWAY, outcomes
from fakes import FakeModels, environment

pytest.importorskip("claude_agent_sdk")
import asyncio  # noqa: E402

from claude_agent_sdk import ClaudeAgentOptions, query  # noqa: E402

from unstuck.claude import guard  # noqa: E402


@pytest.fixture
def models(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "check.sh").write_text("echo expected 1, got 2 >&2; exit 1\n")
    for number in range(12):
        (tmp_path / f"other{number}.txt").write_text(f"text {number}\n")
    with FakeModels(tmp_path) as models:
        yield models


def run(models, client, session, play):
    options = ClaudeAgentOptions(
        cwd=models.directory, env=environment(models) | {"HOME": models.directory, "PYTHONPATH": ""},
        permission_mode="bypassPermissions", setting_sources=[],
    )
    run_guard = guard(options, client, session)

    async def to_the_end():
        async for _ in query(prompt=f"play:{play}", options=options):
            pass

    asyncio.run(to_the_end())
    return run_guard, models.turns(play)


def test_it_is_corrected_refused_and_stopped(models, client, service, session):
    run_guard, requests = run(models, client, session, "read-loop")
    assert not requests[2].says("[unstuck]") and requests[3].says("[unstuck] Stop reading")
    assert run_guard.stopped >= "ESCALATE" and len(requests) <= 8
    made = outcomes(service, session)
    assert made[:4] == [1, 1, 1, 1] and set(made[4:]) == {3}


def test_a_failing_tool_is_counted(models, client, service, session):
    run_guard, _ = run(models, client, session, "fail-loop")
    assert run_guard.stopped and outcomes(service, session)[:3] == [2, 2, 2]


def test_a_sub_agent_is_stopped_alone(models, client, service, session):
    run_guard, requests = run(models, client, session, "delegate")
    assert run_guard.stopped is None and requests[-1].step >= 2, "the main agent goes on to its end"
    agents = {entry.agent_id for entry in service.get(session).timeline}
    assert len(agents) == 2 and len(models.turns("read-loop")) <= 8


@AWAY
def test_it_goes_on_without_the_service(away, own_service, models, session):
    def start(client, kill):
        models.before = {("reads", step): kill for step in range(12)}
        run(models, client, session, "reads")

    away(own_service, session, start)
