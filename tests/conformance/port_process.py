"""A process that has fragments and no gateway: it serves its port on a Unix socket until its standard input ends.

python -m tests.conformance.port_process SOCKET
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from busbar.broker.catalogue import Catalogue
from busbar.broker.host import StoreHost
from busbar.broker.host_process import Emit, HostsChannel, MakeHost
from busbar.broker.hosting import Host
from busbar.broker.port import LocalPort
from busbar.broker.remote import PortServer
from busbar.broker.remote_host import BrokerChannel, RemoteHost
from busbar.broker.stores import Stores
from busbar.model.entities import QueueDescription, TopicDescription
from busbar.model.limits import Limits
from busbar.store.memory import Disk, MemoryStore


def clock() -> int:
    return time.time_ns() // 10**6


@asynccontextmanager
async def fragments(*, over_channel: bool = False) -> AsyncIterator[LocalPort]:
    """A port with the queues of the suite. Over a channel, its store is where a broker process would have it."""
    port = LocalPort()
    nonces = itertools.count(1)
    disk = Disk()
    loop = asyncio.get_running_loop()

    def make_host(name: str, emit: Emit, fenced: Callable[[], None]) -> StoreHost:
        return StoreHost(name, lambda: MemoryStore(disk), loop, clock, lambda: next(nonces), emit, fenced)

    channel: BrokerChannel | None = None
    host: Host
    if over_channel:
        remote = RemoteHost("port", "broker-0", loop, clock, port.emit)
        channel = await channel_to(remote, make_host)
        host = remote
    else:
        host = make_host("port", port.emit, lambda: None)
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
        if channel is not None:
            channel.close()


async def channel_to(host: RemoteHost, make_host: MakeHost) -> BrokerChannel:
    """Let a host be at the other end of a pair of sockets, in this process."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    there = HostsChannel(make_host, lambda: None)
    here = BrokerChannel({host.name: host}, lambda: host.lost("its broker process ended"))
    await loop.create_unix_connection(lambda: there, sock=theirs)
    await loop.create_unix_connection(lambda: here, sock=ours)
    host.found(here)
    return here


async def _serve(path: str) -> None:
    async with fragments() as port:
        server = PortServer(port)
        await server.listen_unix(path)
        print("serving", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
