"""Makes the content of a catalogue from the definitions that the stores have, when its home is lost.

Rules:
1. A definition counts in the stores that hold its fragments. Of several the newest is taken.
2. A definition that another of its stores does not have was deleted, if that store is complete up to its number
   (store_definitions.py). If that store is behind, the definition holds.
3. A rule counts as its subscription does. What lies below an entity that was deleted is deleted.
4. Ids are never given twice: the counters are the highest that any store has, in its rows or in its fragments.
5. Stores that are not there may have had entities of their own, and newer definitions. The report states which are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from busbar.catalogue.change import EMPTYING, ENTITY, FRAGMENT_COUNTER, TAP_COUNTER
from busbar.catalogue.definition import decode_definition
from busbar.catalogue.index import EntityIndex
from busbar.catalogue.membership import STORES, Membership, StoreRows, encode
from busbar.catalogue.store_definitions import AS_OF, decode_entry
from busbar.catalogue.upgrade import TERM, namespace_of
from busbar.model.api import EntityView
from busbar.model.entities import NamespaceDescription, RuleDescription
from busbar.model.names import key_of, parent_and_name
from busbar.store.catalogue_contract import CatalogueContent, VersionedEntry
from busbar.store.contract import StoreError

_COUNTERS = (FRAGMENT_COUNTER, TAP_COUNTER)


@dataclass(slots=True)
class RebuildReport:
    """What was found, and what is missing."""

    stores: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """Files that are not stores of this namespace."""
    entities: list[str] = field(default_factory=list)
    """Paths of queues, topics and subscriptions."""
    limited: list[str] = field(default_factory=list)
    """Those of them with fragments in a missing store."""
    unknown_fragments: dict[str, list[int]] = field(default_factory=dict)
    """By store: fragments with messages that no definition names. They are left as they are."""


def rebuild(
    found: Mapping[str, StoreRows], fragments: Mapping[str, Mapping[int, int]]
) -> tuple[CatalogueContent, RebuildReport]:
    """The content of a catalogue, from the rows of all stores that could be read, and their fragments with the number of
    messages in each. Raises StoreError if the stores are not of one namespace."""
    membership, ours = namespace_of(found)
    if not ours:
        raise StoreError("none of the stores is of a namespace")
    entries = _entities(ours)
    entries.update(_shared(ours, fragments))
    version = max(entry.version for entry in entries.values()) if entries else 0
    version = max(version, *[_as_of(store) for store in ours.values()])
    membership = _with_identities(membership, ours)
    entries[STORES] = VersionedEntry(version, encode(membership))
    index = _index(entries)
    report = RebuildReport(
        stores=[*ours],
        missing=[name for name in membership.names if name not in ours],
        ignored=[name for name in found if name not in ours],
    )
    _describe(report, index, entries, ours, fragments)
    return CatalogueContent(membership.namespace, version, entries), report


def _entities(ours: Mapping[str, StoreRows]) -> dict[str, VersionedEntry]:
    """The newest definition of each entity that was not deleted, and the fragments that are still to be emptied."""
    newest: dict[str, VersionedEntry] = {}
    for store, rows in ours.items():
        for name, encoded in rows.rows.items():
            if not name.startswith((ENTITY, EMPTYING)):
                continue
            entry = decode_entry(encoded)
            if name.startswith(EMPTYING) and entry.value != store.encode():
                continue
            if name not in newest or entry.version > newest[name].version:
                newest[name] = entry
    live = {name: entry for name, entry in newest.items() if entry.value is not None}
    views = _index(live)
    for name in sorted(live, key=len):  # parents first
        if not name.startswith(ENTITY):
            continue
        view = views.get(name.removeprefix(ENTITY))
        assert view is not None
        if not _holds(name, live[name].version, view, views, ours):
            views.remove(view.path)
            del live[name]
    return live


def _holds(
    name: str, version: int, view: EntityView, views: EntityIndex, ours: Mapping[str, StoreRows]
) -> bool:
    if isinstance(view.description, NamespaceDescription):
        return True  # it is never deleted
    parent_path = parent_and_name(view.path)[0]
    parent = views.get(parent_path) if parent_path else None
    if parent_path and parent is None:
        return False
    stores = (
        parent.stores if parent is not None and isinstance(view.description, RuleDescription) else view.stores
    )
    there = {store: ours[store] for store in stores if store in ours}
    if not there:
        return False  # a copy of an older version, in a store that does not hold it
    return all(name in rows.rows or _as_of(rows) < version for rows in there.values())


def _as_of(rows: StoreRows) -> int:
    encoded = rows.rows.get(AS_OF)
    return -1 if encoded is None else decode_entry(encoded).version


def _shared(
    ours: Mapping[str, StoreRows], fragments: Mapping[str, Mapping[int, int]]
) -> dict[str, VersionedEntry]:
    """What every store has: the counters at their highest, the rest at its newest."""
    found: dict[str, VersionedEntry] = {}
    for rows in ours.values():
        for name, encoded in rows.rows.items():
            if name.startswith((ENTITY, EMPTYING)) or name in (AS_OF, STORES, TERM):
                continue
            entry = decode_entry(encoded)
            known = found.get(name)
            if entry.value is None or (known is not None and _is_higher(name, known, entry)):
                continue
            found[name] = entry
    last = max((fragment for ids in fragments.values() for fragment in ids), default=0)
    known = found.get(FRAGMENT_COUNTER)
    if last > (0 if known is None else int(known.value or b"0")):
        found[FRAGMENT_COUNTER] = VersionedEntry(0 if known is None else known.version, str(last).encode())
    return found


def _is_higher(name: str, known: VersionedEntry, other: VersionedEntry) -> bool:
    if name in _COUNTERS:
        return int(known.value or b"0") >= int(other.value or b"0")
    return known.version >= other.version


def _with_identities(membership: Membership, ours: Mapping[str, StoreRows]) -> Membership:
    for name, rows in ours.items():
        if membership.member(name) is None:
            membership = membership.with_store(name, rows.identity.id if rows.identity is not None else "")
    return membership


def _index(entries: Mapping[str, VersionedEntry]) -> EntityIndex:
    index = EntityIndex()
    for name, entry in entries.items():
        if name.startswith(ENTITY) and entry.value is not None:
            try:
                index.put(decode_definition(entry.value))
            except msgspec.DecodeError as error:
                raise StoreError(f"the definition '{name}' cannot be read: {error}") from None
    return index


def _describe(
    report: RebuildReport,
    index: EntityIndex,
    entries: Mapping[str, VersionedEntry],
    ours: Mapping[str, StoreRows],
    fragments: Mapping[str, Mapping[int, int]],
) -> None:
    others = RuleDescription | NamespaceDescription
    views = [view for view in index if not isinstance(view.description, others)]
    views.sort(key=lambda view: key_of(view.path))
    report.entities = [view.path for view in views]
    report.limited = [view.path for view in views if not {*view.stores} <= ours.keys()]
    named = {fragment for view in views for fragment in view.fragments}
    named |= {int(name.removeprefix(EMPTYING)) for name in entries if name.startswith(EMPTYING)}
    for store in ours:
        held = fragments.get(store, {})
        unknown = [fragment for fragment, count in held.items() if count and fragment not in named]
        if unknown:
            report.unknown_fragments[store] = unknown
