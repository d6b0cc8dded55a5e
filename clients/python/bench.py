"""What the guard adds to a call of a tool, beside a bare gRPC call of the same library."""

import asyncio
import itertools
import pathlib
import statistics
import tempfile
import time
import uuid

import grpc
from conftest import running

import unstuck
from unstuck.v1 import detection_service_pb2 as detection_pb
from unstuck.v1 import detection_service_pb2_grpc as detection_grpc
from unstuck.v1 import event_pb2 as event_pb

ROUNDS, CALLS, EVENTS = 15, 400, 50_000
RATIO_MAX = 1.3


def micros(call):
    """The median time of a call in this round."""
    times = []
    for number in range(CALLS):
        began = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def in_batches(client):
    """Events a second, of coroutines that wait for their answers together."""
    numbers = itertools.count()

    async def agent(session):
        while (number := next(numbers)) < EVENTS:
            await client.arecord(session, "step", {"n": number}, f"result {number}")

    began = time.perf_counter()
    await asyncio.gather(*(agent(f"batch-{index}") for index in range(1_000)))
    assert client.stats.answered >= EVENTS and not client.stats.dropped
    return EVENTS / (time.perf_counter() - began)


def main():
    with tempfile.TemporaryDirectory() as folder, running(pathlib.Path(folder)) as service:
        with unstuck.Client(service.target, deadline=10) as client, grpc.insecure_channel(service.target) as channel:
            stub = detection_grpc.DetectionServiceStub(channel)

            @unstuck.guarded(client=client, session="guarded")
            def step(n):
                return f"result {n}"

            def bare(n):
                call = event_pb.ToolCall(tool="step", args_json=f'{{"n": {n}}}', outcome=event_pb.OUTCOME_OK, result=f"result {n}")
                event = event_pb.Event(session_id="bare", event_id=uuid.uuid4().hex, tool_call=call)
                stub.RecordEvent(detection_pb.RecordEventRequest(event=event), timeout=10)

            # One after the other in each round, so that both meet the same machine.
            rounds = [(micros(step), micros(bare)) for _ in range(ROUNDS)]
            guarded_us, bare_us = (statistics.median(times) for times in zip(*rounds))
            ratio = statistics.median(guarded / bare for guarded, bare in rounds)
            rate = asyncio.run(in_batches(client))
    told = "reached" if ratio <= RATIO_MAX else "not reached"
    print(
        f"Python: a guarded call {guarded_us:.0f} µs, a bare gRPC call {bare_us:.0f} µs, ratio {ratio:.2f} "
        f"(at most {RATIO_MAX}: {told}); {rate:,.0f} events a second in batches"
    )


main()
