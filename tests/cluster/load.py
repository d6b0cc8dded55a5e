"""Brokers that send events with ids, go on at another replica when one is lost, and resend
what was not answered. At the end every answer is compared with that of one process.

An event's index in its session tells how many were counted before it. If the indexes of a
session's events are not 0, 1, 2 and so on, events were lost or counted twice; if they are not
in the order of the events, two were counted in another order than they were sent.
"""

import collections
import contextlib
import itertools
import queue
import random
import threading
import time
from dataclasses import dataclass, field

import grpc

from peer import DEADLINE_SECS, detection_grpc, detection_pb
from servers import wait_for
from unstuck.v1.event_pb2 import (
    OPERATION_OTHER,
    OPERATION_READ,
    OUTCOME_ERROR,
    OUTCOME_OK,
    ROLE_AGENT,
    ROLE_USER,
    Event,
    ToolCall,
    Turn,
)
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE

# Requests of one broker that are under way.
WINDOW = 4
SESSIONS_PER_BROKER = 6
# After this long without an answer a broker tries another replica. Not a bound: what was
# sent twice is recognised by its ids.
PATIENCE_SECS = 3
NUMBERS = itertools.count()


def call(tool, args, result, outcome=OUTCOME_OK, **rest):
    text = {"error": result} if outcome == OUTCOME_ERROR else {"result": result}
    return {"tool_call": ToolCall(tool=tool, args_json=args, outcome=outcome, **text, **rest)}


def read(path, result):
    return call("read_file", f'{{"path": "{path}"}}', result, operation=OPERATION_READ)


def lookup(key, result):
    return call("lookup_setting", f'{{"name": "{key}"}}', result, operation=OPERATION_OTHER, target=key)


def script():
    """Work, a loop of reads, a person, a test that keeps failing, work, a loop without end."""
    yield from (read(f"src/part{step}.rs", f"part {step}\n" * 20) for step in range(8))
    yield from [read("src/money.rs", "fn round() {}\n" * 40)] * 5
    yield {"turn": Turn(role=ROLE_USER, text="look at the tests instead")}
    for edit in range(4):
        yield call("edit_file", f'{{"path": "src/b.rs", "old": "{edit}"}}', "edited", content_hash=f"b{edit}")
        yield call("run_command", '{"command": "make test"}', "assertion failed: total == 12", OUTCOME_ERROR)
    yield {"turn": Turn(role=ROLE_AGENT, text="the total is wrong because rounding happens twice")}
    yield from (lookup(f"key-{step}", f"value {step}") for step in range(6))
    yield from [lookup("colour", "not decided")] * 22


SCRIPT = list(script())


def event(session_id, step):
    # Rounds are named, because otherwise the time of arrival would decide what is one.
    return Event(session_id=session_id, event_id=f"e{step}", round_id=f"r{step}", **SCRIPT[step])


@dataclass(frozen=True)
class Answer:
    index: int
    action: int
    detector: str
    verdict_id: str
    is_duplicate: bool

    def __eq__(self, other):
        return self.key() == other.key()

    def key(self):
        # What follows a termination repeats it, with or without an index.
        index = None if self.action == ACTION_TERMINATE else self.index
        return index, self.action, self.detector


def answer(result):
    return Answer(
        result.event_index, result.action, result.verdict.detector, result.verdict.verdict_id, result.duplicate
    )


def answers_of_one_process(detection):
    """What a process on its own answers to the script."""
    answers = []
    for step in range(len(SCRIPT)):
        request = detection_pb.RecordEventRequest(event=event("alone", step))
        answers.append(answer(detection.RecordEvent(request, timeout=DEADLINE_SECS).result))
    actions = {one.action for one in answers}
    assert ACTION_TERMINATE in actions and len(actions) >= 4, answers
    return answers


@dataclass
class Report:
    events: int = 0
    resent: int = 0
    reconnects: int = 0
    lost: list = field(default_factory=list)
    doubled: list = field(default_factory=list)
    reordered: list = field(default_factory=list)
    different: list = field(default_factory=list)
    errors: list = field(default_factory=list)

    def check(self):
        found = {name: getattr(self, name) for name in ("lost", "doubled", "reordered", "different", "errors")}
        shown = {name: (len(cases), cases[:5]) for name, cases in found.items()}
        assert not any(found.values()), f"{shown} of {self.events} events, {self.resent} resent"
        assert self.events > 0
        return self


