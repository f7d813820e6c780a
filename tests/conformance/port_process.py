"""A process that has fragments and no gateway: it serves its port on a Unix socket until its standard input ends.

python -m tests.conformance.port_process SOCKET
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from busbar.broker.catalogue import Catalogue
from busbar.broker.host import StoreHost
from busbar.broker.port import LocalPort
from busbar.broker.remote import PortServer
from busbar.broker.stores import Stores
from busbar.model.entities import QueueDescription, TopicDescription
from busbar.model.limits import Limits
from busbar.store.memory import Disk, MemoryStore


@asynccontextmanager
async def fragments() -> AsyncIterator[LocalPort]:
    """A port with the queues of the suite."""
    port = LocalPort()
    nonces = itertools.count(1)
    disk = Disk()
    loop = asyncio.get_running_loop()
    host = StoreHost(
        "port",
        lambda: MemoryStore(disk),
        loop,
        lambda: time.time_ns() // 10**6,
        lambda: next(nonces),
        port.emit,
    )
    stores = Stores([host])
    catalogue = Catalogue(stores, Limits(min_lock_duration=50))
    port.serve(stores, catalogue)
    await host.open()
    await catalogue.load()
    await catalogue.create("Orders", QueueDescription())
    await catalogue.create("other", QueueDescription())
    await catalogue.create("short", QueueDescription(lock_duration=100))
    await catalogue.create("news", TopicDescription())
    try:
        yield port
    finally:
        await host.drain(5)
        await catalogue.close()
        await host.close()


async def _serve(path: str) -> None:
    async with fragments() as port:
        server = PortServer(port)
        await server.listen_unix(path)
        print("serving", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
