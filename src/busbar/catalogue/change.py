"""A change of the catalogue as a value, and what it means for the entries, the stores and the brokers.

A change names the entries that it replaces or removes (`before`) and those that are in force after it (`after`). All else
follows from these two: the rows of the catalogue, the fragments that come and go, and the changes that gateways get. The
inverse of a change has the two in each other's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from busbar.broker.host_api import Rows, StoreHost
from busbar.catalogue.definition import encode_definition
from busbar.model.api import EntityView
from busbar.model.names import key_of
from busbar.model.settings import FragmentSettings

ENTITY = "entity/"
EMPTYING = "emptying/"
"""The rest of the name is a deleted fragment that may still have messages; the value is its store."""
FRAGMENT_COUNTER = "last-fragment"
TAP_COUNTER = "last-tap"

EntityChange = tuple[str, EntityView | None]
"""The path of an entry, and the entry that is in force there now; None: it was deleted."""
SettingsByStore = Mapping[str, Mapping[int, FragmentSettings]]


@dataclass(frozen=True, slots=True)
class CatalogueChange:
    before: tuple[EntityView, ...] = ()
    """Entries that the change replaces or removes."""
    after: tuple[EntityView, ...] = ()
    """Entries that it adds, or sets in place of others."""
    counters: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def inverse(self) -> CatalogueChange:
        """The change that takes this one back. Counters stay: an id is given once."""
        return CatalogueChange(self.after, self.before)

    @property
    def gone(self) -> list[EntityView]:
        """Entries that are removed."""
        kept = {key_of(view.path) for view in self.after}
        return [view for view in self.before if key_of(view.path) not in kept]

    @property
    def entities(self) -> list[EntityChange]:
        """The changes of entities that gateways get."""
        told: list[EntityChange] = [(view.path, None) for view in self.gone]
        return told + [(view.path, view) for view in self.after]

    @property
    def new_fragments(self) -> dict[int, str]:
        """Fragments that are created, with their stores."""
        before = _routes(self.before)
        return {fragment: store for fragment, store in _routes(self.after).items() if fragment not in before}

    @property
    def deleted_fragments(self) -> dict[int, str]:
        """Fragments that are of no entity any more, with their stores."""
        return self.inverse.new_fragments

    def rows(self) -> Rows:
        """The rows of the catalogue for this change."""
        rows: Rows = {ENTITY + key_of(view.path): None for view in self.gone}
        rows.update({ENTITY + key_of(view.path): encode_definition(view) for view in self.after})
        rows.update(
            {f"{EMPTYING}{fragment}": store.encode() for fragment, store in self.deleted_fragments.items()}
        )
        rows.update(self.counters)
        return rows


@dataclass(frozen=True, slots=True)
class BrokerUpdate:
    """What brokers do for a change besides writing definitions."""

    new: SettingsByStore = field(default_factory=dict)
    """Fragments to create."""
    changed: SettingsByStore = field(default_factory=dict)
    """Fragments that get other settings."""
    entities: Sequence[EntityChange] = ()


@dataclass(frozen=True, slots=True)
class StoreChange:
    """The part of a change that concerns one store."""

    rows: Rows
    """Of its definitions."""
    new: Mapping[int, FragmentSettings]
    changed: Mapping[int, FragmentSettings]
    retired: Sequence[int] = ()
    """Deleted fragments of an unavailable store, which must not act any more when it is back."""

    @property
    def concerns_store(self) -> bool:
        return bool(self.rows or self.new or self.changed or self.retired)


async def apply_to_store(host: StoreHost, change: StoreChange) -> None:
    """Create the new fragments, use the other settings, then write the definitions. Raises a BusbarError.

    Only new fragments and definitions can fail. A store that has the definition of an entity has its fragments already."""
    if change.new:
        await host.add_fragments(change.new)
    if change.changed:
        host.change_fragments(change.changed)
    if change.retired:
        host.retire_fragments(change.retired)
    if change.rows:
        await host.write_definitions(change.rows)


def _routes(views: Iterable[EntityView]) -> dict[int, str]:
    return {
        fragment: store for view in views for fragment, store in zip(view.fragments, view.stores, strict=True)
    }
