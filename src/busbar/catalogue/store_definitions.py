"""What each store keeps of the catalogue: the definitions of the entities that its fragments are of.

The catalogue has one home (home.py). The stores keep enough of it to make another one (rebuild.py), if the home is lost.
Rules:
1. A store keeps the entities that have a fragment in it, the rules of its subscriptions, and its deleted fragments that are
   still to be emptied. Every store keeps the list of stores, the properties and authorization rules of the
   namespace, and the counters of ids.
2. Each row has the number of the change that wrote it. The row AS_OF has the number up to which the rows of the store are
   complete. So a definition that another store has, and this one does not, was deleted if AS_OF is not below its number.
3. The home decides. A store gets its rows after the change was made there. A store that was unavailable, or full, has old
   rows until it is open again, or gets its next rows.
4. Counters of ids are written with the fragments that got the ids. In stores that a change does not concern they may be old.

A row is `v<number>=<value>`. Before the catalogue had a home, every store had all of it in this form, and `v<number>-` for
what was deleted (upgrade.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from busbar.broker.host_api import Rows
from busbar.catalogue.change import EMPTYING, ENTITY, CatalogueChange
from busbar.catalogue.definition import decode_definition
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.staged_index import EntityEntries
from busbar.model.api import EntityView
from busbar.model.entities import NamespaceDescription, RuleDescription
from busbar.model.names import key_of, parent_and_name
from busbar.store.catalogue_contract import VersionedEntry
from busbar.store.contract import StoreError

AS_OF = "as-of"


def encode_entry(entry: VersionedEntry) -> bytes:
    if entry.value is None:
        return b"v%d-" % entry.version
    return b"v%d=%s" % (entry.version, entry.value)


def decode_entry(encoded: bytes) -> VersionedEntry:
    """Decode a row; one without a number is of version 0. Raises StoreError if it is damaged."""
    if not encoded.startswith(b"v"):
        return VersionedEntry(0, encoded)
    end = 1
    while encoded[end : end + 1].isdigit():
        end += 1
    mark = encoded[end : end + 1]
    if end == 1 or mark not in (b"=", b"-"):
        raise StoreError("an entry of the catalogue is damaged")
    return VersionedEntry(int(encoded[1:end]), encoded[end + 1 :] if mark == b"=" else None)


class StoreDefinitions:
    """The rows that each store has to have, and which open stores lack some of them."""

    def __init__(self, home: CatalogueHome, entries: EntityEntries) -> None:
        self._home = home
        self._entries = entries
        self._stale: dict[str, set[str]] = {}
        """By store: names of rows that it lacks, or still has, although it is open."""

    def repairs(self, store: str, rows: Mapping[str, bytes]) -> Rows:
        """The rows that bring a store up to date."""
        self._stale.pop(store, None)
        wanted = self._rows_of(store)
        fixes: Rows = {name: row for name, row in wanted.items() if rows.get(name) != row}
        fixes.update({name: None for name in rows if name not in wanted and name != AS_OF})
        if fixes or AS_OF not in rows:
            fixes[AS_OF] = self._as_of
        return fixes

    def rows_for(
        self, change: CatalogueChange, after: EntityEntries, stores: Iterable[str]
    ) -> dict[str, Rows]:
        """The rows of each of these stores for a change that the home has; `after` are the entries after it. `written`
        reports that a store has them."""
        found: dict[str, Rows] = {}
        open_stores = [*stores]
        by_store = _by_store(change, after, open_stores)
        for store in open_stores:
            if store not in by_store:
                continue
            rows: Rows = {
                name: None if value is None else encode_entry(VersionedEntry(self._home.version, value))
                for name, value in by_store[store].items()
            }
            stale = self._stale.get(store, set())
            rows.update({name: self._row(store, name) for name in stale if name not in rows})
            self._stale[store] = {*rows}
            rows[AS_OF] = self._as_of
            found[store] = rows
        return found

    def written(self, store: str) -> None:
        """Note that a store has the rows of the last change."""
        self._stale.pop(store, None)

    def purged(self, fragments: Mapping[int, str]) -> None:
        """Note deleted fragments that were emptied, with their stores. Their rows go with the next change there."""
        for fragment, store in fragments.items():
            self._stale.setdefault(store, set()).add(f"{EMPTYING}{fragment}")

    @property
    def _as_of(self) -> bytes:
        return encode_entry(VersionedEntry(self._home.version, b""))

    def _rows_of(self, store: str) -> dict[str, bytes]:
        return {name: row for name in self._home.entries if (row := self._row(store, name)) is not None}

    def _row(self, store: str, name: str) -> bytes | None:
        """A row that a store has to have; None: it has to have none of that name."""
        entry = self._home.entries.get(name)
        if entry is None or entry.value is None:
            return None
        if name.startswith(EMPTYING):
            keeps = entry.value == store.encode()
        elif name.startswith(ENTITY):
            view = self._entries.get(name.removeprefix(ENTITY))
            keeps = view is not None and store in _stores_of(view, self._entries, (store,))
        else:
            keeps = True
        return encode_entry(entry) if keeps else None


def _by_store(change: CatalogueChange, after: EntityEntries, every: Sequence[str]) -> dict[str, Rows]:
    """The rows of each store that a change concerns, without their numbers. `every` are the stores to look at."""
    values = change.rows()
    before = {key_of(view.path): view for view in change.before}
    found: dict[str, Rows] = {}
    for view in change.before:
        subscription = before.get(key_of(parent_and_name(view.path)[0]))
        for store in _stores_of(view, after, every, subscription):
            found.setdefault(store, {})[ENTITY + key_of(view.path)] = None
    for view in change.after:
        name = ENTITY + key_of(view.path)
        for store in _stores_of(view, after, every):
            found.setdefault(store, {})[name] = values[name]
    for fragment, store in change.deleted_fragments.items():
        found.setdefault(store, {})[f"{EMPTYING}{fragment}"] = store.encode()
    for rows in found.values():
        rows.update(change.counters)
    return found


def _stores_of(
    view: EntityView, entries: EntityEntries, every: Sequence[str], subscription: EntityView | None = None
) -> Sequence[str]:
    """The stores that keep an entry. Rules have no fragments: they are kept with those of their subscription. What concerns
    the namespace is kept in every store."""
    if isinstance(view.description, NamespaceDescription):
        return every
    if not isinstance(view.description, RuleDescription):
        return view.stores
    subscription = entries.get(parent_and_name(view.path)[0]) or subscription
    return () if subscription is None else subscription.stores


def served_fragments(rows: Mapping[str, bytes]) -> set[int]:
    """The fragments that the definitions of a store name, including those that are still to be emptied."""
    found: set[int] = set()
    for name, encoded in rows.items():
        if not name.startswith((ENTITY, EMPTYING)):
            continue
        value = decode_entry(encoded).value
        if value is not None and name.startswith(ENTITY):
            found.update(decode_definition(value).fragments)
        elif value is not None:
            found.add(int(name.removeprefix(EMPTYING)))
    return found
