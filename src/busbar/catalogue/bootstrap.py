"""Opens the stores of a namespace: which they are, whether each is what it should be, and that all have the same catalogue.

Rules:
1. Every store that is there is opened. membership.py decides which stores belong to the namespace.
2. Stores that are required and were never there join, and become part of the list. If the list has a store that is not
   there, or is not that store, it is unavailable. It can come back at any time.
3. A majority of the stores must be there, unless an operator gives up what is lost. Then all of them get the catalogue that
   is in force (replication.py), before anything is served from them. So does a store that comes back later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from busbar.broker.host_api import StoreHost
from busbar.catalogue.membership import (
    IDENTITY,
    STORES,
    StoreCatalogue,
    check_membership,
    encode,
    new_membership,
    read_copy,
    rejection_reason,
)
from busbar.catalogue.replication import ReplicatedEntries
from busbar.catalogue.store_set import StoreSet
from busbar.model.errors import BusbarError
from busbar.store.contract import StoreError


class StoreBootstrap:
    def __init__(self, stores: StoreSet) -> None:
        self.copies = ReplicatedEntries(stores)
        self.notes: list[str] = []
        """What an operator should know of the stores that were found."""
        self.last_fragment = 0
        """The highest fragment id that any store has."""
        self._stores = stores
        self._membership = new_membership()

    async def open_all(self, wanted: Sequence[str]) -> dict[str, bytes]:
        """The entries of the catalogue. Raises StoreError if there are not enough stores."""
        entries = await self._reconcile(await self._open(), wanted)
        self.notes += [
            f"the store {host.name} is unavailable: {host.reason}"
            for host in self._stores.hosts
            if not host.is_open
        ]
        return entries

    async def admit(self, host: StoreHost, anew: bool) -> None:
        """Look at a store that has just been opened again, or re-created. Raises StoreError if it is not that store.

        If an earlier attempt to admit a re-created store failed, the store may have its identity already."""
        copy = read_copy(await host.read_catalogue())
        if anew and copy.identity is None:
            self._membership = self._membership.with_store(host.name)
            self.copies.set(STORES, encode(self._membership))
        else:
            reason = rejection_reason(host.name, copy, self._membership)
            if reason:
                raise StoreError(reason)
        await self._repair(host, copy)
        if anew:
            await self.copies.rewrite([STORES])

    async def _open(self) -> dict[str, StoreCatalogue]:
        """The copies of all stores that can be opened and read."""
        copies: dict[str, StoreCatalogue] = {}

        async def open_one(host: StoreHost) -> None:
            try:
                if not host.is_open:
                    await host.open()
                copies[host.name] = read_copy(await host.read_catalogue())
            except (StoreError, BusbarError, OSError) as error:
                await host.mark_unavailable(str(error))

        await asyncio.gather(*[open_one(host) for host in self._stores.hosts])
        if not copies and self._stores.hosts:
            raise StoreError("; ".join(host.reason for host in self._stores.hosts))
        return {name: copies[name] for name in self._stores.names if name in copies}

    async def _reconcile(self, copies: dict[str, StoreCatalogue], wanted: Sequence[str]) -> dict[str, bytes]:
        """Find out which stores make up the namespace, let new ones join, and give all the same catalogue."""
        census = check_membership(copies)
        membership = census.membership or self._membership
        for name, reason in census.refused.items():
            await self._stores.host(name).mark_unavailable(reason)
        missing = [name for name in membership.names if name not in self._stores.names]
        for name in missing:
            await self._stores.add(name).mark_unavailable("its file is missing")
        joining = census.joining + [name for name in wanted if name not in self._stores.names]
        if wanted and len(wanted) < len(membership.names):
            self.notes.append(
                f"the data directory has {len(membership.names)} stores; all of them are used, although {len(wanted)} were "
                "asked for"
            )
        for name in joining:
            if name not in copies:
                host = self._stores.add(name)
                await host.create()
                copies[name] = read_copy(await host.read_catalogue())
            membership = membership.with_store(name)
        for host in [host for host in self._stores.hosts if membership.member(host.name) is None]:
            self.notes.append(f"{host.name} is left alone: {host.reason}")
            await self._stores.remove(host)
        self._stores.sort_by(membership.names)
        self.copies.merge(copies[name].entries for name in copies if name not in census.refused)
        entries = self.copies.values
        if joining:
            self.copies.set(STORES, encode(membership))
        self._membership = membership
        self._need_majority()
        for host in self._stores.hosts:
            if host.is_open:
                try:
                    await self._repair(host, copies[host.name])
                except StoreError as error:
                    await host.mark_unavailable(str(error))
        self._need_majority()
        return entries

    def _need_majority(self) -> None:
        out = [host for host in self._stores.hosts if not host.is_open]
        if self._stores.has_majority_without(self._stores.unavailable()):
            return
        count = len(self._stores.hosts)
        reasons = "; ".join(f"{host.name}: {host.reason}" for host in out)
        raise StoreError(
            f"only {count - len(out)} of {count} stores can be used, and a majority is needed ({reasons}). Put back what is "
            "missing. A store that is lost for good can be given up, with its messages, by "
            f"`busbar stores reset {out[0].name} --stopped`"
        )

    async def _repair(self, host: StoreHost, copy: StoreCatalogue) -> None:
        """Give a store its identity and the catalogue that is in force."""
        fixes = self.copies.repairs(copy.entries)
        identity = self._membership.identity(host.name)
        if copy.identity != identity:
            fixes[IDENTITY] = encode(identity)
        if fixes:
            await host.repair_catalogue(fixes)
        self.copies.mark_repaired(host.name)
        self.last_fragment = max(self.last_fragment, copy.last_fragment)
