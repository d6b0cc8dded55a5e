"""Another layout in Redis, and clusters that share one Redis."""

import pytest

from load import event
from peer import DEADLINE_SECS, detection_pb
from replicas import Cluster
from servers import wait_for


def record(replica, session_id, step):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result


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
