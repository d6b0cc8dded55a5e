"""A broker: the program between an agent and its tools, with Unstuck beside it.

    pip install grpcio grpcio-tools
    UNSTUCK_SERVER=127.0.0.1:50551 python examples/broker.py
"""

import os
import sys
import time
import uuid
from pathlib import Path

import grpc

# Stubs made from the .proto files when the program starts: nothing generated to
# keep up to date. A larger program would generate them once with grpc_tools.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "proto"))
detection, services = grpc.protos_and_services("unstuck/v1/detection_service.proto")
from unstuck.v1.event_pb2 import OUTCOME_BLOCKED, OUTCOME_OK, Event, ToolCall, Usage  # noqa: E402
from unstuck.v1.verdict_pb2 import Action  # noqa: E402

STEPS_MAX = 12
# Unstuck is a seat belt, not the engine: an agent never waits longer for it.
DEADLINE_SECS = 0.25


def next_call(messages):
    """The toy agent: it reads one file for ever, until it is told that it is stuck."""
    if any(message["role"] == "system" for message in messages):
        return None
    return "read_file", "src/main.rs"


def record(stub, event):
    """Fails open: without an answer, for whatever reason, the agent goes on as if all were well."""
    try:
        return stub.RecordEvent(detection.RecordEventRequest(event=event), timeout=DEADLINE_SECS).result
    except grpc.RpcError as error:
        print(f"unstuck: {error.code().name}: {error.details()}; going on without it", file=sys.stderr)
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
        # A refused call is still reported, as BLOCKED: it counts for no loop,
        # and the record stays whole.
        refused = call in blocked
        result = "refused: this call is part of a loop" if refused else 'fn main() { println!("hi") }'
        messages.append({"role": "tool", "content": result})
        answer = record(stub, Event(
            session_id=session_id,
            # An id makes it safe to send the event again when an answer was lost.
            event_id=f"call-{step}",
            usage=Usage(input_tokens=900 + 40 * step, output_tokens=25, cost_usd=0.003),
            # The target could be left out and is then found in the arguments; sent,
            # it comes back in a verdict's members as this program spells it.
            tool_call=ToolCall(tool=tool, target=target, args_json='{"path": "src/main.rs"}', result=result,
                               outcome=OUTCOME_BLOCKED if refused else OUTCOME_OK),
        ))

        # The result's action, not the verdict's: a shadow verdict has one, but
        # is not to be acted on. An action newer than this program is a warning.
        action, verdict = answer.action, answer.verdict
        if action not in Action.values():
            action = Action.ACTION_WARN
        name = Action.Name(action).removeprefix("ACTION_").lower() if action else "refused" if refused else "ok"
        print(f"step {step}: {name:<9} {verdict.pattern if action else f'{tool} {target}'}", flush=True)

        if action == Action.ACTION_TERMINATE:
            return f"terminated at step {step}: {verdict.reason}"
        # What a broker cannot do, it does as the next weaker action. This one
        # has no second model and no generation to stop: those become BLOCK.
        if action >= Action.ACTION_BLOCK:
            blocked.update((member.tool, member.target) for member in verdict.members)
        # Nor checkpoints or people to ask: those become THROTTLE, with no time
        # to wait.
        elif action >= Action.ACTION_THROTTLE:
            time.sleep(verdict.retry_after.ToTimedelta().total_seconds())
        # An ALERT is for the user only; from WARN on the agent is told.
        if action >= Action.ACTION_WARN and verdict.correction:
            messages.append({"role": "system", "content": verdict.correction})
    return f"out of budget after {STEPS_MAX} steps"


if __name__ == "__main__":
    address = os.environ.get("UNSTUCK_SERVER", "127.0.0.1:50551").removeprefix("http://")
    # One channel a process: it carries all sessions.
    with grpc.insecure_channel(address) as channel:
        print(run(services.DetectionServiceStub(channel)))
