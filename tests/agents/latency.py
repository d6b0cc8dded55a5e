"""What the guard costs a person who runs Claude Code, for each tool call.

    scripts/bench --agents    builds Unstuck and runs this

A run has 12 different reads, so no verdict. What counts is the time from the model's answer
to the program's next request, in which the program makes one call and runs its hooks.
Each way to guard is measured in turn, round by round, and compared with no guard.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from conftest import AS_NOBODY, BINARY, PACKAGES, end_children, new_machine, pytest_configure
from programs import PROGRAMS

# The targets in milliseconds, for an otherwise idle machine: what each way may add to a call
# at the median, and how long `unstuck hook` may run.
ADDED_MILLIS_MAX = {"HTTP, PostToolBatch only": 25, "HTTP, with PreToolUse": 60, "command": 30}
HOOK_MILLIS_MAX = 15
WAYS = {
    "no guard": None,
    "HTTP, PostToolBatch only": ["--http", "--light"],
    "HTTP, with PreToolUse": ["--http"],
    "command": [],
}


def call_millis(machine):
    """The time of each call of one run, without the first, which starts things."""
    del machine.models.requests[:]
    run = machine.agent("reads")
    assert run.code == 0, run
    turns = machine.models.turns("reads")
    assert len(turns) > 10, run
    return [1000 * (after.arrived - before.answered) for before, after in zip(turns[1:], turns[2:])]


def start_server(machine):
    """A team's server on loopback. Returns the address of its HTTP port."""
    env = machine.env | {"UNSTUCK__SERVER__GRPC": "127.0.0.1:0", "UNSTUCK__SERVER__HTTP": "127.0.0.1:0"}
    process = subprocess.Popen(
        [BINARY, "serve"], cwd=machine.root / "tmp", env=env, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, **AS_NOBODY,
    )
    for line in process.stdout:
        if "HTTP on " in line:
            return "http://" + line.split()[-1]
    raise RuntimeError("the server has ended")


def hook_millis(machine, count):
    """The time of `unstuck hook` from its start to its exit, with the local service running."""
    payload = json.dumps({
        "session_id": "latency", "hook_event_name": "PreToolUse", "cwd": str(machine.work),
        "tool_name": "Read", "tool_input": {"file_path": "a.txt"}, "tool_use_id": "toolu_1",
    })
    times = []
    for _ in range(count):
        began = time.monotonic()
        subprocess.run(
            [machine.root / "bin/unstuck", "hook", "claude-code"], input=payload, env=machine.env, cwd=machine.work,
            capture_output=True, text=True, check=True, **AS_NOBODY,
        )
        times.append(1000 * (time.monotonic() - began))
    return times


def verdict(millis, most):
    return f"at most {most} ms: {'reached' if millis <= most else 'NOT reached'}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments = arguments.parse_args()
    pytest_configure()
    tools = Path(tempfile.mkdtemp(prefix="unstuck-tools-"))
    tools.chmod(0o755)
    (tools / "unstuck").symlink_to(BINARY)
    (tools / "node_modules").symlink_to(PACKAGES)
    times = {way: [] for way in WAYS}
    hooks = []
    for _ in range(arguments.rounds):
        for way, options in WAYS.items():
            with new_machine(tools, PROGRAMS[0]) as machine:
                if options is not None:
                    machine.configure("")
                    if "--http" in options:
                        options = [start_server(machine) if option == "--http" else option for option in options]
                        options.insert(0, "--http")
                    machine.init(*options)
                    if "--http" not in options:
                        machine.serve()
                        hooks += hook_millis(machine, 20)
                times[way] += call_millis(machine)
    base = statistics.median(times["no guard"])
    print(f"one call of Claude Code without a guard: median {base:.1f} ms, {os.cpu_count()} cores")
    for way, most in ADDED_MILLIS_MAX.items():
        added = statistics.median(times[way]) - base
        print(f"added by {way:26} median {added:6.1f} ms, {verdict(added, most)}")
    median, slow = statistics.median(hooks), statistics.quantiles(hooks, n=10)[-1]
    print(f"unstuck hook, start to exit         median {median:6.1f} ms, {verdict(median, HOOK_MILLIS_MAX)}; 90th percentile {slow:.1f} ms")



if __name__ == "__main__":
    try:
        main()
    finally:
        end_children()
