"""The process behind a NamespaceServer: it reads requests from its input, a line of JSON each, and answers each by a line.

It ends with its input. All namespaces share a certificate, and each has a data directory and a task of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from busbar.app.certificates import TlsFiles, own_files
from busbar.app.config import ConfigError
from busbar.app.server import ServeConfig, ServeError, serve
from busbar.app.store_places import WantedStores
from busbar.app.system import loop_factory

MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class _Served:
    """A namespace: its task, what stops it, and its data directory."""

    task: asyncio.Task[None]
    stop: asyncio.Event
    directory: Path


class NamespaceProcess:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tls: TlsFiles = own_files(directory, ())
        self._served: dict[int, _Served] = {}
        self._next = 1

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if "stop" in request:
                await self._stop(request["stop"])
                return {}
            return await self._start(request["start"], request["memory"])
        except (ServeError, ConfigError, OSError) as error:
            return {"error": str(error)}

    async def _start(self, config: str, in_memory: bool) -> dict[str, Any]:
        number, self._next = self._next, self._next + 1
        directory = Path(
            tempfile.mkdtemp(prefix="busbar-test-", dir=_memory() if in_memory else self._directory)
        )
        file = directory / "Config.json"
        file.write_text(config, "utf-8")
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()

        def announce(line: str) -> None:
            if line.startswith("ready ") and not ready.done():
                ready.set_result(line.removeprefix("ready "))

        settings = ServeConfig(
            directory / "data",
            file,
            port=0,
            http_port=0,
            tls_port=0,
            dev=True,
            tls_cert=self._tls.certificate,
            tls_key=self._tls.key,
            stores=WantedStores(1),
        )
        task = asyncio.create_task(serve(settings, announce, stop))
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            shutil.rmtree(directory, ignore_errors=True)
            await task  # raises the reason
        self._served[number] = _Served(task, stop, directory)
        connection_string: str = ready.result()
        port = int(connection_string.partition(";")[0].rpartition(":")[2].strip("/"))
        return {
            "number": number,
            "connection_string": connection_string,
            "port": port,
            "authority": str(self._tls.ca),
        }

    async def _stop(self, number: int) -> None:
        served = self._served.pop(number, None)
        if served is None:
            return
        served.stop.set()
        try:
            await served.task
        finally:
            shutil.rmtree(served.directory, ignore_errors=True)

    async def close(self) -> None:
        await asyncio.gather(*[self._stop(number) for number in list(self._served)])


def _memory() -> Path | None:
    """A file system in memory; None: the usual one for temporary files."""
    return MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None


async def _run(directory: Path) -> None:
    process = NamespaceProcess(directory)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(json.dumps(await process.answer(json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        await process.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="busbar-tests-") as directory,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_run(Path(directory)))


if __name__ == "__main__":
    main()
