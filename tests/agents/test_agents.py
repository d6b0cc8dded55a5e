"""The seven promises to people who run an agent program, each with the real program.

Each run asks the fake model of fake_models.py for its turns. `turns[n]` is the request
for turn n + 1, so it shows what the program told the model after n calls.
"""

import http.server
import json
import socket
import threading

import pytest

from conftest import HOOK_BUDGET_MILLIS
from fake_models import PLAYS, TURNS_MAX
from programs import PROGRAMS

PREFIX = "[unstuck] "
BY_NAME = {program.agent: program for program in PROGRAMS}
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=BY_NAME)


def only(*names):
    return pytest.mark.parametrize("program", [BY_NAME[name] for name in names], ids=names)


def outcome_of(entry):
    """Some programs say that a call failed, but not that it succeeded."""
    return entry.get("outcome", "OUTCOME_OK").removeprefix("OUTCOME_")


def calls_of(session):
    """[(operation, outcome)] of the calls in a timeline."""
    return [
        (entry["operation"].removeprefix("OPERATION_"), outcome_of(entry))
        for entry in session["timeline"]
        if entry["kind"] == "TIMELINE_KIND_TOOL_CALL"
    ]


def reads_of(session):
    """The outcomes of the reads of a.txt, in their order."""
    return [
        outcome_of(entry)
        for entry in session["timeline"]
        if entry["kind"] == "TIMELINE_KIND_TOOL_CALL" and "a.txt" in entry.get("target", "")
    ]


def timeline(machine):
    return machine.objects("session", machine.session()["session_id"])[0]


@every_program
def test_a_healthy_run_has_no_verdict_and_every_call_is_known(machine, program):
    machine.guard()
    seen = {}
    # The last turn is asked for when all calls are over and the session has not ended.
    machine.models.before["mixed", len(PLAYS["mixed"]) - 1] = lambda: seen.update(timeline(machine))
    run = machine.agent("mixed")
    assert run.code == 0, run
    assert len(machine.models.turns("mixed")) == len(PLAYS["mixed"]), run
    *first, one, two = calls_of(seen)
    assert first == [("READ", "OK"), ("EXECUTE", "OK"), (program.edits_by, "OK"), ("EXECUTE", "ERROR")]
    assert [one, two] == [("READ", "OK"), ("READ", "OK")]
    session = seen["session"]
    assert session["labels"]["agent"] == program.agent
    assert session["labels"]["project"] == "work"
    assert session["labels"]["source"] == "hook"
    assert machine.verdicts() == []
    for request in machine.models.requests:
        assert not request.says(PREFIX), "a healthy run must not be told anything"
    hooks = [name for name, value in machine.metrics().items() if name.startswith("unstuck_hooks_total") and value]
    assert hooks and all(f'agent="{program.agent}"' in name for name in hooks), hooks
    assert not [name for name in hooks if 'event="unknown"' in name], "an event that the service does not know"
    # As `init` writes it, and with a service that has seen the agent, all is well.
    machine.init()
    if program.agent == "codex":
        # It runs new hooks only once its user has accepted them, which the tests skip.
        assert "UNTRUSTED" in machine.unstuck("doctor", code=1).stdout
    else:
        machine.unstuck("doctor")


@every_program
def test_a_read_loop_is_corrected_and_then_refused(machine, program):
    machine.guard()
    run = machine.agent(program.read_loop)
    turns = machine.models.turns(program.read_loop)
    late = program.late_reads
    assert not turns[2 + late].says(PREFIX), "two equal reads are no loop"
    assert turns[3 + late].says(PREFIX), f"the third read is corrected in the next request\n{run}"
    assert turns[3 + late].says("a.txt")
    outcomes = reads_of(timeline(machine))
    made = 4 + late
    assert outcomes[:made] == ["OK"] * made, outcomes
    if program.can_refuse:
        assert set(outcomes[made:]) == {"BLOCKED"}, outcomes
    first = machine.verdicts_in_order()[0]
    assert (first["detector"], first["action"]) == ("read_loop", "ACTION_WARN")


@every_program
def test_a_failing_command_is_found_at_the_third_failure(machine, program):
    machine.guard()
    run = machine.agent(program.fail_loop)
    turns = machine.models.turns(program.fail_loop)
    assert not turns[2].says(PREFIX)
    assert turns[3].says(PREFIX), run
    first = machine.verdicts_in_order()[0]
    assert (first["detector"], first["action"]) == ("test_fail_loop", "ACTION_WARN")
    assert first["evidence"]["count"] == 3


@every_program
@pytest.mark.parametrize("loop", ["read_loop", "fail_loop"])
def test_an_unattended_loop_is_stopped(machine, program, loop):
    machine.guard("--unattended")
    play = getattr(program, loop)
    run = machine.agent(play)
    late = program.late_reads if loop == "read_loop" else 0
    assert len(machine.models.turns(play)) <= 7 + late, run


@every_program
def test_without_a_service_the_agent_goes_on(machine, program):
    machine.configure(f"[hooks]\nautostart = false\nbudget_millis = {HOOK_BUDGET_MILLIS}\n")
    machine.init()
    run = machine.agent(program.read_loop)
    assert run.code == 0, run
    assert len(machine.models.turns(program.read_loop)) == TURNS_MAX + 1
    for request in machine.models.requests:
        assert not request.says(PREFIX)


