"""Who has to hear of a change of the catalogue before it is answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine

import pytest

from busbar.catalogue.definition import decode_definition
from busbar.cluster import protocol
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.channel import Channel
from busbar.model.entities import QueueDescription
from busbar.model.errors import EntityAlreadyExists
from tests.conformance.port_process import fragments


class Listener(Channel):
    """A broker process that knows what it is told, and says so when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, bool] = {}
        self.ready = asyncio.Event()

    def handle_frame(
        self, frame: protocol.CommandsFrame | protocol.EffectsFrame | protocol.StoreStatus
    ) -> None:
        raise AssertionError(frame)

    def handle_call(self, store: str, operation: protocol.Operation) -> Coroutine[None, None, object] | None:
        if isinstance(operation, protocol.EntitySnapshot):
            for definition in operation.definitions:
                self.known[decode_definition(definition).path] = True
            return None
        assert isinstance(operation, protocol.EntityChanged)
        self.known[operation.path] = operation.definition is not None
        return self._heard()

    async def _heard(self) -> None:
        await self.ready.wait()

    def closed(self) -> None:
        pass


class Ours(Listener):
    """The controller's end, of which nothing is asked here."""


async def joined(members: CataloguePublisher) -> tuple[Listener, Ours]:
    loop = asyncio.get_running_loop()
    there, here = Listener(), Ours()
    for end, one in zip((there, here), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=one)  # type: ignore[misc]
    members.add_broker(here)
    return there, here


async def test_a_change_is_answered_when_everyone_has_heard_of_it() -> None:
    async with fragments() as port:
        members = CataloguePublisher(port)
        members.watch()
        (quick, _), (slow, far) = await joined(members), await joined(members)
        quick.ready.set()
        change = asyncio.create_task(
            members.handle_request(protocol.CREATE.request("new", QueueDescription(), None))
        )
        while not slow.known.get("new"):
            await asyncio.sleep(0.001)
        assert {"Orders", "other", "short", "news", "new"} <= quick.known.keys() & slow.known.keys()
        await asyncio.sleep(0.02)
        assert not change.done()
        assert await members.handle_request(protocol.ENTITY.request("new")), "who only looks does not wait"
        slow.ready.set()
        assert await change

        slow.ready.clear()
        change = asyncio.create_task(members.handle_request(protocol.DELETE.request("new")))
        while slow.known["new"]:
            await asyncio.sleep(0.001)
        assert not change.done()
        far.close()  # who ends is not waited for
        assert await change is None
        members.remove_broker(far)
        with pytest.raises(EntityAlreadyExists):
            await members.handle_request(protocol.CREATE.request("orders", QueueDescription(), None))
        quick.close()


async def test_the_links_of_a_broker_process_end_with_it() -> None:
    async with fragments() as port:
        members = CataloguePublisher(port)
        members.watch()
        (_, one), (_, two) = await joined(members), await joined(members)
        times = port._catalogue.usage.times
        for channel in (one, two):
            members.in_use(channel, protocol.ReportInUse(["Orders", "other"], True))
        members.in_use(one, protocol.ReportInUse(["orders"], False))
        members.remove_broker(one)
        assert times.has_links("orders") and times.has_links("other")
        members.in_use(two, protocol.ReportInUse(["ORDERS"], False))
        assert not times.has_links("orders")
        members.remove_broker(two)
        assert not times.has_links("other")
        for channel in (one, two):
            channel.close()
