"""The example of the README, as it stands there."""

import os
import re
import subprocess
import sys

from conftest import PACKAGE, PATIENCE_SECS


def test_the_example_of_the_readme_runs(service, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.S)
    (tmp_path / "notes.txt").write_text("nothing new")
    # A busy machine may miss the deadline, which is no part of the example.
    code = code.replace("unstuck.Client()", f"unstuck.Client(deadline={PATIENCE_SECS})")
    env = os.environ | {"UNSTUCK_SERVER": service.target, "PYTHONPATH": str(PACKAGE / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, capture_output=True, text=True,
        timeout=PATIENCE_SECS,
    )
    *results, last = done.stdout.splitlines()
    assert last.startswith("stopped: ")
    assert results[0] == "nothing new" and any("[unstuck]" in line for line in results)
