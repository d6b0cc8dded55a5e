"""The example brokers, which do what the README asks of a broker and nothing else."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from concurrent import futures

import grpc
import pytest
from conftest import BINARY, DEADLINE_SECS, ROOT, detection_pb, session_pb
from unstuck.v1.event_pb2 import OUTCOME_BLOCKED
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE

BROKERS = {
    "python": [sys.executable, ROOT / "examples/broker.py"],
    "typescript": [ROOT / "examples/node_modules/.bin/tsx", ROOT / "examples/broker.ts"],
    "rust": [BINARY.parent / "examples/broker"],
}
# An agent that ignores everything is stopped within this many calls.
CALLS_MAX = 12

every_broker = pytest.mark.parametrize("name", BROKERS)


def run_broker(name, server, cwd, *arguments):
    command = [*BROKERS[name], *arguments]
    assert os.access(command[0], os.X_OK), f"{command[0]} is missing: scripts/test installs and builds it"
    env = os.environ | {"UNSTUCK_SERVER": server}
    return subprocess.run(command, cwd=cwd, env=env, timeout=60, check=True, capture_output=True, text=True)


def assert_terminated(run, service):
    assert re.match(r"terminated (at|before) step \d+: ", run.stdout.splitlines()[-1]), run.stdout + run.stderr
    assert len(service.events()) <= CALLS_MAX, run.stdout + run.stderr


class Proxy:
    """A service in front of the real one. It records what passes and may change or lose an answer.

    Answers are lost by a failure after the real service has seen the request: to a client that is
    the same as a deadline that passes.
    """

    TYPES = {
        "/unstuck.v1.DetectionService/RecordEvent": (detection_pb.RecordEventRequest, detection_pb.RecordEventResponse),
        "/unstuck.v1.DetectionService/CheckCall": (detection_pb.CheckCallRequest, detection_pb.CheckCallResponse),
        "/unstuck.v1.SessionService/OpenSession": (session_pb.OpenSessionRequest, session_pb.OpenSessionResponse),
    }

    def __init__(self, channel, change):
        self.channel, self.change = channel, change
        self.passed = []

    def requests(self, rpc):
        return [request for name, request, _ in self.passed if name == rpc]

    def events(self):
        return [request.event for request in self.requests("RecordEvent")]

    def service(self, details):
        request_type, response_type = self.TYPES[details.method]
        rpc = details.method.rpartition("/")[2]
        forward = self.channel.unary_unary(
            details.method, request_serializer=request_type.SerializeToString, response_deserializer=response_type.FromString)

        def handle(request, context):
            response = forward(request, timeout=DEADLINE_SECS)
            self.passed.append((rpc, request, response))
            if self.change(rpc, len(self.requests(rpc)), response) == "lost":
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return response

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=request_type.FromString, response_serializer=response_type.SerializeToString)


@contextlib.contextmanager
def proxy(server, change):
    """`change(rpc, number, response)` may edit a response, or return "lost". Numbers count from 1 per rpc."""
    # One thread: the requests of a broker pass in their order.
    listener = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    service = Proxy(server.channel, change)
    listener.add_generic_rpc_handlers([service])
    service.address = f"127.0.0.1:{listener.add_insecure_port('127.0.0.1:0')}"
    listener.start()
    try:
        yield service
    finally:
        listener.stop(None).wait(DEADLINE_SECS)


@every_broker
def test_a_broker_corrects_its_agent(server, tmp_path, name):
    output = run_broker(name, f"http://{server.grpc}", tmp_path).stdout.splitlines()
    # Not always the third: on a busy machine the first call may miss its
    # deadline, and the broker continues without an answer.
    assert re.match(r"step \d+: warn +\S", output[-2])
    assert output[-1].startswith("corrected before step ")


@every_broker
def test_a_broker_continues_without_the_service(tmp_path, name):
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        run = run_broker(name, f"127.0.0.1:{nobody_listens.getsockname()[1]}", tmp_path)
    assert run.stdout.splitlines()[-1] == "out of budget after 20 steps"
    assert "continuing without it" in run.stderr


@every_broker
def test_an_agent_that_ignores_everything_is_terminated(server, tmp_path, name):
    with proxy(server, lambda *_: None) as service:
        run = run_broker(name, service.address, tmp_path, "--stubborn")
    assert_terminated(run, service)
    # Calls are made until the BLOCK; the others are refused, and reported as that.
    refused = [event.tool_call.outcome == OUTCOME_BLOCKED for event in service.events()]
    assert refused == [False] * 4 + [True] * 6


@every_broker
@pytest.mark.parametrize("calls", [2, 3])
def test_an_agent_that_goes_round_some_calls_is_terminated(server, tmp_path, name, calls):
    with proxy(server, lambda *_: None) as service:
        run = run_broker(name, service.address, tmp_path, f"--stubborn={calls}")
    assert_terminated(run, service)
    assert len({event.tool_call.args_json for event in service.events()}) == calls


@every_broker
def test_an_agent_whose_calls_all_differ_and_fail_alike_is_handed_over(server, tmp_path, name):
    with proxy(server, lambda *_: None) as service:
        run = run_broker(name, service.address, tmp_path, "--stubborn=errors")
    assert run.stdout.splitlines()[-1].startswith("handed over at step "), run
    assert len(service.events()) <= 12


LOST = {
    # The fourth answer has the BLOCK, the tenth the TERMINATE.
    "the block": lambda rpc, number, _: "lost" if rpc == "RecordEvent" and number == 4 else None,
    "the termination": lambda rpc, _, response: "lost" if rpc == "RecordEvent" and response.result.action == ACTION_TERMINATE else None,
    "all checks": lambda rpc, *_: "lost" if rpc == "CheckCall" else None,
    "all checks, and the block": lambda rpc, number, _: "lost" if rpc == "CheckCall" or rpc == "RecordEvent" and number == 4 else None,
}


@every_broker
@pytest.mark.parametrize("lost", LOST)
def test_a_broker_that_misses_an_answer_learns_the_action_in_force_from_the_next(server, tmp_path, name, lost):
    with proxy(server, LOST[lost]) as service:
        run = run_broker(name, service.address, tmp_path, "--stubborn")
    assert "continuing without it" in run.stderr
    assert_terminated(run, service)
    outcomes = [event.tool_call.outcome for event in service.events()]
    # At most one call is made after the BLOCK whose answer was lost.
    assert OUTCOME_BLOCKED in outcomes[:6]


@every_broker
def test_a_broker_opens_a_session_again_whose_state_is_lost(server, tmp_path, name):
    def change(rpc, number, response):
        if rpc == "RecordEvent" and number == 2:
            response.result.state_lost = True

    with proxy(server, change) as service:
        run_broker(name, service.address, tmp_path)
    opened = service.requests("OpenSession")
    assert len(opened) == 2 and opened[0] == opened[1]
    assert {event.session_id for event in service.events()} == {opened[0].session_id}
