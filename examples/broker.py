"""A broker: the program between an agent and its tools, with Unstuck.

    pip install grpcio grpcio-tools
    UNSTUCK_SERVER=127.0.0.1:50551 python examples/broker.py [--stubborn[=CALLS|=errors]]
"""

import hashlib
import json
import os
import sys
import time
import uuid
from pathlib import Path

import grpc

# The stubs are generated from the .proto files at start. A larger program would
# generate them once with grpc_tools.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "proto"))
detection_pb, detection_grpc = grpc.protos_and_services("unstuck/v1/detection_service.proto")
session_pb, session_grpc = grpc.protos_and_services("unstuck/v1/session_service.proto")
from unstuck.v1.event_pb2 import OUTCOME_BLOCKED, OUTCOME_ERROR, OUTCOME_OK, Event, ToolCall, Usage  # noqa: E402
from unstuck.v1.verdict_pb2 import Action  # noqa: E402

STEPS_MAX = 20
# The longest time that an agent waits for an answer of Unstuck.
DEADLINE_SECS = 0.25
# Arguments that only explain a call, as member.call_key in verdict.proto lists them.
EXPLAINING = set(
    "description explanation justification max_output_chars max_output_length max_output_tokens reason "
    "reasoning thought thoughts timeout timeout_ms timeout_seconds yield_time_ms".split()
)


def next_call(messages, step, stubborn):
    """The example agents: one reads a file again and again until it is corrected. Two never
    listen: one goes round some orders, one tries another command that is not there each time."""
    if stubborn == "errors":
        return "bash", {"command": f"tool{step} --help"}
    if stubborn:
        return "get_order", {"order_id": 5 + (step - 1) % int(stubborn)}
    if any(message["role"] == "system" for message in messages):
        return None
    return "read_file", {"path": "src/main.rs"}


def call_key(tool, args):
    """The key by which `standing.blocked` names a call."""
    known = {name: value for name, value in args.items() if name not in EXPLAINING}
    # RFC 8785 for integers and text; fractions need the package rfc8785.
    canonical = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{tool}\0{canonical}".encode()).hexdigest()[:32]


def known(action):
    """An unknown action is treated as a warning."""
    return action if action in Action.values() else Action.ACTION_WARN


def ask(rpc, request):
    """Fails open: without an answer, for any reason, the agent continues."""
    try:
        return rpc(request, timeout=DEADLINE_SECS)
    except grpc.RpcError as error:
        print(f"unstuck: {error.code().name}: {error.details()}; continuing without it", file=sys.stderr)
        return None


def run(detection, sessions, stubborn):
    session_id = f"toy-{uuid.uuid4()}"
    opening = session_pb.OpenSessionRequest(session_id=session_id, profile="default", labels={"team": "examples"})
    ask(sessions.OpenSession, opening)
    messages = [{"role": "user", "content": "Please do the task."}]
    blocked, missed = set(), False
    for step in range(1, STEPS_MAX + 1):
        call = next_call(messages, step, stubborn)
        if call is None:
            return f"corrected before step {step}: the agent answered"
        tool, args = call
        args_json = json.dumps(args)

        # May the call be made? Without an answer the keys of the last one decide.
        check = ask(detection.CheckCall, detection_pb.CheckCallRequest(
            session_id=session_id, tool=tool, args_json=args_json))
        if check and check.action == Action.ACTION_TERMINATE:
            return f"terminated before step {step}: {check.verdict.reason}"
        # A broker replaces an action that it cannot perform by the next weaker one. This
        # one has no second model and no generation to stop: those become BLOCK.
        refused = known(check.action) >= Action.ACTION_BLOCK if check else call_key(tool, args) in blocked
        failed = not refused and stubborn == "errors"
        result = "refused: this call is part of a loop" if refused else "two lamps, unpaid"
        error = f"bash: tool{step}: command not found" if failed else ""
        messages.append({"role": "tool", "content": error or result})

        # A refused call is sent too, as BLOCKED: an agent that goes on asking is
        # escalated and then terminated.
        recorded = ask(detection.RecordEvent, detection_pb.RecordEventRequest(event=Event(
            session_id=session_id,
            # The id makes it safe to send the event again if the answer was lost.
            event_id=f"call-{step}",
            usage=Usage(input_tokens=900 + 40 * step, output_tokens=25, cost_usd=0.003),
            tool_call=ToolCall(tool=tool, args_json=args_json, result=None if failed else result, error=error,
                               outcome=OUTCOME_BLOCKED if refused else OUTCOME_ERROR if failed else OUTCOME_OK),
        )))
        if recorded is None:
            missed = True
            continue
        answer, verdict = recorded.result, recorded.result.verdict
        blocked = set(answer.standing.blocked)
        # The service restarted and has lost the profile and the labels.
        if answer.state_lost:
            ask(sessions.OpenSession, opening)

        # The result's action, not the verdict's: a shadow verdict has an action that is
        # not to be performed. What a missed answer asked for still holds.
        action = known(answer.action or (answer.standing.action if missed else Action.ACTION_UNSPECIFIED))
        missed = False
        name = Action.Name(action).removeprefix("ACTION_").lower() if action else "refused" if refused else "ok"
        print(f"step {step}: {name:<9} {verdict.pattern or f'{tool} {args_json}'}", flush=True)

        if action == Action.ACTION_TERMINATE:
            return f"terminated at step {step}: {verdict.reason}"
        # ESCALATE of a call that was made: its calls differ, so none can be refused. A person
        # takes over; this broker has none and ends the run.
        if action == Action.ACTION_ESCALATE and not refused:
            return f"handed over at step {step}: {verdict.reason}"
        # It has no checkpoints and no person to ask: those become THROTTLE, without a wait.
        if Action.ACTION_THROTTLE <= action < Action.ACTION_BLOCK:
            time.sleep(verdict.retry_after.ToTimedelta().total_seconds())
        # An ALERT is for the user only; from WARN on the agent gets the correction.
        if action >= Action.ACTION_WARN and verdict.correction:
            messages.append({"role": "system", "content": verdict.correction})
    return f"out of budget after {STEPS_MAX} steps"


if __name__ == "__main__":
    address = os.environ.get("UNSTUCK_SERVER", "127.0.0.1:50551").removeprefix("http://")
    # One channel per process: it carries all sessions.
    with grpc.insecure_channel(address) as channel:
        stubs = detection_grpc.DetectionServiceStub(channel), session_grpc.SessionServiceStub(channel)
        stubborn = [argument.partition("=")[2] or 1 for argument in sys.argv if argument.startswith("--stubborn")]
        print(run(*stubs, stubborn=stubborn[0] if stubborn else None))
