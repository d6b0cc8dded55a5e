"""What is deployed, checked by the programs that will read it."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
NODE_BIN = Path(__file__).parent / "node_modules/.bin"
PYTHON_BIN = Path(sys.executable).parent


def load_peer():
    """tests/peer/conftest.py, which starts the server: its name is taken here."""
    spec = importlib.util.spec_from_file_location("peer", ROOT / "tests/peer/conftest.py")
    peer = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = peer
    spec.loader.exec_module(peer)
    return peer


peer = load_peer()


def dashboards():
    return {path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json"))}


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def rules():
    """The rules of all groups, recording and alerting."""
    files = sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def documented_queries():
    return re.findall(r"```promql\n(.*?)\n```", (ROOT / "docs/metrics.md").read_text(), re.DOTALL)


@pytest.fixture(scope="session")
def live(tmp_path_factory):
    """A server under a small load, and a Prometheus that scrapes it every second."""
    from live import running

    with running(tmp_path_factory.mktemp("live")) as prometheus:
        yield prometheus