class Broker(threading.Thread):
    """One stream with a few sessions. `targets` are the addresses it may use, its own first."""

    def __init__(self, load, targets, seed):
        super().__init__(daemon=True)
        self.load, self.targets, self.random = load, targets, random.Random(seed)
        self.at = 0
        self.slots = [self.new_session() for _ in range(SESSIONS_PER_BROKER)]
        self.pending = collections.OrderedDict()
        self.sequence = itertools.count(1)
        self.since_move = 0
        self.last_answer = time.monotonic()
        self.channels = []
        self.abandoned = []

    def new_session(self):
        return [f"{self.load.name}-{next(NUMBERS)}", 0]

    def next_request(self):
        """An event of each of some sessions."""
        events = []
        for slot in self.random.sample(range(len(self.slots)), self.random.randint(1, len(self.slots))):
            session_id, step = self.slots[slot]
            events.append((session_id, step))
            self.load.sent[session_id] = step
            self.slots[slot] = [session_id, step + 1] if step + 1 < len(SCRIPT) else self.new_session()
        return next(self.sequence), events

    def run(self):
        try:
            while not (self.load.stopped.is_set() and not self.pending):
                assert time.monotonic() < self.load.deadline, f"broker at {self.targets[self.at]}: no answer any more"
                self.converse()
                if not self.load.stay:
                    self.at = (self.at + 1) % len(self.targets)
                self.load.report.reconnects += 1
        except BaseException as error:
            self.load.report.errors.append(f"{type(error).__name__}: {error}")
        finally:
            for channel in self.channels:
                channel.close()

    def converse(self):
        """Sends and receives until the stream ends, stands still, or the broker moves."""
        channel = grpc.insecure_channel(self.targets[self.at], options=[("grpc.use_local_subchannel_pool", 1)])
        self.channels.append(channel)
        requests, received = queue.SimpleQueue(), queue.SimpleQueue()
        stub = detection_grpc.DetectionServiceStub(channel)
        responses = stub.StreamEvents(iter(requests.get, None))
        threading.Thread(target=self.receive, args=(responses, received), daemon=True).start()
        for sequence, events in self.pending.items():
            requests.put(self.message(sequence, events))
            self.load.report.resent += len(events)
        self.since_move = 0
        while True:
            while len(self.pending) < WINDOW and not (self.load.stopped.is_set() or self.load.held.is_set()):
                sequence, events = self.next_request()
                self.pending[sequence] = events
                requests.put(self.message(sequence, events))
            if not self.pending:
                if self.load.stopped.is_set():
                    break
                # The load is held.
                time.sleep(0.01)
                self.last_answer = time.monotonic()
                continue
            try:
                response = received.get(timeout=self.load.patience_secs)
            except queue.Empty:
                if self.load.stay:
                    continue
                # Frozen, or slow. The stream stays open: what it holds may still be counted by a frozen replica.
                self.abandoned.append((received, dict(self.pending)))
                return
            if isinstance(response, Exception):
                if not self.may_reconnect(response):
                    raise response
                time.sleep(0.02)
                break
            if response.sequence in self.pending:
                now = time.monotonic()
                self.load.longest_pause = max(self.load.longest_pause, now - self.last_answer)
                self.last_answer = now
                self.load.record(self.pending.pop(response.sequence), response.results)
                self.since_move += 1
                if self.load.move_every and self.since_move >= self.load.move_every:
                    break
        requests.put(None)
        channel.close()

    def compare_late_answers(self):
        """What came on streams that the broker had left because they stood still."""
        for received, pending in self.abandoned:
            while not received.empty():
                response = received.get()
                if not isinstance(response, Exception) and response.sequence in pending:
                    for (session_id, step), result in zip(pending[response.sequence], response.results):
                        self.load.compare(session_id, step, result)

    @staticmethod
    def may_reconnect(error):
        if not isinstance(error, grpc.RpcError):
            return False
        # nginx resets the streams of a replica that has died.
        was_reset = error.code() == grpc.StatusCode.INTERNAL and "RST_STREAM" in error.details()
        return was_reset or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    @staticmethod
    def receive(responses, received):
        try:
            for response in responses:
                received.put(response)
            received.put(ConnectionError("the stream ended without a reason"))
        except Exception as error:  # noqa: BLE001: the broker decides
            received.put(error)

    @staticmethod
    def message(sequence, events):
        return detection_pb.StreamEventsRequest(sequence=sequence, events=[event(*one) for one in events])


