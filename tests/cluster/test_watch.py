"""Watching verdicts of all replicas, on any of them."""

import threading

import grpc
import pytest

from load import event
from peer import DEADLINE_SECS, detection_pb, session_grpc, session_pb
from servers import wait_for


class Watcher(threading.Thread):
    """Collects what a replica reports, from a verdict on, until its stream ends."""

    def __init__(self, replica, after=""):
        super().__init__(daemon=True)
        request = session_pb.WatchVerdictsRequest(after_verdict_id=after)
        self.responses = replica.sessions.WatchVerdicts(request)
        self.ids, self.code = [], None
        # The headers come when the service has subscribed.
        self.responses.initial_metadata()
        self.start()

    def run(self):
        try:
            for response in self.responses:
                self.ids.append(response.verdict.verdict_id)
        except grpc.RpcError as error:
            self.code = error.code()

    def cancel(self):
        self.responses.cancel()
        self.join()
        return self.ids


def record(replica, session_id, step):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result


def loop(replica, session_id):
    """The ids of the verdicts that a looping session gets."""
    results = [record(replica, session_id, step) for step in range(14)]
    ids = {result.verdict.verdict_id for result in results if result.verdict.verdict_id}
    assert ids
    return ids


def test_a_watcher_sees_the_verdicts_of_all_replicas_once(cluster):
    watchers = [Watcher(replica) for replica in cluster]
    given = set()
    for number in range(12):
        given |= loop(cluster[number % 3], f"s{number}")
        given.add(cluster[(number + 1) % 3].terminate_session(f"s{number}").verdict_id)
    for watcher in watchers:
        wait_for(lambda: given <= set(watcher.ids), "all verdicts")
    orders = [watcher.cancel() for watcher in watchers]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == sorted(given)


def test_a_watch_on_a_killed_replica_goes_on_at_another(cluster):
    """No gap and no repeat, wherever the watch was cut."""
    a, b, c = cluster
    watcher = Watcher(a)
    given = set()
    for number in range(10):
        given |= loop((b, c)[number % 2], f"before-{number}")
    wait_for(lambda: len(watcher.ids) >= len(given) // 2, "some verdicts")
    a.kill()
    watcher.join(DEADLINE_SECS)
    assert watcher.code == grpc.StatusCode.UNAVAILABLE
    for number in range(10):
        given |= loop((b, c)[number % 2], f"meanwhile-{number}")
    resumed = Watcher(b, watcher.ids[-1])
    for number in range(10):
        given |= loop((b, c)[number % 2], f"after-{number}")
    wait_for(lambda: given <= {*watcher.ids, *resumed.ids}, "all verdicts")
    seen = watcher.ids + resumed.cancel()
    assert sorted(seen) == sorted(given)


@pytest.mark.parametrize("at", [0, 7, -1])
def test_a_watch_resumes_at_any_verdict_on_any_replica(cluster, at):
    a, b, c = cluster
    watcher = Watcher(a)
    given = set()
    for number in range(9):
        given |= loop(cluster[number % 3], f"s{number}")
    wait_for(lambda: given <= set(watcher.ids), "all verdicts")
    order = watcher.cancel()
    rest = order[at:][1:]
    for replica in cluster:
        resumed = Watcher(replica, order[at])
        wait_for(lambda: len(resumed.ids) >= len(rest), "the rest")
        last = c.terminate_session(f"end-{replica.name}").verdict_id
        wait_for(lambda: last in resumed.ids, "what happens now")
        assert resumed.cancel() == [*rest, last]
        rest.append(last)