@every_program
def test_without_the_program_the_agent_goes_on(machine, program):
    machine.init()
    # Whoever deletes Unstuck may not have run `init --remove` before.
    own = machine.root / "bin/unstuck"
    assert [path for path, (_, content) in machine.files().items() if bytes(own) in content], "no hook runs it"
    own.unlink()
    run = machine.agent("mixed")
    assert run.code == 0, run
    turns = machine.models.turns("mixed")
    assert len(turns) == len(PLAYS["mixed"]), run
    assert (machine.work / "a.txt").read_text().startswith("hello!"), f"the edit was not made\n{run}"
    assert turns[-1].says("another file"), f"the last read was not made\n{run}"


@every_program
def test_init_twice_is_init_once_and_remove_restores_every_byte(machine, program):
    def files():
        # The service's own state is not configuration.
        return {path: content for path, content in machine.files().items() if not path.startswith(".local/state/")}

    before = files()
    machine.init()
    once = files()
    assert once != before
    machine.init()
    assert files() == once
    machine.init("--remove")
    assert files() == before


@every_program
def test_in_shadow_mode_nothing_changes(machine, program):
    machine.guard("--shadow")
    run = machine.agent(program.read_loop)
    assert run.code == 0, run
    assert len(machine.models.turns(program.read_loop)) == TURNS_MAX + 1
    for request in machine.models.requests:
        assert not request.says(PREFIX)
    assert machine.verdicts(), "the verdicts are recorded all the same"


@only(*(name for name in BY_NAME if name != "cline"))
def test_the_command_that_is_shown_reopens_the_session(machine, program):
    machine.guard()
    machine.agent("hello")
    session = machine.session()["session_id"]
    command, *words = machine.resume_command(session)
    arguments = program.resume(session, "play:hello go on")
    # Without a person it needs more words.
    assert command == program.command and words and set(words) <= set(arguments), words
    again = machine.agent("", arguments)
    assert again.code == 0, again
    last = machine.models.turns("hello")[-1]
    assert last.says("play:hello go on") and last.says("play:hello please"), "it knows what was said before"
    assert machine.session()["session_id"] == session, "it is the same session"


@only("claude-code")
def test_the_first_hook_starts_the_service(machine):
    machine.init()
    machine.agent("mixed")
    machine.wait(lambda: machine.run(machine.root / "bin/unstuck", "sessions").code == 0, "no service was started")
    assert machine.agent("mixed").code == 0
    assert [session["labels"]["agent"] for session in machine.objects("sessions")]


class HungServer:
    """Accepts connections and never answers."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def __exit__(self, *_):
        self.socket.close()


class RefusingServer:
    """Answers every request with one status."""

    def __init__(self, status, body=b"{}"):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


FAULTS = {
    "hung": HungServer,
    "unauthorized": lambda: RefusingServer(401),
    "broken": lambda: RefusingServer(500),
    "not JSON": lambda: RefusingServer(200, b"<html>"),
}


@only("claude-code")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("by", ["command", "http"])
def test_a_faulty_server_does_not_hold_the_agent(machine, fault, by):
    with FAULTS[fault]() as url:
        # The product's own budget: here it is what is tested.
        if by == "command":
            machine.configure(f'[hooks]\nurl = "{url}"\n')
            machine.init()
        else:
            machine.configure("")
            machine.init("--http", url)
        run = machine.agent("mixed")
        assert run.code == 0, run
        assert len(machine.models.turns("mixed")) == len(PLAYS["mixed"])
        for request in machine.models.requests:
            assert not request.says(PREFIX)


@only("claude-code")
def test_a_sub_agent_is_stopped_alone(machine):
    machine.guard("--unattended")
    run = machine.agent("delegate")
    assert run.code == 0, run
    assert 3 < len(machine.models.turns("read-loop")) <= 7, "the sub-agent is stopped"
    # One more turn when it is told how its sub-agent ended.
    assert [request.step for request in machine.models.turns("delegate")] == [0, 1, 2, 3], "the main agent goes on"


@only("claude-code")
def test_a_deferred_call_is_made_after_resuming(machine, program):
    asks = "".join(f'[detect.{name}]\nhard = "ask"\n' for name in ("read_loop", "exact_repeat", "interleaved_repeat"))
    machine.configure(f"[hooks]\nbudget_millis = {HOOK_BUDGET_MILLIS}\n{asks}")
    machine.guard("--unattended")
    run = json.loads(machine.agent("read-loop").stdout)
    assert run["terminal_reason"] == "tool_deferred", run
    made = len(machine.models.turns("read-loop"))
    again = machine.agent("", program.resume(run["session_id"], "play:hello go on"))
    assert again.code == 0, again
    assert len(machine.models.requests) > made


@only("claude-code")
def test_a_terminated_session_refuses_the_next_prompt_until_a_reset(machine, program):
    machine.guard()
    session = json.loads(machine.agent("hello").stdout)["session_id"]
    machine.unstuck("terminate", session, "--reason", "enough", "--yes")
    made = len(machine.models.requests)
    machine.agent("", program.resume(session, "play:hello again"))
    assert len(machine.models.requests) == made, "the prompt reaches no model"
    machine.unstuck("reset", session, "--reason", "go on")
    again = machine.agent("", program.resume(session, "play:hello again"))
    assert again.code == 0, again
    assert len(machine.models.requests) > made


@only("codex")
def test_an_interrupted_session_can_be_resumed(machine, program):
    machine.guard("--unattended")
    run = machine.agent("read-loop")
    assert run.code != 0, run
    made = len(machine.models.requests)
    assert made <= 7
    session = machine.session()["session_id"]
    again = machine.agent("", program.resume(session, "play:hello go on"))
    assert again.code == 0, again
    assert len(machine.models.requests) > made
