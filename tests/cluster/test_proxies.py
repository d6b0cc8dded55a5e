"""The configurations of deploy/ for nginx, in front of three replicas."""

import re

import pytest

from conftest import ROOT
from servers import LOOPBACK, Nginx, free_port, wait_for
from replicas import Cluster

DEPLOYED = {"nginx": (Nginx, "nginx.conf")}


def configuration(name, cluster, port):
    """The deployed file, with the addresses of this test."""
    text = (ROOT / "deploy/cluster" / name).read_text()
    for number, replica in enumerate(cluster):
        at = replica.grpc.split(":")[1]
        text, places = re.subn(rf"\bunstuck-{number}:50551\b", f"{LOOPBACK}:{at}", text)
        text, others = re.subn(
            rf"address: unstuck-{number}, port_value: 50551\b", f"address: {LOOPBACK}, port_value: {at}", text
        )
        assert places + others == 1, f"{name} names unstuck-{number} {places + others} times"
    text, places = re.subn(r"(?<=listen )50551\b|(?<=port_value: )50551\b", str(port), text)
    assert places == 1
    return text


@pytest.mark.parametrize("proxy", DEPLOYED)
def test_behind_a_proxy_a_killed_replica_loses_nothing(proxy, tmp_path, redis, start_load):
    kind, name = DEPLOYED[proxy]
    port = free_port()
    with Cluster(tmp_path, redis.url, patient=True) as cluster:
        with kind(tmp_path / proxy, configuration(name, cluster, port), port) as front:
            # Six brokers know only the proxy.
            with start_load([f"{LOOPBACK}:{port}"] * 6) as load:
                load.wait_for_events(900)
                for replica in cluster:
                    wait_for(lambda: replica.metric("unstuck_events_total") > 0, f"{replica.name} gets events")
                for replica in cluster:
                    replica.kill()
                    load.wait_for_events(600)
                    replica.start()
                load.wait_for_events(300)
                report = load.stop()
                load.continue_on(cluster)
            report.check()
            assert report.reconnects > 3
            front.is_running()
