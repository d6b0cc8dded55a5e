"""Three processes of the program that share sessions through one Redis."""

import contextlib
import os
import re
import secrets
import subprocess
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from peer import BINARY, DEADLINE_SECS, detection_grpc, session_grpc, session_pb
from servers import LOOPBACK, Process, free_port, wait_for

# What an answer waits for Redis in tests that kill a replica right after an answer. The
# default lets an answer go unsaved after 50 ms, which a busy machine may need. This
# wait never ends first: a command to Redis does, after a second.
PATIENT_MILLIS = 20_000


class Replica(Process):
    def __init__(self, folder, name, settings, arguments=()):
        super().__init__(folder, name)
        self.grpc, self.http = f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{free_port()}"
        self.arguments = arguments
        self.settings = {
            "UNSTUCK__SERVER__GRPC": self.grpc,
            "UNSTUCK__SERVER__HTTP": self.http,
            "UNSTUCK__STORE__DIR": str(folder / "data"),
            "UNSTUCK__STORE__KEY_FILE": str(folder / "key"),
            # Many sessions are terminated here.
            "UNSTUCK__BREAKER__SHARE_MAX": "1",
        } | settings
        self.channel = None

    def environment(self):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("UNSTUCK")}
        return inherited | self.settings

    def begin(self):
        self.spawn([BINARY, "serve", *self.arguments], env=self.environment())

    def start(self):
        self.begin()
        self.wait_until_ready()

    def wait_until_ready(self):
        wait_for(lambda: self.is_running() and self.is_serving(), f"replica {self.name} is ready")
        self.connect()

    def is_serving(self):
        with grpc.insecure_channel(self.grpc) as channel, contextlib.suppress(grpc.RpcError):
            stub = health_pb2_grpc.HealthStub(channel)
            return stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING

    def connect(self):
        self.disconnect()
        self.channel = grpc.insecure_channel(self.grpc)
        self.detection = detection_grpc.DetectionServiceStub(self.channel)
        self.sessions = session_grpc.SessionServiceStub(self.channel)

    def disconnect(self):
        if self.channel:
            self.channel.close()
            self.channel = None

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=DEADLINE_SECS) as response:
            return response.read().decode()

    def health(self):
        return self.get("/healthz")

    def metrics(self):
        """{name with labels: value}."""
        lines = [line.rsplit(" ", 1) for line in self.get("/metrics").splitlines() if line.startswith("unstuck_")]
        return {name: float(value) for name, value in lines}

    def metric(self, name):
        """The sum over all labels."""
        found = [value for key, value in self.metrics().items() if key.split("{")[0] == name]
        assert found, f"there is no metric {name}"
        return sum(found)

    def command(self, *arguments):
        """Runs a command of the program against this replica and returns its output."""
        return self.command_output(*arguments, "--server", self.grpc)

    def command_output(self, *arguments):
        """What a command prints with the settings of this replica."""
        ended = subprocess.run(
            [BINARY, *arguments], cwd=self.folder, env=self.environment(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_SECS,
        )
        assert ended.returncode == 0, f"{arguments}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    def terminate_session(self, session_id, reason="it hangs"):
        request = session_pb.TerminateSessionRequest(session_id=session_id, reason=reason)
        return self.sessions.TerminateSession(request, timeout=DEADLINE_SECS).verdict

    def reset_session(self, session_id, reason="it is repaired"):
        request = session_pb.ResetSessionRequest(session_id=session_id, reason=reason)
        return self.sessions.ResetSession(request, timeout=DEADLINE_SECS).verdict

    def redis_state(self):
        """What health says of Redis: `ok`, `unreachable since …`, `full`."""
        line = re.search(r"; redis: (.*)$", self.health(), re.MULTILINE)
        return line[1] if line else None

    def __exit__(self, *_):
        self.disconnect()
        self.kill()


class Cluster:
    """Replicas a, b and c, with the same secret. `urls` may give each its own way to Redis."""

    def __init__(self, folder, urls, settings=None, patient=False, per_replica=None, arguments=()):
        urls = [urls] * 3 if isinstance(urls, str) else urls
        folder.mkdir(parents=True, exist_ok=True)
        self.secret = folder / "cluster.secret"
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        self.replicas = []
        for name, url in zip("abc", urls):
            replica = Replica(folder / name, name, {
                "UNSTUCK__CLUSTER__REDIS": url,
                "UNSTUCK__CLUSTER__NAME": name,
                "UNSTUCK__CLUSTER__SECRET_FILE": str(self.secret),
            } | (settings or {}) | (per_replica or {}).get(name, {}), arguments)
            replica.settings |= {"UNSTUCK__CLUSTER__ADVERTISE": replica.grpc}
            if patient:
                replica.settings |= {"UNSTUCK__CLUSTER__WAIT_MS": str(PATIENT_MILLIS)}
            self.replicas.append(replica)

    def __iter__(self):
        return iter(self.replicas)

    def __getitem__(self, index):
        return self.replicas[index]

    def total(self, metric):
        return sum(replica.metric(metric) for replica in self.replicas if replica.process.poll() is None)

    def wait_for_redis(self, state="ok"):
        for replica in self.replicas:
            wait_for(lambda: (replica.redis_state() or "").startswith(state), f"replica {replica.name} says redis: {state}")

    def logs(self):
        return "\n".join(replica.log.read_text() for replica in self.replicas)

    def __enter__(self):
        try:
            for replica in self.replicas:
                replica.begin()
            for replica in self.replicas:
                replica.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for replica in self.replicas:
            replica.__exit__()
