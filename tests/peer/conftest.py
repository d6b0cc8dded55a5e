"""Starts the real binary and calls it as any other program would.

Nothing here shares code with the server: the messages are generated from the .proto
files by Google's compiler, and the calls use Google's gRPC.
"""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = (ROOT / os.environ.get("UNSTUCK_BIN", "target/debug/unstuck")).resolve()
# For every call and every wait. Long enough for a busy machine.
DEADLINE_SECS = 60

sys.path.insert(0, str(ROOT / "proto"))
detection_pb, detection_grpc = grpc.protos_and_services("unstuck/v1/detection_service.proto")
session_pb, session_grpc = grpc.protos_and_services("unstuck/v1/session_service.proto")


@dataclass
class Server:
    grpc: str
    http: str
    channel: grpc.Channel
    detection: object
    sessions: object


@contextlib.contextmanager
def running_server(cwd):
    """A separate server on its own ports, with the built-in configuration. Only the breaker is
    off: it would open, because many sessions are terminated here."""
    assert BINARY.exists(), f"{BINARY} is missing: build it, or say in UNSTUCK_BIN where it is"
    env = {key: value for key, value in os.environ.items() if not key.startswith("UNSTUCK")}
    env |= {"UNSTUCK__SERVER__GRPC": "127.0.0.1:0", "UNSTUCK__SERVER__HTTP": "127.0.0.1:0"}
    env["UNSTUCK__BREAKER__SHARE_MAX"] = "1"
    with open(cwd / "stderr", "w") as stderr:
        process = subprocess.Popen(
            [BINARY, "serve"], cwd=cwd, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=stderr, text=True,
        )
    try:
        address = addresses(process, cwd / "stderr")
        with grpc.insecure_channel(address["gRPC"]) as channel:
            yield Server(
                address["gRPC"], address["HTTP"], channel,
                detection_grpc.DetectionServiceStub(channel),
                session_grpc.SessionServiceStub(channel),
            )
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECS) == 0, (cwd / "stderr").read_text()
    finally:
        process.kill()
        process.wait()


def addresses(process, stderr):
    """The addresses that the server prints. Its output is read to the end, so that it never blocks."""
    lines = queue.SimpleQueue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    found = {}
    while len(found) < 2:
        line = lines.get(timeout=DEADLINE_SECS)
        assert line, f"the server ended before it listened:\n{stderr.read_text()}"
        if match := re.match(r"unstuck: (gRPC|HTTP) on (\S+)$", line):
            found[match[1]] = match[2]
    return found


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def detection(server):
    return server.detection


@pytest.fixture
def sessions(server):
    return server.sessions


@pytest.fixture
def session_id():
    """A session id that no other test uses."""
    return f"peer-{uuid.uuid4()}"


class Stream:
    """A bidirectional stream, written and read alternately. It must end without an error."""

    def __init__(self, rpc):
        self.requests = queue.SimpleQueue()
        self.responses = rpc(iter(self.requests.get, None), timeout=DEADLINE_SECS)

    def __enter__(self):
        return self

    def ask(self, request):
        self.requests.put(request)
        return self.receive()

    def receive(self):
        return next(self.responses)

    def __exit__(self, failure, *_):
        self.requests.put(None)
        if failure:
            self.responses.cancel()
        else:
            assert list(self.responses) == [], "unexpected responses"
