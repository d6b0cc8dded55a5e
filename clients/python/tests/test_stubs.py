"""The stubs that are checked in are those of proto/."""

import os
import subprocess
import sys

import pytest
from conftest import PACKAGE

pytest.importorskip("grpc_tools")


def test_the_stubs_are_those_of_the_proto_files(tmp_path):
    subprocess.run([PACKAGE / "generate", tmp_path], check=True, env=os.environ | {"PYTHON": sys.executable})
    made = {path.name: path.read_text() for path in (tmp_path / "unstuck/v1").iterdir()}
    kept = PACKAGE / "src/unstuck/v1"
    assert made == {path.name: path.read_text() for path in kept.iterdir() if path.suffix in (".py", ".pyi")}
