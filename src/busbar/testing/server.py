"""Namespaces for tests: one process serves all of them, each on a port of its own and with data of its own.

1. The process is started with the first namespace, and ends with its NamespaceServer, or with the program.
2. A namespace is empty, or has the entities of a configuration in the form of the emulator's Config.json.
3. What a namespace has stored is deleted with it. In memory nothing is written to a disk, if the system has a file system
   in memory (/dev/shm).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

Config = Mapping[str, Any] | Path | str | None
"""The document of a Config.json, or its file; None: no entities."""


class ServingFailed(Exception):
    """A namespace cannot be served; the text has the reason."""


@dataclass(frozen=True, slots=True)
class ServedNamespace:
    """A namespace that is being served."""

    number: int
    connection_string: str = field(repr=False)
    """For the clients of messaging and of management, without TLS."""
    port: int
    """It takes AMQP, AMQP over WebSockets, HTTP, and TLS."""
    authority: Path
    """The certificate authority, in PEM, for clients that use TLS."""


class NamespaceServer:
    """Starts and stops namespaces. It may be used by several threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def start(self, config: Config = None, *, in_memory: bool = False) -> ServedNamespace:
        """Serve a new namespace. Raises ServingFailed."""
        answer = self._ask({"start": _document(config), "memory": in_memory})
        return ServedNamespace(
            answer["number"], answer["connection_string"], answer["port"], Path(answer["authority"])
        )

    def stop(self, namespace: ServedNamespace) -> None:
        """Stop a namespace and delete what it has stored."""
        self._ask({"stop": namespace.number})

    @contextmanager
    def namespace(self, config: Config = None, *, in_memory: bool = False) -> Iterator[ServedNamespace]:
        """A namespace for the time of a `with` block."""
        served = self.start(config, in_memory=in_memory)
        try:
            yield served
        finally:
            self.stop(served)

    def close(self) -> None:
        """Stop all namespaces, and end the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.communicate()  # it ends with its input

    def __enter__(self) -> NamespaceServer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        with self._lock:
            if self._process is None:
                self._process = _spawn()
            requests, answers = _pipes(self._process)
            try:
                requests.write(json.dumps(request) + "\n")
                requests.flush()
                line = answers.readline()
            except BrokenPipeError:
                line = ""
            if not line:
                code = self._process.wait()
                self._process = None
                raise ServingFailed(f"the process of the namespaces has ended with code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ServingFailed(answer["error"])
        return answer


def _spawn() -> subprocess.Popen[str]:
    # It imports from where this process does, and not from the directory that it was started in.
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "busbar.testing.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for the tests: it ends after them
    )


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


def _document(config: Config) -> str:
    """The text of a configuration. Raises ServingFailed."""
    if config is None:
        return "{}"
    if isinstance(config, Mapping):
        return json.dumps(config)
    try:
        return Path(config).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServingFailed(f"the configuration {config} cannot be read: {error}") from None
