"""The first content of a catalogue's home: nothing, or what the stores have of an older version.

Up to schema version 5 every store had a copy of the whole catalogue, and a majority of the stores decided. Rules:
1. The namespace is that of most stores that could be opened. Stores of another one are ignored.
2. A majority of the stores must be there. The newest version of each entry that any of them has is taken, as every start of
   an older version did. Deleted entries are left out.
3. Nothing is written to the stores before the home is durable. So a start that is cut short is repeated by the next one.
4. If a store has been served with a home, the home was lost. Then nothing is made here: an operator decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from busbar.catalogue.membership import (
    STORES,
    Membership,
    StoreMember,
    StoreRows,
    decode_membership,
    random_id,
)
from busbar.catalogue.store_definitions import AS_OF, decode_entry
from busbar.store.catalogue_contract import CatalogueContent, VersionedEntry
from busbar.store.contract import StoreError

TERM = "term"
"""An entry of older versions: the number of a start."""
REBUILD = "`busbar catalogue rebuild` makes it from the definitions in the stores"


def first_content(home: str, found: Mapping[str, StoreRows], refused: Mapping[str, str]) -> CatalogueContent:
    """What the home has to have at first. `refused` are the stores that could not be opened, with the reason.

    Raises StoreError if a home was lost, or if that cannot be determined."""
    served = [name for name, store in found.items() if AS_OF in store.rows]
    if served:
        raise StoreError(
            f"the catalogue {home} is missing, although {served[0]} has been served with one. Put it back; if it is lost, "
            f"{REBUILD}"
        )
    if all(store.is_empty and store.identity is None for store in found.values()):
        if refused:
            name, reason = next(iter(refused.items()))
            raise StoreError(f"there is no catalogue {home}, and {name} cannot be opened: {reason}")
        return CatalogueContent(random_id())
    return _merge(found, refused)


def _merge(found: Mapping[str, StoreRows], refused: Mapping[str, str]) -> CatalogueContent:
    membership, ours = namespace_of(found)
    missing = [name for name in membership.names if name not in ours]
    if 2 * len(missing) >= len(membership.names) and missing:
        count = len(membership.names)
        reasons = "; ".join(f"{name}: {refused.get(name, 'its file is missing')}" for name in missing)
        raise StoreError(
            f"only {count - len(missing)} of {count} stores can be used, and an older version kept the catalogue in a "
            f"majority of them ({reasons}). Put back what is missing; if that is lost, {REBUILD}"
        )
    entries: dict[str, VersionedEntry] = {}
    for store in ours.values():
        for name, encoded in store.rows.items():
            entry = decode_entry(encoded)
            known = entries.get(name)
            if known is None or entry.version > known.version:
                entries[name] = entry
    version = max((entry.version for entry in entries.values()), default=0)
    entries.pop(TERM, None)
    kept = {name: entry for name, entry in entries.items() if entry.value is not None}
    return CatalogueContent(membership.namespace, version, kept)


def namespace_of(found: Mapping[str, StoreRows]) -> tuple[Membership, dict[str, StoreRows]]:
    """The newest list of the namespace of most stores, and those of its stores that are there. Raises StoreError."""
    counts = Counter(store.identity.namespace for store in found.values() if store.identity is not None)
    if not counts:  # of a version that gave no identities
        return Membership(random_id()), dict(found)
    ranked = counts.most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        raise StoreError(
            "the stores are of different namespaces, with equally many of each: remove those that do not belong here"
        )
    namespace = ranked[0][0]
    ours = {
        name: (store, store.identity.id)
        for name, store in found.items()
        if store.identity is not None and (store.identity.namespace, store.identity.name) == (namespace, name)
    }
    lists = [decode_entry(store.rows[STORES]) for store, _ in ours.values() if STORES in store.rows]
    if not lists:
        raise StoreError("no store has the list of the namespace's stores")
    membership = decode_membership(max(lists, key=lambda entry: entry.version).value or b"")
    # A store that was re-created meanwhile, in whose place another one is in use, does not count.
    return membership, {
        name: store for name, (store, id) in ours.items() if membership.member(name) == StoreMember(name, id)
    }
