"""A machine of a developer for each test: a home directory, a project, one agent program,
and Unstuck as `unstuck init` installs it.

The programs run as an unprivileged user where the tests are run by root, because they
refuse to call every tool without asking when they are root, and because the guard must
not need more. scripts/test runs everything in a network of its own that has nothing but
loopback.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fake_models import FakeModels
from programs import PACKAGES, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
BINARY = (ROOT / os.environ.get("UNSTUCK_BIN", "target/debug/unstuck")).resolve()
# For every run and every wait. Long enough for a busy machine.
DEADLINE_SECS = 120
NOBODY = 65534
# What `unstuck hook` may take here. The product's budget is for a person who waits; a busy
# machine would miss it now and then, and an answer that is missed shifts every count.
HOOK_BUDGET_MILLIS = 30_000

AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def pytest_configure():
    # A process that leaves its parent becomes a child of this one, so that `end_children`
    # finds the local service and whatever else an agent program leaves behind.
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(PermissionError):
        start_loopback()


def start_loopback():
    """In a new network namespace even loopback is down."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", answer)[1]
        if not flags & IFF_UP:
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def end_children():
    """Ends what a test has left running."""
    own = os.getpid()
    deadline = time.monotonic() + DEADLINE_SECS
    while time.monotonic() < deadline:
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(child), 0)


@pytest.fixture(scope="session")
def tools():
    """A directory that the unprivileged user can read, with Unstuck and the programs."""
    assert BINARY.exists(), f"{BINARY} is missing: build it, or say in UNSTUCK_BIN where it is"
    for program in PROGRAMS:
        assert (PACKAGES / program.file).exists(), (
            f"{program.command} is not installed: {PACKAGES / program.file} is missing; "
            "npm ci --ignore-scripts --prefix tests/agents installs it"
        )

    def is_readable(path):
        return subprocess.run(["test", "-x", path], **AS_NOBODY).returncode == 0

    tools = Path(tempfile.mkdtemp(prefix="unstuck-tools-"))
    tools.chmod(0o755)
    for name, path in {"unstuck": BINARY, "node_modules": PACKAGES}.items():
        if is_readable(path):
            (tools / name).symlink_to(path)
        else:
            # The checkout is in a directory that only root can enter. Links cost nothing;
            # another file system needs a copy.
            if subprocess.run(["cp", "-al", path, tools / name], stderr=subprocess.DEVNULL).returncode:
                shutil.rmtree(tools / name, ignore_errors=True)
                subprocess.run(["cp", "-a", path, tools / name], check=True)
            assert is_readable(tools / name), f"the user nobody cannot read {tools / name}"
    yield tools
    shutil.rmtree(tools)


