"""Opens the catalogue and the stores of a namespace: which stores they are, and whether each is what it should be.

Rules:
1. Every store that is there is opened. The list in the catalogue, and membership.py, decide which belong to the namespace.
2. If there is no catalogue yet, it is made before anything is written to a store (upgrade.py).
3. Stores that are required and were never there join: they get their identity, and then become part of the list. If the list
   has a store that is not there, or is not that store, it is unavailable. It can come back at any time.
4. A store gets the definitions that it lacks (store_definitions.py) before anything is served from it, also one that comes
   back later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from busbar.broker.host_api import StoreHost
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.membership import (
    IDENTITY,
    STORES,
    Membership,
    StoreRows,
    encode,
    listed_in,
    read_rows,
    rejection_reason,
)
from busbar.catalogue.store_definitions import StoreDefinitions
from busbar.catalogue.store_set import StoreSet
from busbar.catalogue.upgrade import REBUILD, first_content
from busbar.model.errors import BusbarError
from busbar.store.contract import NewerSchema, StoreError, StoreInUse


class StoreBootstrap:
    def __init__(self, stores: StoreSet, home: CatalogueHome, definitions: StoreDefinitions) -> None:
        self.notes: list[str] = []
        """What an operator should know of the stores that were found."""
        self.last_fragment = 0
        """The highest fragment id that any store has."""
        self._stores = stores
        self._home = home
        self._definitions = definitions
        self._found: dict[str, StoreRows] = {}
        """What the stores had when they were opened, until they are up to date."""

    @property
    def _membership(self) -> Membership:
        return listed_in(self._home)

    async def open_all(self, wanted: Sequence[str]) -> dict[str, bytes]:
        """The entries of the catalogue. Raises StoreError if the namespace cannot be served."""
        await self._open_stores()
        await self._open_home()
        await self._refuse()
        await self._join(wanted)
        for host in [host for host in self._stores.hosts if self._membership.member(host.name) is None]:
            self.notes.append(f"{host.name} is left alone: {host.reason}")
            await self._stores.remove(host)
        self._stores.sort_by(self._membership.names)
        return self._home.values

    async def bring_up_to_date(self) -> None:
        """Give all open stores their definitions. Raises StoreError if no store can be used."""
        for host in self._stores.hosts:
            if host.is_open:
                try:
                    await self._repair(host, self._found[host.name])
                except StoreError as error:
                    await host.mark_unavailable(str(error))
        self._found = {}
        out = [host for host in self._stores.hosts if not host.is_open]
        if len(out) == len(self._stores.hosts) and self._stores.needs_one:
            reasons = "; ".join(f"{host.name}: {host.reason}" for host in out)
            raise StoreError(
                f"no store can be used ({reasons}). Put back what is missing. A store that is lost for good can be given "
                f"up, with its messages, by `busbar stores reset {out[0].name} --stopped`"
            )
        self.notes += [f"the store {host.name} is unavailable: {host.reason}" for host in out]

    async def admit(self, host: StoreHost, anew: bool) -> None:
        """Look at a store that has just been opened again, or re-created. Raises StoreError if it is not that store.

        If an earlier attempt to admit a re-created store failed, the store may have its identity already."""
        found = read_rows(await host.read_definitions())
        if anew and found.identity is None:
            await self._home.write({STORES: encode(self._membership.with_store(host.name))})
        else:
            reason = rejection_reason(host.name, found, self._membership)
            if reason:
                raise StoreError(reason)
        await self._repair(host, found)

    async def _open_stores(self) -> None:
        found: dict[str, StoreRows] = {}

        async def open_one(host: StoreHost) -> None:
            try:
                if not host.is_open:
                    await host.open()
                found[host.name] = read_rows(await host.read_definitions())
            except (StoreError, BusbarError, OSError) as error:
                await host.mark_unavailable(str(error))

        await asyncio.gather(*[open_one(host) for host in self._stores.hosts])
        self._found = {name: found[name] for name in self._stores.names if name in found}
        if not self._found and self._stores.hosts and self._stores.needs_one:
            raise StoreError("; ".join(host.reason for host in self._stores.hosts))

    async def _open_home(self) -> None:
        if not await self._home.exists():
            refused = {host.name: host.reason for host in self._stores.hosts if host.name not in self._found}
            await self._home.create(first_content(self._home.name, self._found, refused))
        try:
            await self._home.open()
        except (StoreInUse, NewerSchema):
            raise
        except StoreError as error:
            raise StoreError(f"the catalogue cannot be used: {error}. If it is damaged, {REBUILD}") from error

    async def _refuse(self) -> None:
        """Keep out stores that do not belong here, and note those of the list that are not there."""
        membership = self._membership
        for name in [*self._found]:
            reason = rejection_reason(name, self._found[name], membership)
            if reason:
                del self._found[name]
                await self._stores.host(name).mark_unavailable(reason)
        for name in [name for name in membership.names if name not in self._stores.names]:
            await self._stores.add(name).mark_unavailable("its file is missing")

    async def _join(self, wanted: Sequence[str]) -> None:
        """Let new stores join. Each gets its identity before the list has it (rule 3)."""
        membership = self._membership
        if wanted and len(wanted) < len(membership.names):
            self.notes.append(
                f"the data directory has {len(membership.names)} stores; all of them are used, although {len(wanted)} were "
                "asked for"
            )
        new = [name for name in wanted if name not in self._stores.names]
        joining = [name for name in self._found if membership.member(name) is None] + new
        for name in new:
            host = self._stores.add(name)
            await host.create()
            self._found[name] = read_rows(await host.read_definitions())
        for name in joining:
            identity = self._found[name].identity
            membership = membership.with_store(name, "" if identity is None else identity.id)
            if identity is None:
                rows = {IDENTITY: encode(membership.identity(name))}
                await self._stores.host(name).repair_definitions({**rows})
        if joining:
            await self._home.write({STORES: encode(membership)})

    async def _repair(self, host: StoreHost, found: StoreRows) -> None:
        """Give a store its identity and the definitions that it lacks."""
        fixes = self._definitions.repairs(host.name, found.rows)
        identity = self._membership.identity(host.name)
        if found.identity != identity:
            fixes[IDENTITY] = encode(identity)
        if fixes:
            await host.repair_definitions(fixes)
        self.last_fragment = max(self.last_fragment, found.last_fragment)
