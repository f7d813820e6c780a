"""Decides which stores make up a namespace, and whether the file in a store's place is that store.

Every store has an identity: the namespace's id, the store's name, and an id of its own. The list of stores is an entry of
the catalogue. Rules:
1. A store of another namespace is kept out. So is one with the name or the id of another: files were swapped, or it was
   re-created meanwhile.
2. A store joins if the list does not have its name, and it is empty or has its identity already. A start that was cut short
   after it gave the identity is finished by that.
3. If the list has the name of a store without an identity, the file is not the store that was there. It is kept out until an
   operator resets it.
4. As long as the list is empty, a store without an identity joins with what it has: it is of a version that gave none.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol

import msgspec

from busbar.store.catalogue_contract import VersionedEntry
from busbar.store.contract import StoreError

IDENTITY = "identity"
"""The one row of a store's definitions that is not of the catalogue."""
STORES = "stores"


class StoreIdentity(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    id: str


class StoreMember(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    id: str
    drained: bool = False
    """Whether it gets no fragments of new entities."""


class Membership(msgspec.Struct, frozen=True):
    namespace: str
    stores: tuple[StoreMember, ...] = ()

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.stores]

    def member(self, name: str) -> StoreMember | None:
        return next((member for member in self.stores if member.name == name), None)

    def with_store(self, name: str, id: str = "") -> Membership:
        """With this id for that store, or a new one, at its place or at the end."""
        member = self.member(name)
        fresh = StoreMember(name, id or random_id(), member is not None and member.drained)
        if member is None:
            return Membership(self.namespace, (*self.stores, fresh))
        return Membership(
            self.namespace, tuple(fresh if member.name == name else member for member in self.stores)
        )

    def with_drained(self, name: str, drained: bool) -> Membership:
        stores = [StoreMember(one.name, one.id, drained) if one.name == name else one for one in self.stores]
        return Membership(self.namespace, tuple(stores))

    def without(self, name: str) -> Membership:
        return Membership(self.namespace, tuple(one for one in self.stores if one.name != name))

    def identity(self, name: str) -> StoreIdentity:
        member = self.member(name)
        assert member is not None
        return StoreIdentity(self.namespace, name, member.id)


def random_id() -> str:
    return secrets.token_hex(8)


def encode(value: StoreIdentity | Membership) -> bytes:
    return msgspec.json.encode(value)


def decode_membership(encoded: bytes) -> Membership:
    try:
        return msgspec.json.decode(encoded, type=Membership)
    except msgspec.DecodeError as error:
        raise StoreError(f"the list of stores is damaged: {error}") from None


class ListedHome(Protocol):
    """The home of a catalogue, which has the list."""

    namespace: str
    entries: dict[str, VersionedEntry]


def listed_in(home: ListedHome) -> Membership:
    """The list that a catalogue has. Raises StoreError."""
    entry = home.entries.get(STORES)
    return Membership(home.namespace) if entry is None else decode_membership(entry.value or b"")


@dataclass(frozen=True, slots=True)
class StoreRows:
    """What a store has besides messages: its identity, and its definitions."""

    identity: StoreIdentity | None
    rows: dict[str, bytes]
    last_fragment: int
    """The highest id of its fragments."""

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.last_fragment


def read_rows(found: tuple[dict[str, bytes], int]) -> StoreRows:
    """The identity and the definitions, from the rows that a store has."""
    rows, last_fragment = found
    encoded = rows.pop(IDENTITY, None)
    try:
        identity = None if encoded is None else msgspec.json.decode(encoded, type=StoreIdentity)
    except msgspec.DecodeError as error:
        raise StoreError(f"the identity of the store is damaged: {error}") from None
    return StoreRows(identity, rows, last_fragment)


def rejection_reason(name: str, found: StoreRows, membership: Membership) -> str:
    """Why a store is not that store of that namespace; empty if it is, or may join."""
    identity = found.identity
    member = membership.member(name)
    if identity is None:
        if member is not None:
            return f"what is there is not the store that was there: it is new. `busbar stores reset {name}` accepts it"
        may_join = found.is_empty or not membership.stores
        return "" if may_join else "it is not a store of this namespace: it holds data and has no identity"
    if identity.namespace != membership.namespace:
        return "it is a store of another namespace"
    if identity.name != name:
        return f"it is the store {identity.name}, not {name}: were the files swapped?"
    if member is not None and member.id != identity.id:
        return f"it is not the {name} that is in use: another one was made in its place"
    return ""
