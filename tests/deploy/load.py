"""A small fleet: agents that work, and agents that loop in different ways."""

import itertools
import json
import random
import threading
import urllib.request

from conftest import peer
from unstuck.v1.event_pb2 import (
    MARKER_KIND_COMPACTION,
    OPERATION_OTHER,
    OUTCOME_ERROR,
    OUTCOME_OK,
    ROLE_AGENT,
    Delta,
    Event,
    Marker,
    ToolCall,
    Turn,
    Usage,
)

SERIAL = itertools.count()


def call(tool, args, result, outcome=OUTCOME_OK, **rest):
    text = {"error": result} if outcome == OUTCOME_ERROR else {"result": result}
    return {"tool_call": ToolCall(tool=tool, args_json=args, outcome=outcome, **text, **rest)}


def lookup(name, result):
    return call("lookup_setting", f'{{"name": "{name}"}}', result, operation=OPERATION_OTHER, target=name)


def agent_turn(text):
    return {"turn": Turn(role=ROLE_AGENT, text=text)}


def works():
    for step in range(24):
        yield lookup(f"key-{step}", f"value {step}")
    yield {"marker": Marker(kind=MARKER_KIND_COMPACTION, context_tokens=9_000)}


def reads_the_same():
    for _ in range(8):
        yield call("read_file", '{"path": "src/money.rs"}', "fn round() {}")


def repeats_until_terminated():
    for _ in range(22):
        yield lookup("colour", "not decided")


def says_the_same():
    for word in ("colour", "font", "shape", "border", "margin", "shadow"):
        yield agent_turn(f"first I will check whether the {word} setting of this team can really be found")


def meets_an_outage():
    for attempt in range(6):
        yield call("fetch", f'{{"url": "https://api.example/{attempt}"}}', "503 Service Unavailable", OUTCOME_ERROR)


def cannot_patch():
    for attempt in range(9):
        yield call("edit_file", f'{{"path": "src/a.rs", "old": "{attempt}"}}', "no match found", OUTCOME_ERROR)


def fails_its_tests():
    for edit in range(5):
        yield call("edit_file", f'{{"path": "src/b.rs", "old": "{edit}"}}', "edited", content_hash=f"b{edit}")
        yield call("run_command", '{"command": "make test"}', "assertion failed: total == 12", OUTCOME_ERROR)


STUCK = [reads_the_same, repeats_until_terminated, says_the_same, meets_an_outage, cannot_patch, fails_its_tests]


class Fleet:
    """Steps every agent by one event; a finished agent is replaced by a new one."""

    def __init__(self, server, agents):
        self.server = server
        self.random = random.Random(1)
        self.agents = [None] * agents
        self.stuck_share = 0.3

    def step(self):
        """Sends one event of each agent in a batch, one invalid event, some streamed text, and a hook."""
        events = [self.event(index) for index in range(len(self.agents))]
        requests = [peer.detection_pb.StreamEventsRequest(sequence=1, events=events + [Event()])]
        responses = list(self.server.detection.StreamEvents(iter(requests), timeout=peer.DEADLINE_SECS))
        self.rate(result.verdict for response in responses for result in response.results)
        delta = Delta(session_id="writer", text="the quick brown fox jumps over the lazy dog. ")
        deltas = [peer.detection_pb.StreamDeltasRequest(deltas=[delta])]
        list(self.server.detection.StreamDeltas(iter(deltas), timeout=peer.DEADLINE_SECS))
        self.send_hook()

    def send_hook(self):
        """A prompt in Claude Code, as its hook reports it."""
        payload = {"session_id": "claude", "hook_event_name": "UserPromptSubmit", "prompt": "go on", "cwd": "/home/dev/demo"}
        request = urllib.request.Request(
            f"http://{self.server.http}/v1/hooks/claude-code",
            data=json.dumps(payload).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=peer.DEADLINE_SECS) as response:
            assert response.status == 200

    def rate(self, verdicts):
        """Says of one verdict in a step that it is right."""
        verdict = next((verdict for verdict in verdicts if verdict.verdict_id), None)
        if verdict is not None:
            request = peer.session_pb.RateVerdictRequest(verdict_id=verdict.verdict_id, rating=1)
            self.server.sessions.RateVerdict(request, timeout=peer.DEADLINE_SECS)

    def event(self, index):
        while True:
            session_id, script = self.agents[index] or self.begin(index)
            body = next(script, None)
            if body is not None:
                usage = Usage(
                    input_tokens=self.random.randint(800, 4_000),
                    output_tokens=200,
                    cost_usd=self.random.uniform(0.004, 0.02),
                )
                return Event(session_id=session_id, usage=usage, **body)
            self.end(session_id)
            self.agents[index] = None

    def begin(self, index):
        script = self.random.choice(STUCK) if self.random.random() < self.stuck_share else works
        self.agents[index] = (f"{script.__name__}-{next(SERIAL)}", script())
        return self.agents[index]

    def end(self, session_id):
        request = peer.session_pb.EndSessionRequest(session_id=session_id)
        self.server.sessions.EndSession(request, timeout=peer.DEADLINE_SECS)

    def run(self, stop: threading.Event, pause_secs):
        while not stop.wait(pause_secs):
            self.step()
