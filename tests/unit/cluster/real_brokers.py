"""A namespace with real broker processes, whose controller is in the process of the test, which sees every frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from busbar.app import server
from busbar.app.certificates import own_files, server_context
from busbar.app.config import parse_config
from busbar.app.data_directory import DataDirectory
from busbar.app.store_places import WantedStores
from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster.channel import Channel
from busbar.cluster.protocol import Call, CallError, CallReply, Frame
from busbar.cluster.supervisor import BrokerProcess


@dataclass(slots=True)
class Exchanges:
    """What crossed the channel between the controller and one broker, except for pings."""

    requests: list[str] = field(default_factory=list)
    replies: int = 0


class RealBrokers:
    """The controller's side of a running namespace."""

    def __init__(self, running: server._Broker) -> None:
        assert running.processes is not None
        self.catalogue = running.catalogue
        self.port: LocalBroker = running.port
        self.stores = running.stores
        self.processes: list[BrokerProcess] = running.processes._brokers

    def pid(self, number: int) -> int:
        process = self.processes[number]._process
        assert process is not None
        return process.pid

    @contextmanager
    def counted(self) -> Iterator[list[Exchanges]]:
        """Count the requests and replies between the controller and each broker meanwhile."""
        counts = []
        channels = []
        for process in self.processes:
            assert process.channel is not None
            counts.append(_count(process.channel))
            channels.append(process.channel)
        try:
            yield counts
        finally:
            for channel in channels:
                del channel.write, channel._take


def _count(channel: Channel) -> Exchanges:
    found = Exchanges()
    write, take = channel.write, channel._take
    pings: set[int] = set()

    def counting_write(frame: Frame) -> None:
        if isinstance(frame, Call):
            if name_of(frame) == "ping":
                pings.add(frame.number)
            else:
                found.requests.append(name_of(frame))
        elif not isinstance(frame, CallReply | CallError):
            found.requests.append(type(frame).__name__)
        write(frame)

    def counting_take(frame: Frame) -> None:
        if isinstance(frame, CallReply | CallError):
            found.replies += frame.number not in pings
        take(frame)

    channel.write = counting_write  # type: ignore[method-assign]
    channel._take = counting_take  # type: ignore[method-assign]
    return found


def name_of(call: Call) -> str:
    return call.method


@asynccontextmanager
async def real_brokers(data: Path, brokers: int = 2, stores: int = 4) -> AsyncIterator[RealBrokers]:
    """A namespace in a directory, with gateways that are open in every broker."""
    directory = DataDirectory(data)
    config = server.ServeConfig(data=data, brokers=brokers, stores=WantedStores(stores))
    namespace = parse_config("{}", "no configuration")
    tls = own_files(data, ["localhost"])
    try:
        async with server._broker(directory, namespace, config, [], asyncio.Event()) as running:
            edge = await server._edge(running, [], namespace.limits, tls, server_context(tls))
            try:
                yield RealBrokers(running)
            finally:
                await edge.stop()
    finally:
        directory.release()
