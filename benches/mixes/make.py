"""Makes healthy.ndjson, looping.ndjson and turns.ndjson from recorded sessions of real agents.

    python3 make.py TRACES UNSTUCK

TRACES is a folder with intercode.ndjson, tau_bench.ndjson and who_when.ndjson, as
`unstuck replay` reads them; UNSTUCK is the program, which says what is a loop.

Tool calls are taken as they were made, with arguments of 24 to 240 bytes. Of most
results the recordings have a hash or a few bytes; they are filled up to 200 bytes
with what was said in the same data set, the same text for the same result, so that
what was equal stays equal and what was not does not. Turns are agents' own words, as
they were written.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

RESULT_BYTES = 200
ARGS_BYTES = range(24, 241)
CALLS = 600
# Calls until the next user message in a session without loops: more than the
# longest window.
CALLS_PER_TASK = 40
# A loop, and what led to it.
LOOPING_CALLS_MIN = 6
TURN_BYTES = range(200, 2001)
TURNS = 150


def clipped(text, size):
    return text.encode()[:size].decode(errors="ignore")


class Filler:
    """Text for results, the same for the same result."""

    def __init__(self, texts):
        self.text = " ".join(texts)
        self.at = 0
        self.given = {}

    def fill(self, key, result):
        if key not in self.given:
            piece = clipped(self.text[self.at :], RESULT_BYTES)
            self.at = (self.at + len(piece)) % (len(self.text) - RESULT_BYTES)
            self.given[key] = piece
        return clipped(result + self.given[key], RESULT_BYTES)


def sessions(file):
    found = defaultdict(list)
    for line in file.read_text().splitlines():
        event = json.loads(line)
        found[event["session_id"]].append(event)
    return found


def calls(file):
    """The tool calls of each session that are of an ordinary size."""
    recorded = sessions(file)
    turns = (event["turn"]["text"] for events in recorded.values() for event in events if "turn" in event)
    filler = Filler(turns)
    for name, events in recorded.items():
        made = []
        for event in events:
            call = event.get("tool_call")
            if call is None or "args" not in call:
                continue
            args = json.dumps(call["args"], separators=(",", ":"), ensure_ascii=False)
            if len(args.encode()) not in ARGS_BYTES:
                continue
            seen = call.pop("result", ""), call.pop("result_hash", ""), call.get("error", "")
            call.pop("args")
            call["args_json"] = args
            call["result"] = filler.fill((call["tool"], *seen), seen[0])
            if "error" in call:
                call["error"] = clipped(call["error"], RESULT_BYTES)
            made.append({"session_id": name, "tool_call": call})
        yield name, made


def agent_turns(file):
    for events in sessions(file).values():
        for event in events:
            turn = event.get("turn", {})
            if turn.get("role") == "ROLE_AGENT" and len(turn["text"].encode()) in TURN_BYTES:
                yield {"turn": {"role": "ROLE_AGENT", "text": turn["text"]}}


def verdicts(unstuck, events):
    """How many verdicts these events get, and whether one of them ends the session."""
    with tempfile.NamedTemporaryFile("w", suffix=".ndjson") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
        file.flush()
        command = [unstuck, "replay", "--output", "json", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    actions = [json.loads(line).get("action", "") for line in printed.splitlines() if '"verdict_id"' in line]
    return len(actions), "ACTION_TERMINATE" in actions


def write(path, events):
    with path.open("w") as file:
        for n, event in enumerate(events):
            file.write(json.dumps(event | {"session_id": path.stem, "event_id": f"{n:05}"}, ensure_ascii=False) + "\n")


def user(text):
    return {"turn": {"role": "ROLE_USER", "text": text}}


def main():
    traces, unstuck = Path(sys.argv[1]), sys.argv[2]
    here = Path(__file__).parent
    healthy, looping = [], []
    for source in ("intercode", "tau_bench", "who_when"):
        for name, events in calls(traces / f"{source}.ndjson"):
            if len(events) < 3:
                continue
            count, _ = verdicts(unstuck, events)
            if count and len(events) >= LOOPING_CALLS_MIN:
                looping.append(events)
            elif not count:
                healthy.append(events)
    turns = list(agent_turns(traces / "who_when.ndjson"))
    turns = turns[:: len(turns) // TURNS][:TURNS]
    alone = [turn | {"session_id": str(n)} for n, turn in enumerate(turns)]
    if verdicts(unstuck, alone)[0]:
        sys.exit("a turn repeats itself: choose others")
    write(here / "turns.ndjson", turns)
    print(len(healthy), sum(map(len, healthy)), "healthy;", len(looping), sum(map(len, looping)), "looping", file=sys.stderr)
    write(here / "healthy.ndjson", mixed(unstuck, healthy, CALLS_PER_TASK, lambda count: count == 0))
    write(here / "looping.ndjson", mixed(unstuck, looping, 1, lambda count: True))


def mixed(unstuck, groups, calls_a_task, wanted):
    """One long session of many: a user says what is next, the agent does it."""
    taken, since_user = [], calls_a_task
    for events in groups:
        task = [user(f"Next: {events[0]['session_id']}.")] if since_user >= calls_a_task else []
        with_these = taken + task + events
        count, ended = verdicts(unstuck, [event | {"session_id": "mix"} for event in with_these])
        if wanted(count) and not ended:
            taken = with_these
            since_user = len(events) if task else since_user + len(events)
        if len(taken) >= CALLS:
            break
    return taken


if __name__ == "__main__":
    main()
