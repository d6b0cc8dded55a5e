"""A real server under load and a real Prometheus, for the queries of dashboards, rules and docs."""

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

import yaml
from conftest import DEPLOY, peer
from load import Fleet

# Grafana's values of the variables, with a scrape per second and everything selected.
VARIABLES = {"$__rate_interval": "20s", "$job": ".+", "$instance": ".+"}


def plain(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@dataclass
class Prometheus:
    address: str
    metrics: str
    fleet: Fleet

    def ask(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=peer.DEADLINE_SECS) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression):
        return self.ask("query", query=plain(expression))["result"]

    def query_range(self, expression, start, end, step):
        return self.ask("query_range", query=plain(expression), start=start, end=end, step=step)["result"]


def wait_for(condition, what):
    deadline = time.monotonic() + 2 * peer.DEADLINE_SECS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come in time"
        time.sleep(0.2)


def configuration(server, directory):
    """The deployed configuration, with this server as the target and shorter intervals."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / path) for path in config["rule_files"]]
    (unstuck,) = [job for job in config["scrape_configs"] if job["job_name"] == "unstuck"]
    unstuck["static_configs"] = [{"targets": [server.http]}]
    config["scrape_configs"] = [unstuck]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def free_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def running_prometheus(server, fleet, directory):
    assert shutil.which("prometheus"), "prometheus is missing: scripts/test installs it"
    address = free_address()
    with open(directory / "prometheus.log", "w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={configuration(server, directory)}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    prometheus = Prometheus(address, f"http://{server.http}/metrics", fleet)

    def is_ready():
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=1):
            return True

    try:
        wait_for(is_ready, "Prometheus")
        yield prometheus
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def running(directory, agents=30, pause_secs=0.1):
    stop = threading.Event()
    # A receiver's metrics exist only if one is configured; port 9 refuses connections.
    # The share of looping agents is so high that the breaker would open.
    (directory / "unstuck.toml").write_text(
        '[breaker]\nshare_max = 1.0\n'
        '[[notify]]\nname = "unreachable"\nurl = "http://127.0.0.1:9/"\nallow_http = true\nallow_private = true\n'
    )
    with peer.running_server(directory) as server:
        fleet = Fleet(server, agents)
        with running_prometheus(server, fleet, directory) as prometheus:
            load = threading.Thread(target=fleet.run, args=(stop, pause_secs))
            load.start()
            try:
                # The last series to appear: a termination and a recording rule.
                wait_for(
                    lambda: prometheus.query("sum(rate(unstuck_sessions_terminated_total[20s])) > 0"), "a termination"
                )
                wait_for(
                    lambda: prometheus.query("job:unstuck_verdicts_per_event:ratio_rate15m > 0"), "a recorded rule"
                )
                yield prometheus
            finally:
                stop.set()
                load.join()
