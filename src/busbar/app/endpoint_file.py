"""DIR/endpoint.json: the address of the instance that serves a data directory, for commands on the same machine.

It exists from the moment connections are accepted until a clean stop. After a crash it is stale, and in a copy of the
directory it describes the original. So it is valid only if `is_of` confirms that the holder of the directory's lock wrote it
for this very directory. It contains the key, so it is readable by its owner only. It is written under a temporary name and
renamed: a reader gets a whole file or none.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from busbar.app.data_directory import instance_serving
from busbar.app.private_files import write_file

FILE_NAME = "endpoint.json"


@dataclass(frozen=True, slots=True)
class RunningEndpoint:
    """How to reach a running instance."""

    host: str
    """As a client of this machine writes it, brackets around IPv6 included."""
    port: int
    http_port: int
    tls_port: int
    pid: int
    key_name: str
    key: str = field(repr=False)
    ca: str | None = None
    """The file of the certificate authority to trust, if it is the instance's own."""
    instance: str = ""
    """The id of the claim of the data directory."""
    device: int = 0
    inode: int = 0
    """Of the data directory, which a copy does not share (one of hard links shares all its files)."""

    @property
    def is_running(self) -> bool:
        """Whether there is a process of that number (it may be another one by now)."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            pass
        return True

    def is_of(self, directory: Path) -> bool:
        """Whether the process that serves this directory wrote it. Raises OSError if that cannot be determined."""
        found = directory.stat()
        serving = instance_serving(directory)
        return (
            bool(self.instance)
            and serving == self.instance
            and (self.device, self.inode) == (found.st_dev, found.st_ino)
        )


def write_endpoint(directory: Path, endpoint: RunningEndpoint) -> None:
    write_file(directory / FILE_NAME, json.dumps(asdict(endpoint), indent=2).encode() + b"\n")


def read_endpoint(directory: Path) -> RunningEndpoint | None:
    """Read the file; None if there is none. Raises ValueError for a file of another format, OSError if it cannot be read."""
    file = directory / FILE_NAME
    try:
        found = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    numbers, texts = ("port", "http_port", "tls_port", "pid"), ("host", "key_name", "key")
    if (
        not isinstance(found, dict)
        or not all(isinstance(found.get(name), int) for name in numbers)
        or not all(isinstance(found.get(name), str) for name in texts)
    ):
        raise ValueError(f"{file} does not describe a running Busbar")
    ca = found.get("ca")
    return RunningEndpoint(
        host=found["host"],
        port=found["port"],
        http_port=found["http_port"],
        tls_port=found["tls_port"],
        pid=found["pid"],
        key_name=found["key_name"],
        key=found["key"],
        ca=ca if isinstance(ca, str) else None,
        instance=str(found.get("instance", "")),
        device=_integer(found.get("device")),
        inode=_integer(found.get("inode")),
    )


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def remove_endpoint(directory: Path) -> None:
    """Remove the file at a clean stop; idempotent."""
    with suppress(FileNotFoundError):
        (directory / FILE_NAME).unlink()
