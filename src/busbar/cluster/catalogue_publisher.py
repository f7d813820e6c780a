"""The catalogue, as broker processes have it: each knows all entities, and all know the same when a change is answered.

Rules:
1. Who joins is told of every entity, and from then on of every change, in their order.
2. A change that a gateway asked for is answered when everyone who is there has heard of it: whoever hears the answer finds
   the change in force at every gateway. Who ends meanwhile is not waited for.
"""

from __future__ import annotations

import asyncio

import msgspec

from busbar.catalogue.definition import encode_definition
from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster import protocol
from busbar.cluster.channel import Channel
from busbar.model.api import EntityView

AT_ONCE = 1_000
"""Entities in one frame."""


class CataloguePublisher:
    """In the controller."""

    def __init__(self, port: LocalBroker) -> None:
        self._port = port
        self._channels: set[Channel] = set()
        self._unacknowledged: set[asyncio.Future[msgspec.Raw]] = set()

    def watch(self) -> None:
        """Begin, before anyone joins."""
        self._port.watch(self._changed)

    def add_broker(self, channel: Channel) -> None:
        """Send a broker all entities, and every change from now on."""
        definitions = [encode_definition(view) for view in self._port.entities()]
        for first in range(0, len(definitions), AT_ONCE):
            channel.notify("", protocol.EntitySnapshot(definitions[first : first + AT_ONCE]))
        self._channels.add(channel)

    def remove_broker(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self._port.gateway_ended(channel)

    async def handle_request(self, request: protocol.CatalogueRequest) -> object:
        """Do what a gateway asks for. Raises what the broker raises."""
        answer = await protocol.perform(self._port, request)
        if request.method in protocol.CATALOGUE_CHANGES and self._unacknowledged:
            await asyncio.wait([*self._unacknowledged])
        return answer

    def in_use(self, channel: Channel, frame: protocol.ReportInUse) -> None:
        if frame.attached:
            self._port.in_use(frame.paths, channel)
        else:
            self._port.out_of_use(frame.paths, channel)

    def _changed(self, path: str, view: EntityView | None) -> None:
        changed = protocol.EntityChanged(path, None if view is None else encode_definition(view))
        for channel in self._channels:
            heard = channel.start_call("", changed)
            self._unacknowledged.add(heard)
            heard.add_done_callback(self._heard)

    def _heard(self, answer: asyncio.Future[msgspec.Raw]) -> None:
        self._unacknowledged.discard(answer)
        answer.exception()  # rule 2: that nobody is there any more is no failure of the change
