"""What the tests of the adapters share: tools, and a run in whose middle the service is killed."""

import signal

import pytest
from conftest import PATIENCE_SECS, wait_until

import unstuck

CORRECTION = "[unstuck] Stop reading"
# Outcomes of a run whose tool succeeds (1) until it is refused (3), and of one whose tool fails (2).
REPEATED_RUN = [1, 1, 1, 1, 3, 3, 3]
FAILING_RUN = [2, 2, 2, 2]


def read_file(path: str) -> str:
    """Reads a file."""
    return "fn main() {}"


def failing_tool(path: str) -> str:
    """Fails."""
    raise OSError("no such device")


def outcomes(service, session):
    """The outcomes of a session's calls, as the service has them."""
    return [entry.outcome for entry in service.get(session).timeline]


def run_with_kill(service, session, run):
    """Kills the service in the third call. The run must go on, and nothing may count twice."""
    calls = []
    before = 0

    def kill():
        nonlocal before
        calls.append(1)
        if len(calls) == 3:
            before = client.stats.answered
            service.stop(signal.SIGKILL)
        # What a call returns is new each time, so that no run is stopped.
        return f" {len(calls)}"

    with unstuck.Client(service.target, deadline=PATIENCE_SECS) as client:
        try:
            run(client, kill)
        except Exception as error:
            # The model's script has come to its end, or a limit of the framework.
            assert not isinstance(error, unstuck.Stopped), error
        assert len(calls) >= 10, "without the service every call is made"
        recorded = client.stats.recorded
        assert recorded == len(calls)
        service.start()
        wait_until(lambda: client.stats.pending == 0)
        assert client.stats.dropped == 0 and client.stats.answered == recorded
    # What a killed process had not saved is gone; all that came later is there, once.
    assert recorded - before <= service.get(session).session.events <= recorded


def run_with_hang(service, session, run):
    """Stops the service in the third call, without ending it. Only three calls wait, and nothing is lost."""
    calls = []

    def hang():
        calls.append(1)
        if len(calls) == 3:
            service.signal(signal.SIGSTOP)
            client._deadline = 0.1
        return f" {len(calls)}"

    with unstuck.Client(service.target, deadline=PATIENCE_SECS) as client:
        try:
            run(client, hang)
        except Exception as error:
            assert not isinstance(error, unstuck.Stopped), error
        assert len(calls) >= 10 and client._missed_in_a_row == 3
        service.signal(signal.SIGCONT)
        wait_until(lambda: client.stats.pending == 0)
        assert service.get(session).session.events == client.stats.recorded == len(calls)


AWAY = pytest.mark.parametrize("away", [run_with_kill, run_with_hang])
