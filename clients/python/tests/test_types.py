"""What a type checker sees of the package."""

import re

import pytest
from conftest import PACKAGE

api = pytest.importorskip("mypy.api")

CODE = '''
import unstuck
from unstuck import Client, Guard, Usage, guarded

client = Client()

@guarded
def plain(path: str) -> int: return 1

@guarded(client=client, correct=False)
async def later(path: str, *, depth: int = 1) -> bytes: return b""

reveal_type(plain)
reveal_type(later)
reveal_type(client.record("s", "tool", {"a": 1}, "result", usage=Usage(1)))
with client.session("s") as opened:
    reveal_type(opened)
    opened.record("tool", error=OSError(), call_id="1", round="2", usage=Usage(1))
reveal_type(Guard(client).stopped)
plain(1)
opened.record("tool", cal_id="1")
client.record("s", "tool", usage=5)
'''


def test_the_signatures_are_those_of_what_is_decorated_and_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(PACKAGE / "src"))
    (tmp_path / "code.py").write_text(CODE)
    command = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "code.py")]
    output, errors, _ = api.run(command)
    assert not errors
    found = re.findall(r'Revealed type is "(.*)"', output)
    assert [re.sub(r"builtins\.|unstuck\._\w+\.", "", one) for one in found] == [
        "def (path: str) -> int",
        "def (path: str, *, depth: int =) -> typing.Coroutine[Any, Any, bytes]",
        "Verdict | None", "Session", "Verdict | None",
    ], output
    mistakes = re.findall(r"code.py:(\d+): error: (.*)  \[", output)
    lines = CODE.splitlines()
    assert [lines[int(number) - 1] for number, _ in mistakes] == lines[-3:], output
