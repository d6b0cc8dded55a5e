"""The packages that are built, in environments that have nothing else."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest
from conftest import BINARY, PACKAGE, ROOT

pytest.importorskip("hatchling")
LICENSE = (ROOT / "LICENSE").read_bytes()
ENV = os.environ | {"PYTHON": sys.executable}


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout.strip()


def license_of(wheel):
    """The license in a wheel, where its metadata names it."""
    files = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    assert "\nLicense-File: LICENSE\n" in files.read(metadata).decode()
    return files.read(metadata.replace("METADATA", "licenses/LICENSE"))


def test_a_wheel_with_the_program_installs_it_and_the_client(tmp_path):
    program = tmp_path / "program"
    # What debuggers need takes hundreds of megabytes.
    if subprocess.run(["strip", "-o", program, BINARY]).returncode:
        program = BINARY
    run(PACKAGE / "build-wheel", program, "", tmp_path, env=ENV)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and "-any" not in wheel.name
    assert license_of(wheel) == LICENSE
    venv.create(tmp_path / "env", with_pip=True)
    bin = tmp_path / "env/bin"
    lock = PACKAGE / "requirements/core.txt"
    run(bin / "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", lock, wheel)
    # From another folder and without PYTHONPATH, so that only what is installed is found.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    version = run(bin / "python", "-c", "import unstuck; print(unstuck.__version__)", cwd=tmp_path, env=clean)
    assert run(bin / "unstuck", "--version", cwd=tmp_path, env=clean).split()[:2] == ["unstuck", version]
    # An empty home has nothing to scan.
    assert run(bin / "unstuck", "scan", cwd=tmp_path, env=clean | {"HOME": str(tmp_path)})
    found = {line.split("==")[0] for line in run(bin / "pip", "list", "--format=freeze").splitlines()}
    assert found - {"pip", "setuptools"} == {"unstuck", "grpcio", "protobuf", "typing_extensions"}


def test_a_program_of_another_version_is_refused(tmp_path):
    other = tmp_path / "unstuck"
    other.write_text("#!/bin/sh\necho unstuck 9.9.9\n")
    other.chmod(0o755)
    done = subprocess.run([PACKAGE / "build-wheel", other, "", tmp_path], env=ENV, capture_output=True, text=True)
    assert done.returncode == 1 and "9.9.9" in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_source_package_builds_a_wheel_for_every_platform(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path, cwd=PACKAGE)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        license = files.getmember(f"{sdist.name.removesuffix('.tar.gz')}/LICENSE")
        assert license.isfile() and files.extractfile(license).read() == LICENSE
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, sdist)
    (wheel,) = tmp_path.glob("unstuck-*-py3-none-any.whl")
    assert license_of(wheel) == LICENSE
    names = zipfile.ZipFile(wheel).namelist()
    kept = {str(path.relative_to(PACKAGE / "src")) for path in (PACKAGE / "src").rglob("*.py")}
    assert kept | {"unstuck/py.typed"} <= set(names)
    assert not [name for name in names if "/scripts/" in name]
