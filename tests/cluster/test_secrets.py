"""What Redis gets to see, what its user may do, and where its password is not."""

import re
import subprocess

import redis as redis_client
import pytest

from load import event
from peer import BINARY, DEADLINE_SECS, detection_pb, session_pb
from replicas import Cluster, Replica
from servers import Redis, deployed_user, wait_for
from unstuck.v1.event_pb2 import OUTCOME_ERROR, Delta

PASSWORD = "hunter2-Tr0ub4dor"
# What agents and operators write. None of it may be readable in Redis.
AGENTS = [f"plaintext-{what}" for what in ("args", "result", "target", "error", "turn", "delta")]
TEXTS = [*AGENTS, "plaintext-reason", "plaintext-snooze", "plaintext-label"]


def send_texts(cluster):
    a, b, c = cluster
    opened = session_pb.OpenSessionRequest(session_id="visible-id", labels={"team": "plaintext-label"})
    a.sessions.OpenSession(opened, timeout=DEADLINE_SECS)
    for step in range(24):
        one = event("visible-id", step % 20)
        one.event_id = f"t{step}"
        if one.WhichOneof("body") == "tool_call":
            tool_call = one.tool_call
            tool_call.args_json = f'{{"path": "plaintext-args/{step // 4}"}}'
            tool_call.target = "plaintext-target"
            if tool_call.outcome == OUTCOME_ERROR:
                tool_call.error = "plaintext-error happened"
            else:
                tool_call.result = "plaintext-result\n" * 50
        else:
            one.turn.text = f"plaintext-turn number {step}"
        request = detection_pb.RecordEventRequest(event=one)
        (a, b)[step % 2].detection.RecordEvent(request, timeout=DEADLINE_SECS)
    delta = Delta(session_id="visible-id", turn_id="t", text="plaintext-delta is written. " * 40, end_of_turn=True)
    deltas = [detection_pb.StreamDeltasRequest(deltas=[delta])]
    list(c.detection.StreamDeltas(iter(deltas), timeout=DEADLINE_SECS))
    snooze = session_pb.SnoozeSessionRequest(session_id="visible-id", reason="plaintext-snooze")
    snooze.duration.seconds = 60
    a.sessions.SnoozeSession(snooze, timeout=DEADLINE_SECS)
    b.terminate_session("other-visible-id", "plaintext-reason")


def test_nothing_that_agents_wrote_is_readable_in_redis(tmp_path):
    """Read as bytes: a dump without compression, and the log of all commands."""
    lines = ["rdbcompression no", "appendonly yes", "aof-use-rdb-preamble no", "appendfsync always"]
    with Redis(tmp_path / "redis", *lines) as redis, Cluster(tmp_path, redis.url, patient=True) as cluster:
        send_texts(cluster)
        wait_for(lambda: cluster.total("unstuck_cluster_unsaved_sessions") == 0, "everything is saved")
        wait_for(lambda: redis.client().xlen("unstuck:acts") >= 2, "the acts are in Redis")
        wait_for(lambda: redis.client().xlen("unstuck:feed") >= 1, "verdicts are in Redis")
        redis.client().save()
        files = [path for path in redis.folder.rglob("*") if path.suffix in (".rdb", ".aof")]
        assert {path.suffix for path in files} == {".rdb", ".aof"}
        written = b"".join(path.read_bytes() for path in files)
        # Ids are keys, so the session is there.
        assert b"visible-id" in written and b"other-visible-id" in written
        assert [text for text in TEXTS if text.encode() in written] == []
        assert "plaintext-reason" in cluster.logs()
        assert [text for text in AGENTS if text in cluster.logs()] == []


def test_another_secret_reads_nothing_and_says_so(tmp_path, redis):
    """A replica with the wrong secret does not take part."""
    with Cluster(tmp_path, redis.url, patient=True) as cluster:
        other = tmp_path / "other.secret"
        other.write_text("0" * 64)
        other.chmod(0o600)
        stranger = Replica(tmp_path / "stranger", "stranger", cluster[0].settings | {
            "UNSTUCK__CLUSTER__NAME": "stranger", "UNSTUCK__CLUSTER__SECRET_FILE": str(other),
        })
        stranger.settings |= fresh_addresses(stranger, tmp_path)
        with stranger:
            for step in range(5):
                record(cluster[0], "s", step)
            record(stranger, "s", 5)
            assert stranger.metric("unstuck_cluster_unreadable_total") > 0


def fresh_addresses(replica, folder):
    return {
        "UNSTUCK__SERVER__GRPC": replica.grpc, "UNSTUCK__SERVER__HTTP": replica.http,
        "UNSTUCK__CLUSTER__ADVERTISE": replica.grpc, "UNSTUCK__STORE__DIR": str(folder / "stranger/data"), "UNSTUCK__STORE__KEY_FILE": str(folder / "stranger/key"),
    }


def record(replica, session_id, step):
    request = detection_pb.RecordEventRequest(event=event(session_id, step))
    return replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result


# The user of deploy/


@pytest.fixture
def guarded(tmp_path):
    """A Redis with that user and no other."""
    with Redis(tmp_path / "guarded", "user default on nopass ~* &* +@all", deployed_user(PASSWORD)) as redis:
        yield redis


def url_of(redis):
    return f"redis://unstuck:{PASSWORD}@127.0.0.1:{redis.port}"


