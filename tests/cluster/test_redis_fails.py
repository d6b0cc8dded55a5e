"""Redis that is frozen, killed, replaced by a replica that lacks the last writes, or full."""

import shutil

from load import event
from peer import DEADLINE_SECS, detection_pb
from replicas import Cluster
from servers import Redis, Sentinel, Switch, wait_for
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE


def action(replica, session_id, step=0):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result.action


def has_act(redis, session_id):
    return bool(redis.keys(f"unstuck:{{*/{session_id}}}:a"))


def has_state(redis, session_id):
    return bool(redis.keys(f"unstuck:{{*/{session_id}}}:s:*"))


def wait_until_saved(cluster):
    wait_for(lambda: cluster.total("unstuck_cluster_unsaved_sessions") == 0, "everything is saved")


def replace_without_data(replica):
    """Another machine in its place: what it knows is what Redis knows."""
    replica.kill()
    shutil.rmtree(replica.folder / "data")
    replica.start()


def test_while_redis_is_frozen_events_are_answered(tmp_path, redis, start_load):
    with Cluster(tmp_path, redis.url) as cluster, start_load(cluster, stay=True) as load:
        load.wait_for_events(300)
        redis.freeze()
        cluster.wait_for_redis("unreachable")
        load.wait_for_events(1_500)
        assert all(replica.metric("unstuck_cluster_unreachable") == 1 for replica in cluster)
        # A termination does not wait for it either.
        assert cluster[0].terminate_session("meanwhile").durable
        redis.thaw()
        cluster.wait_for_redis()
        load.wait_for_events(300)
        report = load.stop()
        wait_until_saved(cluster)
        wait_for(lambda: has_act(redis, "meanwhile"), "the termination is in Redis")
        wait_for(lambda: action(cluster[1], "meanwhile") == ACTION_TERMINATE, "b knows of it")
        load.continue_on(cluster)
        report.check()
        assert all(replica.metric("unstuck_cluster_unreachable") == 0 for replica in cluster)


def test_redis_that_comes_back_empty_is_filled_again(tmp_path, redis, start_load):
    with Cluster(tmp_path, redis.url) as cluster, start_load(cluster, stay=True) as load:
        a, b, c = cluster
        assert a.terminate_session("ended-by-a").durable
        assert action(b, "idle") != ACTION_TERMINATE
        wait_for(lambda: action(b, "ended-by-a") == ACTION_TERMINATE, "b knows of it")
        load.wait_for_events(300)
        redis.kill()
        cluster.wait_for_redis("unreachable")
        load.wait_for_events(600)
        # It has nothing to begin with.
        assert not [path for path in redis.folder.iterdir() if path.suffix in (".rdb", ".aof")]
        redis.start()
        cluster.wait_for_redis()
        load.wait_for_events(300)
        report = load.stop()
        # The termination, sessions that go on, and one to which nothing happens.
        wait_for(lambda: has_act(redis, "ended-by-a"), "the termination is in Redis again")
        for session_id in ["idle", *load.live_sessions()]:
            wait_for(lambda: has_state(redis, session_id), f"{session_id} is in Redis again")
        wait_until_saved(cluster)
        replace_without_data(c)
        assert action(c, "ended-by-a") == ACTION_TERMINATE
        b.kill()
        load.continue_on([a, c])
        report.check()


def test_a_failover_that_loses_the_last_writes_loses_no_termination(tmp_path, start_load):
    with (
        Redis(tmp_path / "first") as first,
        Redis(tmp_path / "second", f"replicaof 127.0.0.1 {first.port}") as second,
        Switch(first.port) as switch,
        Cluster(tmp_path, switch.url) as cluster,
        start_load(cluster, stay=True) as load,
    ):
        a, b, c = cluster
        a.terminate_session("early")
        load.wait_for_events(300)
        wait_for(lambda: has_act(second, "early"), "the replica of Redis follows")
        # From here on the replica of Redis lacks what is written.
        second.client().replicaof("NO", "ONE")
        c.terminate_session("late")
        a.reset_session("early")
        load.wait_for_events(900)
        assert has_act(first, "late") and not has_act(second, "late")
        first.kill()
        switch.lead_to(second.port)
        cluster.wait_for_redis()
        load.wait_for_events(300)
        report = load.stop()
        wait_for(lambda: has_act(second, "late"), "the termination is there again")
        wait_until_saved(cluster)
        replace_without_data(b)
        assert action(b, "late") == ACTION_TERMINATE
        wait_for(lambda: action(b, "early") != ACTION_TERMINATE, "the reset is there again")
        load.continue_on([c, a])
        report.check()


def test_sentinel_promotes_a_replica(tmp_path, start_load):
    with (
        Redis(tmp_path / "first") as first,
        Redis(tmp_path / "second", f"replicaof 127.0.0.1 {first.port}") as second,
        Sentinel(tmp_path / "sentinel", first) as sentinel,
    ):
        wait_for(lambda: sentinel.replicas() == 1, "the sentinel knows the replica")
        wait_for(lambda: second.client().info("replication")["master_link_status"] == "up", "it follows")
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        with Cluster(tmp_path, url) as cluster, start_load(cluster, stay=True) as load:
            cluster[0].terminate_session("ended")
            load.wait_for_events(300)
            first.kill()
            wait_for(lambda: sentinel.master_port() == second.port, "the sentinel has promoted the replica")
            wait_for(lambda: has_act(second, "ended"), "the termination is in the new one")
            cluster.wait_for_redis()
            load.wait_for_events(300)
            report = load.stop()
            wait_until_saved(cluster)
            load.continue_on(cluster)
            report.check()
            assert action(cluster[2], "ended") == ACTION_TERMINATE


def test_redis_without_memory_is_as_if_it_were_away(tmp_path, redis, start_load):
    with Cluster(tmp_path, redis.url) as cluster, start_load(cluster, stay=True) as load:
        load.wait_for_events(300)
        redis.client().config_set("maxmemory", 1)
        cluster.wait_for_redis("full")
        load.wait_for_events(900)
        assert all(replica.metric("unstuck_cluster_full") == 1 for replica in cluster)
        redis.client().config_set("maxmemory", 0)
        cluster.wait_for_redis()
        load.wait_for_events(300)
        report = load.stop()
        wait_until_saved(cluster)
        load.continue_on(cluster)
        report.check()
        assert all(replica.metric("unstuck_cluster_full") == 0 for replica in cluster)
