"""Replicas of the real program, real Redis servers, and what one process answers."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_peer():
    """Loads tests/peer/conftest.py, which starts the program, under another module name."""
    spec = importlib.util.spec_from_file_location("peer", ROOT / "tests/peer/conftest.py")
    peer = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = peer
    spec.loader.exec_module(peer)
    return peer


peer = load_peer()

from load import Load, answers_of_one_process  # noqa: E402
from replicas import Cluster  # noqa: E402
from servers import Redis  # noqa: E402


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """The answers of a process without a cluster to the script of the load."""
    with peer.running_server(tmp_path_factory.mktemp("alone")) as server:
        return answers_of_one_process(server.detection)


@pytest.fixture
def redis(tmp_path):
    with Redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def cluster(tmp_path, redis):
    """Three replicas whose answers wait until their sessions are saved."""
    with Cluster(tmp_path, redis.url, patient=True) as cluster:
        yield cluster


@pytest.fixture
def start_load(expected):
    """Starts brokers: one per replica. `stay`: none of them goes to another replica."""

    def start(replicas, stay=False, move_every=0, name="load"):
        addresses = [replica if isinstance(replica, str) else replica.grpc for replica in replicas]
        ways = [addresses[at:] + addresses[:at] for at in range(len(addresses))]
        return Load(expected, ways, move_every, name, stay=stay)

    return start