class Load:
    """Brokers under way. `move_every`: each changes its replica after so many answers.
    `stay`: none goes to another replica, whatever happens."""

    def __init__(self, expected, brokers, move_every=0, name="load", patience_secs=PATIENCE_SECS, stay=False):
        self.expected, self.move_every, self.name, self.stay = expected, move_every, name, stay
        # While it is set, brokers begin nothing new.
        self.held = threading.Event()
        self.patience_secs = patience_secs
        # Of any broker between two answers; reset by its reader.
        self.longest_pause = 0.0
        self.stopped, self.lock = threading.Event(), threading.Lock()
        self.deadline = time.monotonic() + 20 * DEADLINE_SECS
        self.report = Report()
        self.answered = 0
        self.terminates_at = min(step for step, one in enumerate(expected) if one.action == ACTION_TERMINATE)
        self.sent = {}
        self.indexes = {}
        self.unexpected = []
        self.terminations = {}
        self.brokers = [Broker(self, targets, seed) for seed, targets in enumerate(brokers)]

    def record(self, events, results):
        with self.lock:
            assert len(events) == len(results)
            for (session_id, step), result in zip(events, results):
                self.report.events += 1
                self.compare(session_id, step, result)
            self.answered += len(events)

    def compare(self, session_id, step, result):
        where = f"{session_id} event {step}"
        if result.HasField("error"):
            self.report.errors.append(f"{where}: {result.error}")
            return
        given, expected = answer(result), self.expected[step]
        if given.action == ACTION_TERMINATE:
            # A session is terminated once: all its answers have the same verdict.
            first = self.terminations.setdefault(session_id, given.verdict_id)
            if first != given.verdict_id:
                self.report.different.append(f"{where}: terminated twice")
            # An event that is sent again, after one that terminated the session.
            if self.sent.get(session_id, -1) >= self.terminates_at:
                return
        else:
            self.indexes.setdefault(session_id, {})[step] = given.index
        if given != expected:
            self.unexpected.append((session_id, f"{where}: {given}, not {expected}"))

    def judge(self):
        """Says of each session with unexpected answers what has happened to its events."""
        report = self.report
        for session_id in dict(self.unexpected):
            given = self.indexes.get(session_id, {})
            shown = f"{session_id}: the indexes of its events are {given}"
            if len(set(given.values())) < len(given):
                report.lost.append(shown)
            elif max(given.values(), default=-1) >= len(given) == max(given) + 1:
                report.doubled.append(shown)
            elif any(index != step for step, index in given.items()):
                report.reordered.append(shown)
            else:
                report.different += [what for session, what in self.unexpected if session == session_id]
        self.unexpected.clear()

    def wait_for_events(self, more):
        """So many more events are answered."""
        target = self.answered + more
        wait_for(lambda: self.answered >= target or self.report.errors, f"{more} more answers")
        assert not self.report.errors, self.report.errors[:3]

    def live_sessions(self):
        """{session: the step of its next event}, when the brokers have stopped."""
        slots = [slot for broker in self.brokers for slot in broker.slots]
        return {session: step for session, step in slots if 0 < step <= self.terminates_at}

    def stop(self):
        """Waits until everything is answered."""
        self.stopped.set()
        for broker in self.brokers:
            broker.join(4 * DEADLINE_SECS)
            assert not broker.is_alive(), "a broker has not got all its answers"
            broker.compare_late_answers()
        self.judge()
        return self.report

    def continue_on(self, replicas):
        """Sends one event more of every live session, each through the next replica."""
        for replica, (session_id, step) in zip(itertools.cycle(replicas), self.live_sessions().items()):
            request = detection_pb.RecordEventRequest(event=event(session_id, step))
            result = replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result
            self.record([(session_id, step)], [result])
        self.judge()

    def __enter__(self):
        for broker in self.brokers:
            broker.start()
        return self

    def __exit__(self, failure, *_):
        self.stopped.set()
        if failure:
            # What is left is of no interest.
            self.deadline = 0
        for broker in self.brokers:
            broker.join(DEADLINE_SECS)
        with contextlib.suppress(Exception):
            for broker in self.brokers:
                for channel in broker.channels:
                    channel.close()
