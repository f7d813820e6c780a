"""Brings changes of the catalogue to the broker processes: one exchange with each of them.

Rules:
1. A broker that joins gets every entity and rule, and from then on every change, in their order and with its number.
2. A change is made in the home of the catalogue before it comes here. It is one call to each broker process, however many
   of its stores it concerns. The broker process creates the fragments, writes the definitions in its stores, and puts the
   change in force at its gateway; then it replies. So when all have replied, the change is in force at every gateway.
3. The client gets its response after that. A broker that ends meanwhile is not waited for: it gets the change when it joins
   again.
4. If a store fails in which fragments were to be created, a second exchange brings the opposite change. Updates and
   deletions are never taken back.
5. Until all brokers have replied, no gateway answers a client by the change. If a gateway is asked for an entity of its last
   change, it asks the controller, which answers when all have replied (cluster_broker.py). So no client uses a fragment that
   its broker does not have yet, or an entity whose creation is taken back.
6. A broker that joins while a change is under way has got the entities before the change. It gets the change before the
   client gets its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from busbar.broker.host_api import StoreHost
from busbar.broker.inspection import FragmentCounts
from busbar.broker.refusals import STORE_FAILED
from busbar.catalogue.change import EntityChange, StoreChange
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import HostCarrier
from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.errors import BusbarError, ServerBusy
from busbar.store.contract import StoreError

AT_ONCE = 1_000
"""Entities in one frame."""


class CataloguePublisher:
    """Brings changes from the controller to the brokers. A store_set.ChangeCarrier."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self._channels: set[Channel] = set()
        """To the broker processes that have joined."""

    def add_broker(self, channel: Channel, *, is_new: bool = True) -> None:
        """Send a broker all entities, and every change from now on. One that is not new may have entities."""
        version, views = self.broker.entries()
        there = protocol.NODES.remote(channel)
        if not is_new:
            there.reload_entities(version, views)
            self._channels.add(channel)
            return
        for first in range(0, max(1, len(views)), AT_ONCE):
            there.load_entities(version, views[first : first + AT_ONCE])
        self._channels.add(channel)

    def remove_broker(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self.broker.gateway_ended(channel)

    async def inspect(self, fragments: Mapping[StoreHost, Sequence[int]]) -> dict[int, FragmentCounts]:
        """Ask what fragments hold, given by the hosts of their stores: one request to each broker process, all at once.
        Those of a broker that ends meanwhile are left out."""
        hosts = {host: group for host, group in fragments.items() if isinstance(host, RemoteStoreHost)}
        by_channel: dict[Channel, list[int]] = {}
        for host, group in hosts.items():
            if host.channel is not None:
                by_channel.setdefault(host.channel, []).extend(group)
        answers = await asyncio.gather(*[_inspect(channel, group) for channel, group in by_channel.items()])
        found = {fragment: counts for answer in answers for fragment, counts in answer.items()}
        for host, group in hosts.items():
            host.note_last_used({key: found[key].last_used for key in group if key in found})
        return found

    async def carry_out(
        self, version: int, stores: Mapping[StoreHost, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        here: dict[StoreHost, StoreChange] = {}
        told = {*self._channels}
        parts: dict[Channel, dict[str, StoreChange]] = {channel: {} for channel in told if entities}
        for host, change in stores.items():
            channel = host.note_change(change) if isinstance(host, RemoteStoreHost) else None
            if channel is None:
                here[host] = change
            else:
                parts.setdefault(channel, {})[host.name] = change
        outcomes = await asyncio.gather(
            HostCarrier().carry_out(version, here, ()),
            *[
                _apply(channel, version, part, entities if channel in told else ())
                for channel, part in parts.items()
            ],
        )
        while entities and (joined := self._channels - told):  # rule 6
            told |= joined
            await asyncio.gather(*[_apply(channel, version, {}, entities) for channel in joined])
        return {store: error for failed in outcomes for store, error in failed.items()}


async def _inspect(channel: Channel, fragments: Sequence[int]) -> dict[int, FragmentCounts]:
    try:
        return await protocol.STORES.remote(channel, protocol.ALL_STORES).inspect(fragments)
    except ChannelClosed:
        return {}


async def _apply(
    channel: Channel, version: int, stores: Mapping[str, StoreChange], entities: Sequence[EntityChange]
) -> dict[str, Exception]:
    """Make one exchange with a broker process. If it ends, or fails as a whole, all its stores have failed."""
    error: Exception
    try:
        remote = protocol.STORES.remote(channel, protocol.ALL_STORES)
        return await remote.apply_change(version, stores, entities)
    except ChannelClosed:
        error = ServerBusy(STORE_FAILED)
        error.certain = False
    except (BusbarError, StoreError) as failure:
        error = failure
    return dict.fromkeys(stores, error)
