"""The entries of the catalogue, with a copy of each in every store.

Rules:
1. Every entry has the version of the change that wrote it, also one that was deleted (a tombstone). A change is one
   transaction in each store, with one version for all its entries.
2. A change is made when a majority of the stores has it, and every store that holds a fragment of what it is about. If that
   cannot be, nothing is sent. If it fails in the middle, what was in force before is written again, and brokers get the
   opposite change. In both cases the client gets an error after which it can retry.
3. At the start the newest version of each entry that any store has is taken. So a change that was cut short is finished if
   one of the stores that are there has it. Otherwise nothing of it is left. This holds for all its entries together, since
   they are in one transaction.
4. Every start takes a term, which is written to a majority of the stores before anything is changed. So versions of
   different starts are never equal. A change that only a store has that was unavailable at the start was never made. When
   that store comes back, what is in force is written to it.
5. A store that is open has what is in force, or the entries that it lacks are noted here and written with the next change.
6. A tombstone goes when every store has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from busbar.broker.host_api import Rows
from busbar.catalogue.change import BrokerUpdate
from busbar.catalogue.store_set import StoreSet
from busbar.catalogue.versions import VersionedEntry, decode_entry, encode_entry
from busbar.model.errors import ServerBusy

TERM_BITS = 32
TERM = "term"

NO_UPDATE = BrokerUpdate()


class ReplicatedEntries:
    """The entries that are in force, and which stores lack some of them."""

    def __init__(self, stores: StoreSet) -> None:
        self._stores = stores
        self._entries: dict[str, VersionedEntry] = {}
        self._version = 0
        self._stale: dict[str, set[str]] = {}  # by store: entries that it lacks although it is open
        self._tombstones: set[str] = set()  # that every store has

    @property
    def values(self) -> dict[str, bytes]:
        return {name: entry.value for name, entry in self._entries.items() if entry.value is not None}

    def merge(self, copies: Iterable[Mapping[str, bytes]]) -> None:
        """Take the newest version of each entry of all stores, and a term for this start. Comes before anything else."""
        for copy in copies:
            for name, encoded in copy.items():
                entry = decode_entry(encoded)
                known = self._entries.get(name)
                if known is None or entry.version > known.version:
                    self._entries[name] = entry
        newest = max((entry.version for entry in self._entries.values()), default=0)
        self._version = ((newest >> TERM_BITS) + 1) << TERM_BITS
        self._entries[TERM] = VersionedEntry(self._version, b"")

    def set(self, name: str, value: bytes) -> None:
        """Change an entry here; the stores get it when they are brought up to date."""
        self._entries[name] = VersionedEntry(self._next(), value)

    async def rewrite(self, names: Iterable[str]) -> None:
        """Write entries that were `set` to all open stores. A store that fails is repaired when it comes back."""
        await self._write_everywhere(names, ())

    def repairs(self, copy: Mapping[str, bytes]) -> dict[str, bytes | None]:
        """The rows that make a store's copy equal to what is in force."""
        fixes: dict[str, bytes | None] = {}
        for name in self._entries.keys() | copy.keys():
            ours = self._entries.get(name)
            theirs = decode_entry(copy[name]) if name in copy else None
            if ours == theirs:
                continue
            if ours is None:
                if theirs is not None:
                    fixes[name] = (
                        None if theirs.value is None else encode_entry(VersionedEntry(self._next(), None))
                    )
            elif ours.value is None and theirs is None:
                continue
            else:
                if theirs is not None and theirs.version > ours.version:
                    ours = self._entries[name] = VersionedEntry(self._next(), ours.value)
                fixes[name] = encode_entry(ours)
        return fixes

    def mark_repaired(self, store: str) -> None:
        self._stale.pop(store, None)

    def require_writable(self, holders: Iterable[str]) -> None:
        """Check that a change can reach a majority of the stores and every store that it concerns, before anything is
        done. Raises ServerBusy."""
        out = self._stores.unavailable()
        missing = sorted(set(holders) & out)
        if missing:
            raise ServerBusy(
                f"The messaging store {missing[0]} is unavailable, which holds a part of it; nothing was changed. "
                "Retry later."
            )
        if not self._stores.has_majority_without(out):
            count = len(self._stores.names)
            raise ServerBusy(
                f"{len(out)} of {count} messaging stores are unavailable; a majority is needed. Retry later."
            )

    async def write(
        self,
        changes: Rows,
        holders: Iterable[str],
        update: BrokerUpdate = NO_UPDATE,
        revoke: Callable[[], BrokerUpdate] = BrokerUpdate,
    ) -> None:
        """Make a change in all stores and at all brokers, or take it back. One at a time.

        `update` is what brokers do besides writing the rows, and `revoke` gives what they do if the change is taken back.
        Raises ServerBusy."""
        holders = set(holders)
        self.require_writable(holders)
        before = {name: self._entries.get(name) for name in changes}
        version = self._next()
        self._entries.update({name: VersionedEntry(version, value) for name, value in changes.items()})
        purged, self._tombstones = self._tombstones - changes.keys(), set()
        failed = await self._write_everywhere(changes.keys(), purged, update)
        missing = failed.keys() | self._stores.unavailable()
        if holders & missing or not self._stores.has_majority_without(missing):
            await self._revert(before, revoke())
            name = min(holders & missing or missing)
            reason = failed.get(name)
            raise ServerBusy(
                f"The messaging store {name} failed, and the change was taken back. Retry later."
            ) from reason
        for name in purged:
            del self._entries[name]
        if not missing:
            self._tombstones = {name for name, value in changes.items() if value is None}

    async def _revert(self, before: Mapping[str, VersionedEntry | None], update: BrokerUpdate) -> None:
        """Write what was in force before. Stores that fail at this too are unavailable, and get it when they come back."""
        version = self._next()
        for name, entry in before.items():
            self._entries[name] = VersionedEntry(version, None if entry is None else entry.value)
        await self._write_everywhere(before.keys(), (), update)

    async def _write_everywhere(
        self, names: Iterable[str], purged: Iterable[str], update: BrokerUpdate = NO_UPDATE
    ) -> dict[str, Exception]:
        """Write entries to all open stores, with what brokers do besides. Returns the stores that do not have the entries
        now, with the reason."""
        names = set(names)
        writes: dict[str, Rows] = {}
        for host in self._stores.hosts:
            if host.is_open:
                wanted = names | self._stale.pop(host.name, set())
                rows: Rows = dict.fromkeys(purged)
                rows.update(
                    {name: encode_entry(self._entries[name]) for name in wanted if name in self._entries}
                )
                self._stale[host.name] = wanted
                writes[host.name] = rows
        failed = await self._stores.apply(writes, update)
        for store in writes.keys() - failed.keys():
            self._stale.pop(store, None)
        return failed

    def _next(self) -> int:
        self._version += 1
        return self._version
