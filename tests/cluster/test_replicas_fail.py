"""Replicas that are killed, stopped, frozen and replaced while brokers send events."""

import threading

from load import SCRIPT, answer, event
from peer import DEADLINE_SECS, detection_pb
from replicas import Cluster
from servers import wait_for


def record(replica, session_id, step):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result


def test_killed_replicas_lose_no_answered_event(cluster, start_load):
    with start_load(cluster) as load:
        load.wait_for_events(600)
        for replica in cluster:
            replica.kill()
            load.wait_for_events(600)
            replica.start()
            load.wait_for_events(300)
        report = load.stop()
        load.continue_on(cluster)
    report.check()
    assert report.reconnects >= 3 and report.resent > 0
    assert cluster.total("unstuck_cluster_moves_total") > 0
    assert cluster.total("unstuck_cluster_conflicts_total") == 0


def test_a_stopped_replica_saves_its_sessions_first(cluster, start_load):
    with start_load(cluster) as load:
        load.wait_for_events(600)
        for replica in cluster:
            assert replica.terminate() == 0, replica.log.read_text()[-2000:]
            load.wait_for_events(600)
            replica.start()
        report = load.stop()
        load.continue_on(cluster)
    report.check()
    assert report.reconnects >= 3 and cluster.total("unstuck_cluster_moves_total") > 0


def test_a_rolling_restart_under_load_loses_nothing(cluster, start_load):
    """As a StatefulSet does it: the next replica is stopped when the one before is ready."""
    with start_load(cluster) as load:
        for replica in [*cluster, *cluster]:
            load.wait_for_events(200)
            assert replica.terminate() == 0
            replica.start()
        report = load.stop()
        load.continue_on(cluster)
    report.check()


def test_a_replica_that_was_frozen_throws_its_old_copies_away(cluster, start_load):
    a, b, _ = cluster
    session_id = "seen-by-a"
    answers = [record(a, session_id, step) for step in range(10)]
    with start_load(cluster) as load:
        load.wait_for_events(300)
        a.freeze()
        answers += [record(b, session_id, step) for step in range(10, 20)]
        load.wait_for_events(900)
        a.thaw()
        # It still takes the session for its own, with ten events.
        answers += [record(a, session_id, step) for step in range(20, len(SCRIPT))]
        load.wait_for_events(300)
        report = load.stop()
        load.continue_on(cluster)
    report.check()
    assert [answer(result) for result in answers] == load.expected
    assert report.reconnects >= 1 and a.metric("unstuck_cluster_fenced_total") >= 1


def test_two_replicas_count_one_session_at_the_same_time(cluster):
    """Each index is given once, unless a replica says that it could not agree in time."""
    session_id, each = "shared", 100
    indexes, lock, failures = [], threading.Lock(), []

    def send(replica, name):
        try:
            for number in range(each):
                one = event(session_id, 0)
                one.event_id, one.round_id = f"{name}-{number}", f"{name}-{number}"
                one.tool_call.args_json = f'{{"path": "{name}/{number}"}}'
                one.tool_call.result = f"{name} {number}"
                request = detection_pb.RecordEventRequest(event=one)
                result = replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result
                with lock:
                    indexes.append(result.event_index)
        except Exception as error:  # noqa: BLE001: reported below
            failures.append(error)

    threads = [threading.Thread(target=send, args=(replica, replica.name)) for replica in cluster.replicas[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    conflicts = cluster.total("unstuck_cluster_conflicts_total")
    missing = set(range(2 * each)) - set(indexes)
    assert len(indexes) == 2 * each and len(missing) <= conflicts, (sorted(missing), conflicts)
    assert cluster.total("unstuck_cluster_fenced_total") > 0


def test_a_replica_cut_off_from_redis_goes_on_and_comes_back(tmp_path, redis, start_load):
    from servers import Switch

    with Switch(redis.port) as way_of_a, Cluster(tmp_path, [way_of_a.url, redis.url, redis.url]) as cluster:
        a, b, _ = cluster
        with start_load(cluster, stay=True) as load:
            load.wait_for_events(300)
            way_of_a.lead_to(None)
            wait_for(lambda: (a.redis_state() or "").startswith("unreachable"), "a has noticed")
            b.terminate_session("of-b")
            load.wait_for_events(600)
            way_of_a.lead_to(redis.port)
            cluster.wait_for_redis()
            load.wait_for_events(300)
            report = load.stop()
        report.check()
        # What happened meanwhile has arrived, and what a counted is saved.
        wait_for(lambda: record(a, "of-b", 0).verdict.detector == "operator", "a knows of the termination")
        wait_for(lambda: cluster.total("unstuck_cluster_unsaved_sessions") == 0, "everything is saved")
        a.kill()
        load.continue_on(cluster.replicas[1:])
        report.check()
