"""Changes the list of stores of a namespace: a store takes no new entities any more, or is removed.

Rules:
1. New entities have no fragments in a store that is drained. Entities that are there stay, and are served. If all
   stores are drained, none is treated as drained.
2. A store can be removed if it is drained, holds no fragments, and is not the last one. Its data stays where it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.membership import STORES, Membership, encode, listed_in
from busbar.catalogue.store_set import StoreSet
from busbar.model.api import EntityView
from busbar.model.errors import ArgumentError, InvalidOperation

DRAIN, UNDRAIN, REMOVE = "drain", "undrain", "remove"
NAMED = 10
"""So many entities a refusal names."""
LIST_CHANGES = (DRAIN, UNDRAIN, REMOVE)


class StoreList:
    def __init__(
        self,
        stores: StoreSet,
        home: CatalogueHome,
        emptying: Callable[[], Collection[str]],
        entities: Callable[[], Sequence[EntityView]],
    ) -> None:
        """`emptying` returns the stores of deleted fragments that still hold messages, and `entities` all that have
        fragments."""
        self.forget: Callable[[str], Awaitable[None]] | None = None
        """Forgets where a store is that was removed. None: stores cannot be removed here."""
        self._stores = stores
        self._home = home
        self._emptying = emptying
        self._entities = entities

    @property
    def _membership(self) -> Membership:
        return listed_in(self._home)

    @property
    def drained(self) -> set[str]:
        return {member.name for member in self._membership.stores if member.drained}

    def names(self) -> list[str]:
        """The stores for fragments of new entities, in their order (rule 1)."""
        drained = self.drained
        return [name for name in self._stores.names if name not in drained] or self._stores.names

    async def change(self, name: str, to: str) -> None:
        """Change the list. Raises ArgumentError, InvalidOperation, ServerBusy."""
        member = self._membership.member(name)
        if member is None:
            names = ", ".join(self._membership.names)
            raise ArgumentError(f"There is no store '{name}'; there are {names}.")
        if to == REMOVE:
            await self._remove(name)
        elif member.drained != (to == DRAIN):
            await self._write(self._membership.with_drained(name, to == DRAIN))

    async def _remove(self, name: str) -> None:
        if self.forget is None:
            raise InvalidOperation("Only a cluster of nodes can lose a store; here it can be drained.")
        host = self._stores.host(name)
        if name not in self.drained:
            raise InvalidOperation(f"The store '{name}' takes new entities. Drain it first.")
        if self._stores.routes.count(host):
            raise InvalidOperation(
                f"The store '{name}' holds fragments of {self._held(name)}. They have to be deleted first."
            )
        if name in self._emptying():
            raise InvalidOperation(
                f"The store '{name}' is being emptied of what was deleted. Try again in a moment."
            )
        if len(self._stores.hosts) == 1:
            raise InvalidOperation(f"The store '{name}' is the only one.")
        await self._write(self._membership.without(name))
        await self._stores.remove(host)
        await self.forget(name)

    def _held(self, name: str) -> str:
        """What a store holds, for an operator."""
        counts = {one.path: one.stores.count(name) for one in self._entities() if name in one.stores}
        named = [f"'{path}' ({count})" for path, count in [*counts.items()][:NAMED]]
        more = len(counts) - len(named)
        return ", ".join(named) + (f" and {more} more entities" if more else "")

    async def _write(self, membership: Membership) -> None:
        await self._home.write({STORES: encode(membership)})
