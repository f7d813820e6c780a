"""A process that has a namespace and no gateway: others have what they have of it over two channels, until its input ends.

python -m tests.conformance.port_process CATALOGUE FRAGMENTS: the descriptors of two sockets, for what they are named after.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from busbar.broker.dispatcher import FragmentRoutes
from busbar.broker.host_api import StoreHost
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.cluster.broker_connection import BrokerConnection
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.controller_connection import ControllerConnection, Emit, MakeHost
from busbar.cluster.peer_server import PeerServer
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.entities import QueueDescription, TopicDescription
from busbar.model.limits import Limits
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import Disk, MemoryStore


def clock() -> int:
    return time.time_ns() // 10**6


@asynccontextmanager
async def fragments(*, over_channel: bool = False) -> AsyncIterator[LocalBroker]:
    """A port with the queues of the suite. Over a channel, its store is where a broker process would have it."""
    port = LocalBroker()
    nonces = itertools.count(1)
    disk = Disk()
    loop = asyncio.get_running_loop()

    def make_host(name: str, emit: Emit, fenced: Callable[[], None]) -> LocalStoreHost:
        return LocalStoreHost(
            name, lambda: MemoryStore(disk), loop, clock, lambda: next(nonces), emit, fenced
        )

    channel: BrokerConnection | None = None
    host: StoreHost
    if over_channel:
        remote = RemoteStoreHost("port", "broker-0", loop, clock, port.dispatch)
        channel = await channel_to(remote, make_host)
        host = remote
    else:
        host = make_host("port", port.dispatch, lambda: None)
    stores = StoreSet([host])
    home = CatalogueHome(CatalogueDisk().location, loop)
    catalogue = Catalogue(stores, home, Limits(min_lock_duration=50))
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


async def channel_to(host: RemoteStoreHost, make_host: MakeHost) -> BrokerConnection:
    """Let a host be at the other end of a pair of sockets, in this process."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    there = ControllerConnection(make_host, lambda: None)
    here = BrokerConnection({host.name: host}, lambda: host.disconnected("its broker process ended"))
    await loop.create_unix_connection(lambda: there, sock=theirs)
    await loop.create_unix_connection(lambda: here, sock=ours)
    host.attach_channel(here)
    await host.restore()
    return here


async def _serve(catalogue: int, commands: int) -> None:
    """As the serving process does for a broker process, and a broker process for another one."""
    loop = asyncio.get_running_loop()
    async with fragments() as port:
        members = CataloguePublisher(port)
        assert port._stores is not None
        port._stores.carrier = members
        ended = asyncio.Event()
        to_member = BrokerConnection({}, ended.set, port)
        await loop.create_unix_connection(lambda: to_member, sock=socket.socket(fileno=catalogue))
        members.add_broker(to_member)
        assert isinstance(port.routes, FragmentRoutes)
        host = port.routes.sink_of((await port.entity("orders")).fragments[0])
        assert host is not None
        served = PeerServer(port, lambda: [host], lambda _: None)
        await loop.create_unix_connection(lambda: served, sock=socket.socket(fileno=commands))
        await ended.wait()
        served.close()


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:])))
