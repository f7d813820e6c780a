"""Installs Busbar as users do: from a wheel, without a compiler and this clone, or by `make run` in a fresh clone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
READY_SECONDS = 120.0


class Installed:
    """A virtual environment, and the programs in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        tools = directory / "no-tools"
        tools.mkdir(parents=True)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("BUSBAR_", "PYTHON"))
        }
        self.environment = inherited | {"PATH": str(tools), "CC": str(tools / "cc"), "COLUMNS": "200"}
        subprocess.run([sys.executable, "-m", "venv", str(directory / "venv")], check=True)

    def program(self, name: str) -> str:
        return str(self._directory / "venv" / "bin" / name)

    def install(self, *requirements: str) -> None:
        command = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        self.run("python", *command, "--constraint", str(CONSTRAINTS), *requirements)

    def attempt(self, name: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program(name), *arguments],
            cwd=self._directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run(self, name: str, *arguments: str, timeout: float = 300) -> str:
        """The output of a program, which must succeed."""
        done = self.attempt(name, *arguments, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serving(self, *arguments: str) -> Iterator[str]:
        """Run `busbar serve --dev` on free ports, with the sample namespace; yields the connection string."""
        command = [self.program("busbar"), "serve", "--dev", "--data", "data"]
        command += ["--port", "0", "--http-port", "0", "--tls-port", "0", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        alarm = threading.Timer(READY_SECONDS, process.kill)
        alarm.start()
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("ready "), f"it did not get ready: {first!r}"
            yield first.removeprefix("ready ").strip()
        finally:
            alarm.cancel()
            process.terminate()
            assert process.wait(timeout=30) == 0


def empty_caches(directory: Path) -> dict[str, str]:
    """An environment with empty caches for pip and npm."""
    caches = {"PIP_CACHE_DIR": "pip", "npm_config_cache": "npm", "XDG_CACHE_HOME": "xdg"}
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}
    }
    return inherited | {name: str(directory / kind) for name, kind in caches.items()}


@contextmanager
def made_and_served(clone: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run `make run` in that clone, on free ports; yields the connection string."""
    process = subprocess.Popen(
        ["make", "-s", "run", "ARGS=--port 0 --http-port 0 --tls-port 0"],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if line.startswith("ready ")), "")
        assert line, "`make run` ended before it was ready"
        yield line.removeprefix("ready ").strip()
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
