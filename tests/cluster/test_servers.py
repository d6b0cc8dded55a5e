"""The same promises on each supported kind of server."""

import contextlib
from types import SimpleNamespace

import pytest
import trustme

from load import event
from peer import DEADLINE_SECS, Stream, detection_pb
from replicas import Cluster
from servers import LOOPBACK, Redis, Sentinel, deployed_user, free_port, wait_for
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE

# All use the user of deploy/, whose password stands in the address percent-encoded.
USER = deployed_user("p/ss")
LOGIN = "unstuck:p%2Fss"


@contextlib.contextmanager
def encrypted(folder):
    """TLS with a private authority; no client gets in without a password."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", LOOPBACK)
    tls = SimpleNamespace(ca=folder / "ca.pem", cert=folder / "tls.pem", key=folder / "tls.key")
    authority.cert_pem.write_to_path(tls.ca)
    certificate.private_key_and_cert_chain_pem.write_to_path(tls.cert)
    certificate.private_key_pem.write_to_path(tls.key)
    with Redis(folder / "redis", USER, tls=tls, password="another") as redis:
        yield f"rediss://{LOGIN}@localhost:{redis.port}", {"SSL_CERT_FILE": str(tls.ca)}, [redis]


@contextlib.contextmanager
def watched_by_sentinel(folder):
    with (
        Redis(folder / "first", USER) as first,
        Redis(folder / "second", USER, f"replicaof {LOOPBACK} {first.port}"),
        Sentinel(folder / "sentinel", first) as sentinel,
    ):
        wait_for(lambda: sentinel.replicas() == 1, "the sentinel knows the replica")
        yield f"redis+sentinel://{LOGIN}@{LOOPBACK}:{sentinel.port}/main", {}, [first]


@contextlib.contextmanager
def cluster_of_three(folder):
    """Slots are on three servers, so the keys of a session and the streams are apart."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            bus = free_port()
            lines = ["cluster-enabled yes", f"cluster-port {bus}", "cluster-node-timeout 5000", "cluster-require-full-coverage yes"]
            node = stack.enter_context(Redis(folder / f"node{number}", USER, *lines))
            nodes.append((node, bus))
        bounds = [0, 5_461, 10_922, 16_384]
        for number, (node, _) in enumerate(nodes):
            node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            for other, bus in nodes:
                node.client().execute_command("CLUSTER", "MEET", LOOPBACK, other.port, bus)
        for node, _ in nodes:
            wait_for(lambda: b"cluster_state:ok" in raw(node, "CLUSTER", "INFO"), "the cluster is complete")
            wait_for(lambda: b"cluster_known_nodes:3" in raw(node, "CLUSTER", "INFO"), "the nodes know each other")
        addresses = ",".join(f"{LOOPBACK}:{node.port}" for node, _ in nodes)
        yield f"redis-cluster://{LOGIN}@{addresses}", {}, [node for node, _ in nodes]


def raw(node, *command):
    client = node.client()
    client.set_response_callback("CLUSTER INFO", lambda text, **_: text)
    answer = client.execute_command(*command)
    return answer if isinstance(answer, bytes) else str(answer).encode()


SERVERS = {
    "tls": encrypted,
    "sentinel": watched_by_sentinel,
    "cluster-of-three": cluster_of_three,
}


def request(session_id, step, sequence):
    return detection_pb.StreamEventsRequest(sequence=sequence, events=[event(session_id, step)])


@pytest.mark.parametrize("kind", SERVERS)
def test_a_kind_of_server(kind, tmp_path, start_load):
    with (
        SERVERS[kind](tmp_path / kind) as (url, settings, servers),
        Cluster(tmp_path, url, settings, patient=True) as cluster,
    ):
        a, b, c = cluster
        # A replica is killed, and sessions move when the load has ended.
        with start_load(cluster, stay=True) as load:
            load.wait_for_events(900)
            b.kill()
            load.wait_for_events(600)
            b.start()
            report = load.stop()
            load.continue_on(cluster)
        report.check()
        assert cluster.total("unstuck_cluster_moves_total") > 0
        assert "redis has refused a command" not in cluster.logs()
        # Acts pass, by push and with the next event.
        with Stream(a.detection.StreamEvents) as stream:
            stream.ask(request("s", 0, 1))
            verdict = c.terminate_session("s")
            assert stream.receive().results[0].verdict.verdict_id == verdict.verdict_id
        assert b.detection.RecordEvent(
            detection_pb.RecordEventRequest(event=event("s", 1)), timeout=DEADLINE_SECS
        ).result.action == ACTION_TERMINATE
        b.reset_session("s")
        wait_for(lambda: record(a, "s", 2).action != ACTION_TERMINATE, "a knows of the reset")
        wait_for(lambda: len(a.command("replicas", "--output", "json").splitlines()) == 3, "replicas are listed")
        # Nothing was refused to the user.
        assert [entry["object"] for server in servers for entry in server.client().acl_log()] == []


def record(replica, session_id, step):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result
