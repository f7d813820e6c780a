"""A real Busbar in its own process, as a user starts it. Every test that uses a socket uses this."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Properties = Mapping[str, object]

BROKERS = os.environ.get("BUSBAR_TEST_BROKERS", "")
"""The number of broker processes for every server without a number of its own: `make deep` repeats suites with several."""
READY_SECONDS = 120.0
PATIENCE = {"handshake_timeout": 120_000, "token_timeout": 120_000, "first_link_timeout": 120_000}
"""Limits for servers whose clients share an event loop with tests that block it: the server must not close a client that is
still being opened as idle."""


def config_text(
    queues: Mapping[str, Properties],
    limits: Mapping[str, object] | None = None,
    topics: Sequence[Properties] = (),
    rules: Sequence[Properties] = (),
) -> str:
    """The emulator's Config.json for these queues and topics, the limits that a test lowers, and authorization rules."""
    namespace = {
        "Name": "busbar",
        "Queues": [{"Name": name, "Properties": dict(properties)} for name, properties in queues.items()],
        "Topics": [*topics],
    }
    document: dict[str, Any] = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}
    own: dict[str, object] = {}
    if limits:
        own["Limits"] = dict(limits)
    if rules:
        own["AuthorizationRules"] = [*rules]
    if own:
        document["Busbar"] = own
    return json.dumps(document, indent=2)


class ServerDied(Exception):
    """The process ended before it was ready; the text is its output."""


class Busbar:
    """`busbar serve` on a data directory; it can be stopped, killed and started again on the same data."""

    def __init__(
        self,
        data: Path,
        config: str | None = None,
        *,
        key: str = "SAS_KEY_VALUE",
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "busbar"),
    ) -> None:
        self.data = data
        self.key = key
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._prefix = prefix
        self._program = program  # another program can simulate a fault in the store
        self._config: Path | None = None
        if config is not None:
            self._config = data.parent / f"{data.name}-Config.json"
            self._config.write_text(config)
        self.process: subprocess.Popen[str] | None = None
        self.connection_string = ""
        self.port = 0
        self._errors: list[str] = []

    def start(self) -> Busbar:
        command = [*self._prefix, sys.executable, *self._program, "serve", "--data", str(self.data)]
        command += ["--port", str(self.port), "--http-port", "0", "--tls-port", "0"]
        command += ["--key-name", "RootManageSharedAccessKey", *self._arguments]
        if BROKERS and "--brokers" not in self._arguments:
            command += ["--brokers", BROKERS]
        if "--dev" not in self._arguments:  # which uses the emulator's key
            command += ["--key", self.key]
        if self._config is not None:
            command += ["--config", str(self._config)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._environment},
        )
        # A server that never gets ready must fail the test, not hang it.
        alarm = threading.Timer(READY_SECONDS, self.process.kill)
        alarm.start()
        self._errors = []
        threading.Thread(target=self._collect_errors, args=(self.process,), daemon=True).start()
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                if line.startswith("ready "):
                    self.connection_string = line.removeprefix("ready ").strip()
                    break
            else:
                self.process.wait()
                raise ServerDied(f"exit code {self.process.returncode}\n{self.error_text}")
        finally:
            alarm.cancel()
        found = re.search(r"Endpoint=sb://[^;]*:(\d+)", self.connection_string)
        assert found is not None, self.connection_string
        self.port = int(found.group(1))
        return self

    def _collect_errors(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._errors.append(line)

    @property
    def error_text(self) -> str:
        return "".join(self._errors)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> int:
        """Stop it as Ctrl-C does; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with `kill -9`."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        process = self.process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
        try:
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self.process = None
        return code

    def processes(self) -> list[int]:
        """The controller and its brokers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [self.pid, *map(int, children.split())]

    def resident_bytes(self) -> int:
        """Memory of all its processes."""
        return sum(map(resident_bytes_of, self.processes()))

    def descriptors(self) -> list[str]:
        """The targets of the open file descriptors of all its processes."""
        found: list[str] = []
        for process in self.processes():
            for name in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    found.append(os.readlink(f"/proc/{process}/fd/{name}"))
        return found


def resident_bytes_of(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {process} has no VmRSS")


@contextmanager
def serving(
    queues: Mapping[str, Properties] | None = None,
    limits: Mapping[str, object] | None = None,
    *,
    topics: Sequence[Properties] = (),
    rules: Sequence[Properties] = (),
    config: str | None = None,
    checked: bool = False,
    **options: Any,
) -> Iterator[Busbar]:
    """Run a server with these entities, or with those of a `config`, for the time of a `with` block, in a directory of its
    own.

    A `checked` one must end with code 0, and must not have logged a traceback.
    """
    text = config_text(queues or {}, limits, topics, rules) if config is None else config
    with tempfile.TemporaryDirectory(prefix="busbar-test-") as directory:
        server = Busbar(Path(directory) / "data", text, **options).start()
        try:
            yield server
        except BaseException:
            server.stop()
            raise
        code = server.stop()
    if checked:
        assert code == 0, server.error_text
        assert "Traceback" not in server.error_text, server.error_text
