"""The process of a peer: started with a log, awaited until its port answers, stopped with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.measured import processor_time

START_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(process: int) -> list[int]:
    """A process and all processes below it that still run."""
    found = [process]
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


def tree_seconds(process: int) -> float:
    """The processor time of a process and all below it, also of children that have ended."""
    total = 0.0
    for each in descendants(process):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += processor_time(each)
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return total + (int(fields[13]) + int(fields[14])) / _TICKS


class PeerProcess:
    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [*command]
        self._directory = directory
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, port: int) -> None:
        """Returns when the port accepts a connection."""
        log = self._directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = log.read_text(errors="replace")[-1000:]
                raise RuntimeError(f"{self._command[0]} did not start: {said}")
            time.sleep(0.05)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        family = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in family[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def cpu_seconds(self) -> float:
        return tree_seconds(self.pid)
