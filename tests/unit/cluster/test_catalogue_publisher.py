"""Who has to hear of a change of the catalogue before it is answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from busbar.catalogue.change import EntityChange, StoreChange
from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.channel import Channel
from busbar.model.api import EntityView
from busbar.model.entities import QueueDescription
from busbar.model.errors import EntityAlreadyExists, EntityNotFound
from harness.waiting import until
from tests.conformance.port_process import fragments


class Listener(Channel):
    """A broker process that knows what it is told, and says so when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, bool] = {}
        self.versions: list[int] = []
        self.ready = asyncio.Event()

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        raise AssertionError(frame)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return (protocol.STORES if target == protocol.ALL_STORES else protocol.NODES), self

    def load_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        self.versions.append(version)
        for view in entities:
            self.known[view.path] = True

    async def apply_change(
        self, version: int, stores: Mapping[str, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        self.versions.append(version)
        for path, view in entities:
            self.known[path] = view is not None
        await self.ready.wait()
        return {}

    def closed(self) -> None:
        pass


class Ours(Listener):
    """The controller's end, of which nothing is asked here."""


def publisher(port: LocalBroker) -> CataloguePublisher:
    members = CataloguePublisher(port)
    assert port._stores is not None
    port._stores.carrier = members
    return members


async def joined(members: CataloguePublisher) -> tuple[Listener, Ours]:
    loop = asyncio.get_running_loop()
    there, here = Listener(), Ours()
    for end, one in zip((there, here), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=one)  # type: ignore[misc]
    members.add_broker(here)
    return there, here


async def test_a_change_is_answered_when_everyone_has_heard_of_it() -> None:
    async with fragments() as port:
        members = publisher(port)
        (quick, _), (slow, far) = await joined(members), await joined(members)
        quick.ready.set()
        change = asyncio.create_task(port.create("new", QueueDescription()))
        await until(lambda: slow.known.get("new"))
        assert {"Orders", "other", "short", "news", "new"} <= quick.known.keys() & slow.known.keys()
        await asyncio.sleep(0.02)
        assert not change.done()
        assert (await port.entity("orders")).fragments, "who only looks does not wait"
        asking = asyncio.create_task(port.decided_entity("NEW"))
        with pytest.raises(EntityNotFound):
            await port.entity("new")
        await asyncio.sleep(0.02)
        assert not asking.done(), "a gateway that knows of the change is answered when it is decided"
        slow.ready.set()
        assert await change == await asking

        slow.ready.clear()
        deletion = asyncio.create_task(port.delete("new"))
        await until(lambda: not slow.known["new"])
        assert not deletion.done()
        far.close()  # who ends is not waited for
        await deletion
        members.remove_broker(far)
        for one in (quick, slow):
            assert one.versions == sorted({*one.versions}) and len(one.versions) == 3, "changes are numbered"
        with pytest.raises(EntityAlreadyExists):
            await port.create("orders", QueueDescription())
        quick.close()


async def test_the_links_of_a_broker_process_end_with_it() -> None:
    async with fragments() as port:
        members = publisher(port)
        (_, one), (_, two) = await joined(members), await joined(members)
        times = port._catalogue.usage.times
        for channel in (one, two):
            port.in_use(["Orders", "other"], channel)
        port.out_of_use(["orders"], one)
        members.remove_broker(one)
        assert times.has_links("orders") and times.has_links("other")
        port.out_of_use(["ORDERS"], two)
        assert not times.has_links("orders")
        members.remove_broker(two)
        assert not times.has_links("other")
        for channel in (one, two):
            channel.close()
