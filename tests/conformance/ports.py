"""Ports to try the suites on: fragments of this process, and fragments of another one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from busbar.broker.remote import RemotePort

ROOT = Path(__file__).resolve().parents[2]


def start_fragments(socket: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.port_process", socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


@asynccontextmanager
async def other_process(directory: Path) -> AsyncIterator[RemotePort]:
    socket = str(directory / "port.sock")
    process = start_fragments(socket)
    try:
        assert process.stdout is not None
        line = await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        assert line == b"serving\n"
        port = await RemotePort.over_unix_socket(socket)
        port.process = process  # type: ignore[attr-defined]  # one test ends it
        yield port
        port.close()
    finally:
        _, _ = process.communicate(timeout=20)
    assert process.returncode in (0, -9)
