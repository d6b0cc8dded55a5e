"""The Debian package, unpacked into a folder."""

import shutil
import subprocess

from conftest import ROOT, peer, run


def test_the_debian_package_has_the_program_the_unit_and_the_configuration(tmp_path):
    program = tmp_path / "program"
    # What debuggers need takes hundreds of megabytes.
    if subprocess.run(["strip", "-o", program, peer.BINARY]).returncode:
        shutil.copy(peer.BINARY, program)
    run(ROOT / "scripts/package-deb", program, tmp_path)
    (package,) = tmp_path.glob("unstuck_*.deb")
    root = tmp_path / "root"
    run("dpkg-deb", "--extract", package, root)
    version = run(root / "usr/bin/unstuck", "--version").split()[1]
    assert version in package.name
    for field in ("Package: unstuck\n", f"Version: {version}\n", "Depends: libc6 (>= "):
        assert field in run("dpkg-deb", "--field", package)
    unit = (root / "usr/lib/systemd/system/unstuck.service").read_text()
    assert "ExecStart=/usr/bin/unstuck serve --config /etc/unstuck/unstuck.toml" in unit and "/usr/local" not in unit
    run(root / "usr/bin/unstuck", "config", "check", "--config", root / "etc/unstuck/unstuck.toml", cwd=tmp_path)
    assert (root / "usr/share/man/man1/unstuck.1.gz").stat().st_size > 100
    owners = {line.split()[1] for line in run("dpkg-deb", "--contents", package).splitlines()}
    assert owners == {"root/root"}
