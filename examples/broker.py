"""A broker: the program between an agent and its tools, with Unstuck.

    pip install grpcio grpcio-tools
    UNSTUCK_SERVER=127.0.0.1:50551 python examples/broker.py
"""

import os
import sys
import time
import uuid
from pathlib import Path

import grpc

# The stubs are generated from the .proto files at start. A larger program would
# generate them once with grpc_tools.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "proto"))
detection, services = grpc.protos_and_services("unstuck/v1/detection_service.proto")
from unstuck.v1.event_pb2 import OUTCOME_BLOCKED, OUTCOME_OK, Event, ToolCall, Usage  # noqa: E402
from unstuck.v1.verdict_pb2 import Action  # noqa: E402

STEPS_MAX = 12
# The longest time that an agent waits for Unstuck.
DEADLINE_SECS = 0.25


def next_call(messages):
    """The example agent: it reads one file again and again until it is corrected."""
    if any(message["role"] == "system" for message in messages):
        return None
    return "read_file", "src/main.rs"


def record(stub, event):
    """Fails open: without an answer, for any reason, the agent continues."""
    try:
        return stub.RecordEvent(detection.RecordEventRequest(event=event), timeout=DEADLINE_SECS).result
    except grpc.RpcError as error:
        print(f"unstuck: {error.code().name}: {error.details()}; continuing without it", file=sys.stderr)
        return detection.EventResult()


def run(stub):
    session_id = f"toy-{uuid.uuid4()}"
    messages = [{"role": "user", "content": "Why does src/main.rs not compile?"}]
    blocked = set()
    for step in range(1, STEPS_MAX + 1):
        call = next_call(messages)
        if call is None:
            return f"corrected before step {step}: the agent answered"
        tool, target = call
        # A refused call is still sent, as BLOCKED: detectors skip it, and the
        # record is complete.
        refused = call in blocked
        result = "refused: this call is part of a loop" if refused else 'fn main() { println!("hi") }'
        messages.append({"role": "tool", "content": result})
        answer = record(stub, Event(
            session_id=session_id,
            # The id makes it safe to send the event again if the answer was
            # lost.
            event_id=f"call-{step}",
            usage=Usage(input_tokens=900 + 40 * step, output_tokens=25, cost_usd=0.003),
            # The target is optional: by default it is taken from the
            # arguments. If sent, a verdict's members have it unchanged.
            tool_call=ToolCall(tool=tool, target=target, args_json='{"path": "src/main.rs"}', result=result,
                               outcome=OUTCOME_BLOCKED if refused else OUTCOME_OK),
        ))

        # The result's action, not the verdict's: a shadow verdict has an
        # action that is not to be performed. An unknown action is treated as a
        # warning.
        action, verdict = answer.action, answer.verdict
        if action not in Action.values():
            action = Action.ACTION_WARN
        name = Action.Name(action).removeprefix("ACTION_").lower() if action else "refused" if refused else "ok"
        print(f"step {step}: {name:<9} {verdict.pattern if action else f'{tool} {target}'}", flush=True)

        if action == Action.ACTION_TERMINATE:
            return f"terminated at step {step}: {verdict.reason}"
        # A broker replaces an action that it cannot perform by the next weaker
        # one. This one has no second model and no generation to stop: those
        # become BLOCK.
        if action >= Action.ACTION_BLOCK:
            blocked.update((member.tool, member.target) for member in verdict.members)
        # It has no checkpoints and no person to ask: those become THROTTLE,
        # without a wait.
        elif action >= Action.ACTION_THROTTLE:
            time.sleep(verdict.retry_after.ToTimedelta().total_seconds())
        # An ALERT is for the user only; from WARN on the agent gets the
        # correction.
        if action >= Action.ACTION_WARN and verdict.correction:
            messages.append({"role": "system", "content": verdict.correction})
    return f"out of budget after {STEPS_MAX} steps"


if __name__ == "__main__":
    address = os.environ.get("UNSTUCK_SERVER", "127.0.0.1:50551").removeprefix("http://")
    # One channel per process: it carries all sessions.
    with grpc.insecure_channel(address) as channel:
        print(run(services.DetectionServiceStub(channel)))
