"""Starts the real service and looks at it from outside, with the generated stubs."""

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path

import grpc
import pytest

import unstuck
from unstuck.v1 import session_service_pb2 as session_pb
from unstuck.v1 import session_service_pb2_grpc as session_grpc

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
BINARY = (ROOT / os.environ.get("UNSTUCK_BIN", "target/debug/unstuck")).resolve()
# For every wait of a test. Long enough for a busy machine.
PATIENCE_SECS = 60


class Service:
    """The service on a port of its own, which survives a restart."""

    def __init__(self, cwd, config=""):
        assert BINARY.exists(), f"{BINARY} is missing: build it, or say in UNSTUCK_BIN where it is"
        self.cwd = cwd
        (cwd / "unstuck.toml").write_text(config)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.target = f"127.0.0.1:{free.getsockname()[1]}"
        self.process = None

    def start(self):
        env = {key: value for key, value in os.environ.items() if not key.startswith("UNSTUCK")}
        env |= {"UNSTUCK__SERVER__GRPC": self.target, "UNSTUCK__SERVER__HTTP": "127.0.0.1:0"}
        # So many sessions are terminated here that the breaker would open.
        env["UNSTUCK__BREAKER__SHARE_MAX"] = "1"
        with open(self.cwd / "stderr", "a") as stderr:
            self.process = subprocess.Popen(
                [BINARY, "serve"], cwd=self.cwd, env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=stderr, text=True,
            )
        lines = queue.SimpleQueue()

        def read(stdout):
            for line in stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, args=(self.process.stdout,), daemon=True).start()
        while not re.match(r"unstuck: HTTP on", line := lines.get(timeout=PATIENCE_SECS)):
            assert line, f"the service ended:\n{(self.cwd / 'stderr').read_text()}"

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(PATIENCE_SECS)

    def signal(self, how):
        self.process.send_signal(how)

    @contextlib.contextmanager
    def sessions(self):
        with grpc.insecure_channel(self.target) as channel:
            yield session_grpc.SessionServiceStub(channel)

    def get(self, session):
        with self.sessions() as stub:
            request = session_pb.GetSessionRequest(session_id=session)
            return stub.GetSession(request, timeout=PATIENCE_SECS, wait_for_ready=True)

    def terminate(self, session):
        with self.sessions() as stub:
            request = session_pb.TerminateSessionRequest(session_id=session, reason="enough of it")
            stub.TerminateSession(request, timeout=PATIENCE_SECS)


@contextlib.contextmanager
def running(cwd, config=""):
    service = Service(cwd, config)
    service.start()
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def own_service(tmp_path):
    """A service that the test may stop."""
    with running(tmp_path) as service:
        yield service


@pytest.fixture
def client(service):
    # The deadline is no part of most tests, and the machine may be busy.
    with unstuck.Client(service.target, deadline=PATIENCE_SECS) as client:
        yield client


@pytest.fixture
def session():
    """A session id that no other test uses."""
    return f"python-{uuid.uuid4()}"


def wait_until(condition):
    """Waits until the condition holds, and returns its value."""
    until = time.monotonic() + PATIENCE_SECS
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
    return value
