"""Replicas of different versions beside each other."""

import pytest

from load import SCRIPT, answer, event
from peer import DEADLINE_SECS, detection_pb
from replicas import Cluster
from servers import wait_for

# Read by builds with debug assertions only.
TOMORROW = {"UNSTUCK_TEST_STATE_VERSION": "250"}


def record(replica, session_id, step):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result


def test_a_state_of_another_version_keeps_counts_and_ids(tmp_path, redis):
    """The window begins again: a loop may be found later. Nothing is counted twice or lost."""
    with Cluster(tmp_path, redis.url, patient=True, per_replica={"c": TOMORROW}) as cluster:
        a, _, c = cluster
        for run in range(5):
            session_id = f"s{run}"
            for step in range(12):
                assert record((a, c)[step // 3 % 2], session_id, step).event_index == step
            again = record(c, session_id, 2)
            assert again.duplicate and again.event_index == 2
            c.terminate_session(session_id)
            assert record(a, session_id, 12).verdict.detector == "operator"


def test_a_loop_is_found_later_after_a_state_of_another_version(tmp_path, redis, expected):
    """The first two of three equal reads were in the window of c, which a cannot read."""
    with Cluster(tmp_path, redis.url, patient=True, per_replica={"c": TOMORROW}) as cluster:
        a, b, c = cluster
        warned_at = next(step for step, one in enumerate(expected) if one.action)
        for step in range(warned_at):
            record(c, "of-c", step)
            record(b, "of-b", step)
        seen_by_c = record(a, "of-c", warned_at)
        seen_by_b = record(a, "of-b", warned_at)
        assert (seen_by_c.event_index, seen_by_c.action) == (warned_at, 0)
        assert answer(seen_by_b) == expected[warned_at]


def test_a_rolling_upgrade_to_another_state_version(tmp_path, redis, expected):
    """One replica after another; sessions begin before it and end after it."""
    with Cluster(tmp_path, redis.url, patient=True) as cluster:
        sessions = [f"s{number}" for number in range(6)]
        step = 0

        def go_on(steps):
            nonlocal step
            for _ in range(steps):
                for number, session_id in enumerate(sessions):
                    result = record(cluster[(number + step) % 3], session_id, step)
                    assert result.event_index == step, (session_id, step)
                step += 1

        go_on(4)
        for replica in cluster:
            assert replica.terminate() == 0
            replica.settings |= TOMORROW
            replica.start()
            go_on(2)
        # Among equals nothing of the window is lost any more.
        begun_after = [answer(record(cluster[at % 3], "after", at)) for at in range(len(SCRIPT))]
        assert begun_after == expected


def test_another_layout_in_redis_is_refused(tmp_path, redis):
    redis.client().set("unstuck:v", "999 of-tomorrow")
    cluster = Cluster(tmp_path, redis.url)
    a = cluster[0]
    try:
        a.begin()
        assert a.process.wait(2 * DEADLINE_SECS) == 2
        assert "layout" in a.log.read_text()
    finally:
        a.kill()
    assert redis.client().get("unstuck:v") == b"999 of-tomorrow"


@pytest.mark.parametrize("prefix", ["blue", "green:1"])
def test_prefixes_share_nothing(tmp_path, redis, prefix):
    with Cluster(tmp_path / "one", redis.url, patient=True) as one:
        with Cluster(tmp_path / "two", redis.url, {"UNSTUCK__CLUSTER__PREFIX": prefix}, patient=True) as two:
            assert record(one[0], "s", 0).event_index == 0
            one[0].terminate_session("s")
            assert record(two[0], "s", 0).event_index == 0
            wait_for(lambda: len(two[0].command("replicas", "--output", "json").splitlines()) == 3, "its own three")