@dataclass
class Run:
    """A program that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.stdout[-4000:]}\n--- stderr\n{self.stderr[-4000:]}"


class Machine:
    def __init__(self, root, tools, program, models):
        self.root, self.tools, self.program, self.models = root, tools, program, models
        self.home, self.work = root / "home", root / "work"
        self.env = {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": f"{root}/bin:/usr/local/bin:/usr/bin:/bin",
            "TERM": "xterm-256color",
            "TMPDIR": str(root / "tmp"),
            "XDG_RUNTIME_DIR": str(root / "run"),
        } | program.environment(models.url)
        self.service = None

    def run(self, *command, **options):
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=DEADLINE_SECS, **AS_NOBODY, **options,
        )
        return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def unstuck(self, *arguments, code=0):
        """Runs Unstuck, which must end with this code. None: any."""
        done = self.run(self.root / "bin/unstuck", *arguments)
        assert code in (None, done.code), f"unstuck {arguments}: {done}"
        return done

    def objects(self, *arguments):
        """What a command of Unstuck prints as JSON."""
        return [json.loads(line) for line in self.unstuck(*arguments, "--output", "json").stdout.splitlines()]

    def agent(self, play, arguments=None):
        """Runs the agent program with a prompt, or with these arguments."""
        return self.run(self.root / "bin" / self.program.command, *(arguments or self.program.arguments(f"play:{play} please")))

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if AS_NOBODY:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", self.root], check=True)

    def configure(self, settings):
        """The user's own configuration of Unstuck."""
        self.write(self.home / ".config/unstuck/unstuck.toml", settings)

    def files(self):
        """{path: bytes} of everything in the home directory."""
        return {
            str(path.relative_to(self.home)): (path.stat().st_mode, path.read_bytes())
            for path in sorted(self.home.rglob("*"))
            if path.is_file()
        }

    def serve(self):
        """Starts the local service and waits until it listens."""
        with open(self.root / "service.log", "w") as log:
            self.service = subprocess.Popen(
                [self.root / "bin/unstuck", "serve", "--local"], cwd=self.work, env=self.env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **AS_NOBODY,
            )
        self.wait(lambda: self.run(self.root / "bin/unstuck", "sessions").code == 0, "the local service does not answer")

    def wait(self, is_true, otherwise):
        deadline = time.monotonic() + DEADLINE_SECS
        while not (found := is_true()):
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.05)
        return found

    def guard(self, *options):
        """What a person does: `unstuck init`. The service is started here, because the call
        that starts it by itself is not judged, which would shift the counts of a test."""
        self.init(*options)
        self.allow_more_time()
        self.serve()

    def allow_more_time(self):
        """Gives every hook the time that a busy machine may need: the limits which `init`
        writes are for a person who waits."""
        for path in self.home.rglob("*"):
            if path.is_file() and path.stat().st_size < 100_000 and b"unstuck" in (text := path.read_bytes()):
                more = re.sub(rb'("?timeout(?:Sec)?"?): 2(000)?\b', rb"\1: 60\2", text)
                if more != text:
                    path.write_bytes(more)

    def init(self, *options):
        """It ends with the report of `unstuck doctor`, which fails while no service runs."""
        done = self.unstuck("init", "--agent", self.program.agent, "--yes", *options, code=None)
        assert done.code in (0, 1) and not done.stderr, done
        return done

    def session(self):
        """The only session that the service has seen."""
        sessions = self.objects("sessions")
        assert len(sessions) == 1, sessions
        return sessions[0]

    def resume_command(self, session):
        """The words of the command that reopens a session, as a person is told it."""
        lines = [line.split() for line in self.unstuck("session", session).stdout.splitlines()]
        (words,) = [words for label, *words in filter(None, lines) if label == "resume"]
        return words

    def metrics(self):
        """{name with labels: value} of the local service."""
        path = next((self.root / "run").rglob("http.sock"))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /metrics HTTP/1.0\r\nhost: localhost\r\n\r\n")
            answer = connection.makefile().read()
        lines = [line.rsplit(" ", 1) for line in answer.splitlines() if line.startswith("unstuck_")]
        return {name: float(value) for name, value in lines}

    def verdicts(self):
        return self.objects("verdicts")

    def verdicts_in_order(self):
        return sorted(self.verdicts(), key=lambda verdict: verdict["verdict_id"])


PROJECT = {
    "a.txt": "hello\nworld\n",
    "b.txt": "another file\n",
    "check.sh": "echo 'assertion failed: the total is 3, expected 4' >&2\nexit 1\n",
} | {f"other{number}.txt": f"file number {number}\n" for number in range(12)}


@contextlib.contextmanager
def new_machine(tools, program, root=None):
    """A home and a project for one program; `root` is a directory that does not exist yet."""
    if root:
        root.mkdir()
    else:
        root = Path(tempfile.mkdtemp(prefix="unstuck-"))
    root.chmod(0o755)
    try:
        for name in ("home", "work", "bin", "tmp", "run"):
            (root / name).mkdir()
        (root / "run").chmod(0o700)
        (root / "bin" / program.command).symlink_to(tools / "node_modules" / program.file)
        (root / "bin/unstuck").symlink_to(tools / "unstuck")
        with FakeModels(root / "work") as models:
            machine = Machine(root, tools, program, models)
            for path, text in PROJECT.items():
                (root / "work" / path).write_text(text)
            for path, text in program.settings(models.url).items():
                machine.write(machine.home / path, text)
            machine.configure(f"[hooks]\nbudget_millis = {HOOK_BUDGET_MILLIS}\n")
            yield machine
    finally:
        end_children()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def machine(tools, program):
    with new_machine(tools, program) as machine:
        yield machine
