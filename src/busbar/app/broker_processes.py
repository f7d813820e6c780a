"""The broker processes of `busbar serve --brokers N`: started, started again when one dies, and ended.

Rules:
1. Every store has one owner: the broker with the number of the store modulo N, so that consecutive fragments of a
   partitioned entity, which lie in consecutive stores, are handled by different brokers.
2. The channel to a broker is a pair of sockets without a name. A broker lives as long as its channel: however the serving
   process ends, its brokers end with it.
3. A broker also holds the lock of the data directory, so that nobody else is served from it while one is left.
4. A broker that dies is started again after a short pause, which grows while it dies at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from busbar.broker.remote_host import ENDED, BrokerChannel, RemoteHost

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SETTLED_SECONDS = 10.0
"""Who has lived so long did not die of being started."""
END_SECONDS = 5.0

_log = logging.getLogger(__name__)


class BrokerProcess:
    def __init__(self, name: str, directory: Path, lock: int) -> None:
        """`lock` is the descriptor by which the data directory is held."""
        self.name = name
        self.hosts: dict[str, RemoteHost] = {}
        self._directory = directory
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: BrokerChannel | None = None
        self._started = 0.0
        self._pause = FIRST_PAUSE
        self._stopping = False
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._spawn(theirs.fileno())
        loop = asyncio.get_running_loop()
        self._started = loop.time()
        channel = BrokerChannel(self.hosts, self._ended)
        await loop.create_unix_connection(lambda: channel, sock=ours)
        self._channel = channel
        for host in self.hosts.values():
            host.found(channel)

    def _spawn(self, channel: int) -> None:
        # It imports from where this process does, and not from the directory that somebody happened to start it in.
        program = [sys.executable, "-P", "-m", "busbar.app.broker_program"]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [*program, self.name, str(self._directory), str(channel)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=(channel, self._lock),
        )

    def own(self, host: RemoteHost) -> None:
        """One more store is this broker's."""
        self.hosts[host.name] = host
        if self._channel is not None and not self._channel.is_lost:
            host.found(self._channel)

    async def stop(self) -> None:
        """All its stores are closed."""
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()
        await self._reap(END_SECONDS)

    def _ended(self) -> None:
        if self._stopping:
            return
        for host in self.hosts.values():
            host.lost(ENDED)
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        """Rule 4."""
        loop = asyncio.get_running_loop()
        self._channel = None
        code = await self._reap(0.5)
        _log.error("%s ended with code %s and is started again", self.name, code)
        if loop.time() - self._started > SETTLED_SECONDS:
            self._pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            try:
                await self.start()
                return
            except OSError as error:
                _log.error("%s cannot be started: %s", self.name, error)

    async def _reap(self, patience: float) -> int | None:
        """Its exit code. Whoever is there without a channel is of no use, and may hold stores."""
        process = self._process
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(process.wait, patience)
        process.kill()
        return await asyncio.to_thread(process.wait)


class BrokerProcesses:
    def __init__(self, count: int, directory: Path, lock: int) -> None:
        self._brokers = [BrokerProcess(f"broker-{number}", directory, lock) for number in range(count)]

    async def start(self) -> None:
        await asyncio.gather(*[broker.start() for broker in self._brokers])

    async def stop(self) -> None:
        await asyncio.gather(*[broker.stop() for broker in self._brokers])

    def owner(self, store: str) -> BrokerProcess:
        """Rule 1."""
        number = re.search(r"\d+$", store)
        return self._brokers[int(number[0]) % len(self._brokers) if number is not None else 0]
