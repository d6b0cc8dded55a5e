"""Terminations, resets and snoozes that are given on one replica and hold on all."""

import http.server
import json
import threading

import grpc
import pytest

from load import SCRIPT, event
from peer import DEADLINE_SECS, Stream, detection_pb, session_pb
from replicas import Cluster
from servers import wait_for
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE, ACTION_UNSPECIFIED


def record(replica, session_id, step, **changes):
    one = event(session_id, step)
    for name, value in changes.items():
        setattr(one, name, value)
    request = detection_pb.RecordEventRequest(event=one)
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result


def request(session_id, step, sequence):
    return detection_pb.StreamEventsRequest(sequence=sequence, events=[event(session_id, step)])


def test_a_termination_reaches_the_streams_of_all_replicas(cluster):
    a, b, c = cluster
    with Stream(a.detection.StreamEvents) as on_a, Stream(b.detection.StreamEvents) as on_b:
        # Both have carried the session; b has it now.
        assert on_a.ask(request("s", 0, 1)).results[0].event_index == 0
        assert on_b.ask(request("s", 1, 1)).results[0].event_index == 1
        verdict = c.terminate_session("s", "it goes in circles")
        assert verdict.durable and verdict.action == ACTION_TERMINATE
        for stream in (on_a, on_b):
            push = stream.receive()
            (result,) = push.results
            assert push.sequence == 0 and result.session_id == "s"
            assert result.verdict.verdict_id == verdict.verdict_id and result.verdict.reason == "it goes in circles"
        for stream in (on_a, on_b):
            result = stream.ask(request("s", 2, 2)).results[0]
            assert result.action == ACTION_TERMINATE and result.verdict.verdict_id == verdict.verdict_id


def test_a_termination_by_a_detector_holds_everywhere(cluster):
    a, b, c = cluster
    last = [record(a, "loops", step) for step in range(len(SCRIPT))][-1]
    assert last.action == ACTION_TERMINATE
    for replica in (b, c):
        assert record(replica, "loops", 0, event_id="new").verdict.verdict_id == last.verdict.verdict_id


def test_a_sub_agent_that_was_terminated_is_so_everywhere(cluster):
    a, b, _ = cluster
    for step in range(len(SCRIPT)):
        last = record(a, "team", step, agent_id="helper")
    assert last.action == ACTION_TERMINATE and last.verdict.agent_id == "helper"
    assert record(b, "team", 0, agent_id="helper", event_id="n1").action == ACTION_TERMINATE
    assert record(b, "team", 0, event_id="n2").action == ACTION_UNSPECIFIED


def test_a_snooze_holds_everywhere(cluster):
    a, b, c = cluster
    record(a, "quiet", 0)
    snooze = session_pb.SnoozeSessionRequest(session_id="quiet", reason="we know")
    snooze.duration.seconds = 3_600
    b.sessions.SnoozeSession(snooze, timeout=DEADLINE_SECS)
    wait_for(lambda: has_snooze(a, "quiet") and has_snooze(c, "quiet"), "all know of the snooze")
    results = [record(replica, "quiet", step) for step in range(1, len(SCRIPT)) for replica in (cluster[step % 3],)]
    assert all(result.action == ACTION_UNSPECIFIED for result in results)
    assert any(result.verdict.shadow for result in results)
    c.reset_session("quiet")
    results = [record(cluster[step % 3], "quiet", step, event_id=f"again{step}") for step in range(len(SCRIPT))]
    assert any(result.action != ACTION_UNSPECIFIED for result in results)


def has_snooze(replica, session_id):
    request = session_pb.GetSessionRequest(session_id=session_id)
    return replica.sessions.GetSession(request, timeout=DEADLINE_SECS).session.HasField("snoozed_until")


def test_profile_and_labels_go_with_the_session(cluster):
    a, b, _ = cluster
    opened = session_pb.OpenSessionRequest(session_id="opened", profile="strict", labels={"team": "payments"})
    a.sessions.OpenSession(opened, timeout=DEADLINE_SECS)
    record(b, "opened", 0)
    request = session_pb.GetSessionRequest(session_id="opened")
    session = b.sessions.GetSession(request, timeout=DEADLINE_SECS).session
    assert (session.profile, dict(session.labels)) == ("strict", {"team": "payments"})