def test_the_deployed_user_may_do_what_is_needed(tmp_path, guarded, start_load):
    with Cluster(tmp_path, url_of(guarded), patient=True) as cluster:
        with start_load(cluster, stay=True) as load:
            load.wait_for_events(900)
            cluster[0].kill()
            load.wait_for_events(300)
            cluster[0].start()
            report = load.stop()
            load.continue_on(cluster)
        report.check()
        send_texts(cluster)
        cluster[0].reset_session("other-visible-id")
        cluster[2].sessions.EndSession(session_pb.EndSessionRequest(session_id="visible-id"), timeout=DEADLINE_SECS)
        wait_for(lambda: len(cluster[1].command("replicas").splitlines()) >= 4, "replicas are listed")
        cluster.wait_for_redis()
        assert [entry["object"] for entry in guarded.client().acl_log()] == []


def test_the_deployed_user_may_do_no_more(guarded):
    user = redis_client.Redis("127.0.0.1", guarded.port, username="unstuck", password=PASSWORD)
    assert user.set("unstuck:v", "1") and user.get("unstuck:v") == b"1"
    for command in (
        ["SET", "other", "1"], ["GET", "other"], ["RENAME", "unstuck:v", "other"], ["XADD", "other", "*", "a", "1"],
        ["EVAL", "return redis.call('GET', 'other')", "0"], ["EVAL", "return redis.call('FLUSHALL')", "0"],
    ):
        with pytest.raises(redis_client.RedisError, match="(?i)permission|can't access|can't run|ACL"):
            user.execute_command(*command)
    # Each command of this server, tried without running it.
    admin = guarded.client()
    everything = sorted(name.decode() for name in admin.execute_command("COMMAND LIST"))
    assert len(everything) > 300
    allowed = {name for name in everything if is_allowed(admin, name)}
    named = set(re.findall(r"(?<= )\+(\S+)", deployed_user(PASSWORD)))
    # Any user may leave and log out.
    assert allowed == named | {"quit", "reset"} and named <= set(everything)
    dangerous = {"flushall", "flushdb", "keys", "scan", "shutdown", "save", "monitor", "replicaof", "migrate", "config|set"}
    assert dangerous <= set(everything) and not allowed & dangerous


def is_allowed(admin, name):
    """Whether the user may run the command, with keys of the prefix."""
    for count in range(7):
        arguments = ["1"] * count if name in ("eval", "evalsha") else ["unstuck:v"] * count
        try:
            return admin.execute_command("ACL DRYRUN", "unstuck", *name.split("|"), *arguments) == b"OK"
        except redis_client.ResponseError as error:
            # Another number of arguments.
            assert "arguments" in str(error) or "not found" in str(error), (name, error)
    return False


# The password


def test_the_password_is_shown_nowhere(tmp_path, guarded):
    with Cluster(tmp_path, url_of(guarded), {"RUST_LOG": "trace"}, patient=True) as cluster:
        a = cluster[0]
        record(a, "s", 0)
        shown = {
            "config print": a.command_output("config", "print"),
            "config check": a.command_output("config", "check"),
            "help": a.command_output("--help") + a.command_output("serve", "--help"),
            "replicas": a.command("replicas") + a.command("replicas", "--output", "json"),
            "health": a.health(),
            "metrics": a.get("/metrics"),
        }
        assert "***" in shown["config print"]
        for path in ("/", "/audit", "/policy"):
            shown[f"console {path}"] = a.get(path)
        # Also while Redis is away, and when it refuses the password.
        guarded.kill()
        cluster.wait_for_redis("unreachable")
        shown["health while away"] = a.health()
        guarded.lines = [line.replace(PASSWORD, "another") for line in guarded.lines]
        guarded.start()
        wait_for(lambda: guarded.client().acl_log(), "a login was refused")
        shown["health while refused"] = a.health()
        shown["logs"] = cluster.logs()
        a.kill()
        a.begin()
        wait_for(lambda: a.process.poll() is not None or a.is_serving(), "it starts or ends")
        shown["log of a start"] = a.log.read_text()
    assert [where for where, text in shown.items() if PASSWORD in text] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"REDIS": "http://unstuck:%s@127.0.0.1:1"},
        {"REDIS": "redis://unstuck:%s@127.0.0.1:1", "SECRET_FILE": ""},
        {"REDIS": "redis://unstuck:%s@127.0.0.1:1/not-a-number"},
        {"REDIS": "redis://unstuck:%s@:port"},
        {"REDIS": "redis://unstuck:%s@127.0.0.1:1", "PREFIX": "a{b}"},
        {"REDIS": "redis://unstuck:%s@127.0.0.1:1", "WAIT_MS": "0"},
    ],
    ids=["scheme", "secret", "database", "host", "prefix", "wait"],
)
def test_settings_that_cannot_work_are_refused_without_the_password(tmp_path, settings):
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    settings = {"SECRET_FILE": str(secret)} | {key: value % PASSWORD if "%s" in value else value for key, value in settings.items()}
    replica = Replica(tmp_path / "a", "a", {f"UNSTUCK__CLUSTER__{key}": value for key, value in settings.items()})
    for command in (["config", "check"], ["serve"]):
        ended = subprocess.run(
            [BINARY, *command], cwd=tmp_path, env=replica.environment(), capture_output=True, text=True, timeout=DEADLINE_SECS
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 2 and "cluster" in said and PASSWORD not in said, said
