"""Moves stores between living broker processes: for balance after a change of members, and when an operator asks for it.

Rules:
1. One store moves at a time. While brokers come and go none is moved for balance, until a settle time after the last
   change of members. So a broker that keeps dying gets no stores, and a restart of all of them moves as few as possible.
2. A move that cannot be made now is tried again after the same time.
3. An operator's move is made at once, and pins the store: it is not moved for balance. If its broker ends, another one
   claims the store, as any other. It goes back when its broker is there again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from busbar.cluster.claims import StoreClaims
from busbar.cluster.failures import ChannelClosed
from busbar.model.api import ANY_BROKER
from busbar.model.errors import ArgumentError, BusbarError, ServerBusy

_log = logging.getLogger(__name__)


class StoreMoves:
    def __init__(
        self,
        claims: StoreClaims,
        members: Callable[[], Collection[str]],
        hand_over: Callable[[str, str], Awaitable[None]],
        settle_seconds: float,
    ) -> None:
        """`members` are the brokers that serve clients. `hand_over` moves a store to a broker; it raises ServerBusy or
        ChannelClosed if the store was not moved."""
        self._claims = claims
        self._members = members
        self._hand_over = hand_over
        self._settle_seconds = settle_seconds
        self._one_at_a_time = asyncio.Lock()
        self._balancing: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def members_changed(self) -> None:
        """Balance later: a broker has come or gone."""
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + self._settle_seconds
        if self._balancing is None or self._balancing.done():
            self._balancing = loop.create_task(self._balance())

    async def stop(self) -> None:
        """Move nothing any more. If a store is on its way, it is not waited for."""
        if self._balancing is not None:
            self._balancing.cancel()
            await asyncio.gather(self._balancing, return_exceptions=True)

    async def move(self, store: str, broker: str) -> None:
        """Move a store to a broker, and pin it there. Raises ArgumentError, ServerBusy."""
        owners = self._claims.owners
        if store not in owners:
            raise ArgumentError(f"There is no store '{store}'; there are {', '.join(owners)}.")
        if broker == ANY_BROKER:
            self._claims.pins.pop(store, None)
            self.members_changed()
            return
        if broker not in self._claims.brokers:
            brokers = ", ".join(self._claims.brokers)
            raise ArgumentError(f"There is no broker '{broker}'; there are {brokers}, and '{ANY_BROKER}'.")
        await self._move(store, broker)
        self._claims.pins[store] = broker
        self.members_changed()  # others make room

    async def empty(self, broker: str) -> None:
        """Move all stores of a broker to others. If some cannot be moved now, the others are, and it raises ServerBusy."""
        failed: BusbarError | None = None
        for store in self._claims.stores_of(broker):
            owner = self._claims.next_owner(store, self._members())
            try:
                if owner is not None:
                    await self._move(store, owner)
            except BusbarError as error:
                failed = error
        if failed is not None:
            raise failed

    async def balance(self) -> None:
        """Balance now, and wait for that."""
        self.members_changed()
        self._not_before = 0.0
        if self._balancing is not None:
            self._balancing.cancel()
            await asyncio.gather(self._balancing, return_exceptions=True)
        self._balancing = asyncio.get_running_loop().create_task(self._balance())
        await asyncio.gather(self._balancing, return_exceptions=True)

    async def hand_over(self, store: str, broker: str) -> None:
        """Move a store to a broker, without pinning it. Raises ServerBusy."""
        await self._move(store, broker)

    async def _move(self, store: str, broker: str) -> None:
        async with self._one_at_a_time:
            if self._claims.owners[store] == broker:
                return
            if broker not in self._members():
                raise ServerBusy(f"The broker '{broker}' is being started. Retry later.")
            owner = self._claims.owners[store]
            try:
                await self._hand_over(store, broker)
            except ChannelClosed:
                raise ServerBusy(
                    f"The broker '{owner}' of the store '{store}' has ended. Retry later."
                ) from None
            _log.info("%s was handed over from %s to %s", store, owner, broker)

    async def _balance(self) -> None:
        """Move one store after the other until no more is needed."""
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() < self._not_before:
                await asyncio.sleep(self._not_before - loop.time())
                continue
            move = self._claims.next_move(self._members())
            if move is None:
                return
            try:
                await self._move(*move)
            except BusbarError as error:
                _log.warning("%s cannot be moved to %s now: %s", *move, error)
                self._not_before = loop.time() + self._settle_seconds
