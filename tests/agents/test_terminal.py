"""What a person sees who runs a guarded agent in a terminal.

The recording of the README is made here. It is saved in the directory UNSTUCK_SCREENSHOTS;
without it the test leaves no file:

    UNSTUCK_SCREENSHOTS=docs/agents scripts/test agents
"""

import json
import os
import re
import tempfile
from pathlib import Path

import pytest

from conftest import AS_NOBODY, DEADLINE_SECS, new_machine
from programs import PROGRAMS
from terminal import Terminal, picture

CLAUDE_CODE = PROGRAMS[0]
MONEY = """\
/// The amount in cents, as it is printed on an invoice.
pub fn cents(amount: f64) -> i64 {
    (amount * 100.0) as i64
}
"""


def test_a_person_sees_what_happens(tools):
    folder = os.environ.get("UNSTUCK_SCREENSHOTS")
    # The recording shows paths, so it has a plain one.
    root = Path(tempfile.gettempdir(), "demo") if folder else None
    with new_machine(tools, CLAUDE_CODE, root) as machine:
        project = machine.home / "shop"
        machine.models.directory = str(project)
        machine.models.default_play = "invoice"
        # A person must be able to follow the recording.
        machine.models.delay_secs = 0.8 if folder else 0
        machine.write(project / "src/money.rs", MONEY)
        # The questions of a first start are answered.
        machine.write(machine.home / ".claude.json", json.dumps({
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": ["none"], "rejected": []},
            "projects": {str(project): {"hasTrustDialogAccepted": True}},
        }))
        machine.write(machine.home / ".claude/settings.json", json.dumps({"permissions": {"allow": ["Read", "Edit"]}}))
        machine.serve()
        env = machine.env | {"PS1": "$ "}
        with Terminal(["bash", "--norc", "--noprofile"], project, env, **AS_NOBODY) as terminal:
            terminal.wait_for("$", DEADLINE_SECS)
            terminal.type_slowly("unstuck init\r")
            terminal.wait_for("[y/N]", DEADLINE_SECS)
            terminal.wait_for_quiet(1, DEADLINE_SECS)
            terminal.type_slowly("y\r")
            terminal.wait_for("written", DEADLINE_SECS)
            terminal.wait_for_quiet(1, DEADLINE_SECS)
            terminal.type_slowly("clear; claude\r")
            terminal.wait_for("❯", DEADLINE_SECS)
            terminal.wait_for_quiet(1, DEADLINE_SECS)
            terminal.type_slowly("Invoices are a cent off. Fix the rounding in src/money.rs")
            terminal.read(0.5)
            terminal.type("\r")
            terminal.wait_for("[unstuck] ", DEADLINE_SECS)
            terminal.wait_for("Fixed:", DEADLINE_SECS)
            terminal.wait_for_quiet(1, DEADLINE_SECS)
            shown = "\n".join(terminal.lines_shown())
        assert re.search(r"\[unstuck\] \S*money\.rs was read 3 times and has not changed", shown), shown
        # The terminal breaks the longer line.
        refused = r"money\.rs was read 4 times and has not changed:\s+the\s+call\s+was\s+refused"
        assert re.search(refused, " ".join(shown.split())), shown
        assert '{"' not in shown, "no JSON"
        assert ".round()" in (project / "src/money.rs").read_text()
    svg = picture(terminal.frames, "Claude Code in a read loop, corrected and refused by Unstuck")
    assert "[unstuck]" in svg
    if folder:
        Path(folder, "claude-code.svg").write_text(svg)


def test_cline_is_reopened_in_the_terminal_by_the_command_that_is_shown(tools):
    (cline,) = [program for program in PROGRAMS if program.agent == "cline"]
    with new_machine(tools, cline) as machine:
        machine.guard()
        machine.agent("hello")
        session = machine.session()["session_id"]
        command, *words = machine.resume_command(session)
        with Terminal([machine.root / "bin" / command, *words], machine.work, machine.env, **AS_NOBODY) as terminal:
            # What was asked before.
            terminal.wait_for("play:hello please", DEADLINE_SECS)
            terminal.wait_for_quiet(1, DEADLINE_SECS)
            terminal.type("play:hello again")
            terminal.wait_for("play:hello again", DEADLINE_SECS)
            terminal.type("\r")
            machine.wait(lambda: terminal.read(0.2) and machine.models.turns("hello")[1:], "no second turn")
        assert machine.models.turns("hello")[-1].says("play:hello please")
        assert machine.session()["session_id"] == session