def test_looking_does_not_take_a_session_over(cluster):
    a, b, _ = cluster
    for step in range(12):
        result = record(a, "watched", step)
    blocked = detection_pb.CheckCallRequest(
        session_id="watched", tool="read_file", args_json=SCRIPT[11]["tool_call"].args_json
    )
    moves = cluster.total("unstuck_cluster_moves_total")
    here, there = (one.detection.CheckCall(blocked, timeout=DEADLINE_SECS) for one in (a, b))
    assert here.action == there.action != ACTION_UNSPECIFIED, result
    request = session_pb.GetSessionRequest(session_id="watched")
    assert b.sessions.GetSession(request, timeout=DEADLINE_SECS).session.events == 12
    assert cluster.total("unstuck_cluster_moves_total") == moves
    assert record(a, "watched", 12).event_index == 12
    assert a.metric("unstuck_cluster_fenced_total") == 0


def test_lists_cover_all_replicas(cluster):
    for replica in cluster:
        for number in range(5):
            record(replica, f"{replica.name}-{number}", 0)
    everywhere = {f"{name}-{number}" for name in "abc" for number in range(5)}
    for replica in cluster:
        wait_for(
            lambda: everywhere == {json.loads(line)["session_id"] for line in listed(replica, "sessions")},
            f"{replica.name} lists all sessions",
        )
        rows = [line.split() for line in replica.command("sessions").splitlines()]
        (heading,) = [row for row in rows if "STATUS" in row]
        assert "REPLICA" in heading
        wait_for(lambda: len(listed(replica, "replicas")) == 3, f"{replica.name} lists three replicas")
        shown = [json.loads(line) for line in listed(replica, "replicas")]
        assert sorted(one["name"].rsplit(".", 1)[0] for one in shown) == ["a", "b", "c"]
        assert sorted(one["address"] for one in shown) == sorted(one.grpc for one in cluster)


def listed(replica, what):
    return replica.command(what, "--output", "json").splitlines()


def test_a_list_does_not_fail_because_a_replica_is_dead(cluster):
    a, b, c = cluster
    for replica in cluster:
        record(replica, f"of-{replica.name}", 0)
    c.kill()
    wait_for(lambda: {"of-a", "of-b"} <= {json.loads(line)["session_id"] for line in listed(a, "sessions")}, "a list")
    wait_for(lambda: len(listed(b, "replicas")) == 2, "the dead replica is gone from the list")


@pytest.fixture
def receiver():
    """A receiver of webhooks, and the bodies that it got."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "http://%s:%s/hook" % server.server_address, got
        server.shutdown()


def test_webhooks_are_delivered_by_one_replica_at_a_time(tmp_path, redis, receiver):
    url, got = receiver
    config = tmp_path / "notify.toml"
    config.write_text(
        f'[[notify]]\nname = "hook"\nurl = "{url}"\nallow_http = true\nallow_private = true\nmin_action = "terminate"\n'
    )
    with Cluster(tmp_path, redis.url, patient=True, arguments=("--config", str(config))) as cluster:
        delivered = lambda: {body["subject"] for body in got}
        sent = set()

        def terminate(count, replicas):
            for number in range(count):
                session_id = f"t{len(sent)}"
                replicas[number % len(replicas)].terminate_session(session_id)
                sent.add(session_id)
            wait_for(lambda: delivered() == sent, "all are notified")

        terminate(30, cluster.replicas)
        # Without a failure each is sent once, and by one of them.
        assert len(got) == 30
        senders = [one for one in cluster if one.metric("unstuck_notifications_total") > 0]
        assert len(senders) == 1
        senders[0].kill()
        terminate(20, [one for one in cluster if one is not senders[0]])
        # At least once: what was on its way at the kill may come again.
        assert len({body["id"] for body in got}) == 50


def test_a_terminated_session_cannot_be_opened_elsewhere(cluster):
    a, b, _ = cluster
    a.terminate_session("over")
    with pytest.raises(grpc.RpcError) as refused:
        b.sessions.OpenSession(session_pb.OpenSessionRequest(session_id="over"), timeout=DEADLINE_SECS)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
