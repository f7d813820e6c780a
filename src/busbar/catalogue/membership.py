"""Decides which stores make up a namespace, and whether the file in a store's place is that store.

Every store has an identity: the namespace's id, the store's name, and an id of its own. The list of stores is an entry of
the catalogue. Rules:
1. The namespace is that of most stores that could be opened. Stores of another one are kept out.
2. A store with the name or the id of another is kept out: files were swapped, or it was re-created meanwhile.
3. A store without an identity joins if it is empty and the list does not have its name. If the list has it, the file is not
   the store that was there, and is kept out until an operator resets it.
4. If no store has an identity, there is no namespace yet: all become its first stores. A store of an older version among
   them keeps what it has.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from busbar.catalogue.versions import decode_entry
from busbar.store.contract import StoreError

IDENTITY = "identity"
"""The one entry of a store's catalogue that is its own."""
STORES = "stores"


class StoreIdentity(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    id: str


class StoreMember(msgspec.Struct, frozen=True):
    name: str
    id: str


class Membership(msgspec.Struct, frozen=True):
    namespace: str
    stores: tuple[StoreMember, ...] = ()

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.stores]

    def member(self, name: str) -> StoreMember | None:
        return next((member for member in self.stores if member.name == name), None)

    def with_store(self, name: str) -> Membership:
        """With a new id for that store, at its place or at the end."""
        fresh = StoreMember(name, _random_id())
        if self.member(name) is None:
            return Membership(self.namespace, (*self.stores, fresh))
        return Membership(
            self.namespace, tuple(fresh if member.name == name else member for member in self.stores)
        )

    def identity(self, name: str) -> StoreIdentity:
        member = self.member(name)
        assert member is not None
        return StoreIdentity(self.namespace, name, member.id)


def new_membership() -> Membership:
    return Membership(_random_id())


def _random_id() -> str:
    return secrets.token_hex(8)


def encode(value: StoreIdentity | Membership) -> bytes:
    return msgspec.json.encode(value)


def decode_membership(encoded: bytes) -> Membership:
    try:
        return msgspec.json.decode(encoded, type=Membership)
    except msgspec.DecodeError as error:
        raise StoreError(f"the list of stores is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class StoreCatalogue:
    """The identity of a store, and its copy of the catalogue."""

    identity: StoreIdentity | None
    entries: dict[str, bytes]
    last_fragment: int
    """The highest id of its fragments."""

    @property
    def empty(self) -> bool:
        return not self.entries and not self.last_fragment


def read_copy(catalogue: tuple[dict[str, bytes], int]) -> StoreCatalogue:
    """The identity and the copy, from the entries that a store has."""
    entries, last_fragment = catalogue
    encoded = entries.pop(IDENTITY, None)
    try:
        identity = None if encoded is None else msgspec.json.decode(encoded, type=StoreIdentity)
    except msgspec.DecodeError as error:
        raise StoreError(f"the identity of the store is damaged: {error}") from None
    return StoreCatalogue(identity, entries, last_fragment)


@dataclass(slots=True)
class MembershipCheck:
    membership: Membership | None
    """None: there is no namespace yet."""
    refused: dict[str, str] = field(default_factory=dict)
    """Stores that are kept out, with the reason."""
    joining: list[str] = field(default_factory=list)


def check_membership(copies: Mapping[str, StoreCatalogue]) -> MembershipCheck:
    """Find the namespace of these stores, and those that are kept out. Raises StoreError if it cannot be determined."""
    namespaces = Counter(copy.identity.namespace for copy in copies.values() if copy.identity is not None)
    if not namespaces:
        return MembershipCheck(None, joining=list(copies))
    ranked = namespaces.most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        raise StoreError(
            "the stores are of different namespaces, with equally many of each: remove those that do not belong here"
        )
    namespace = ranked[0][0]
    ours = [copy for copy in copies.values() if copy.identity and copy.identity.namespace == namespace]
    lists = [decode_entry(copy.entries[STORES]) for copy in ours if STORES in copy.entries]
    if not lists:
        raise StoreError("no store has the list of the namespace's stores")
    newest = max(lists, key=lambda entry: entry.version).value
    census = MembershipCheck(decode_membership(newest or b""))
    assert census.membership is not None
    for name, copy in copies.items():
        reason = rejection_reason(name, copy, census.membership)
        if reason:
            census.refused[name] = reason
        elif copy.identity is None:
            census.joining.append(name)
    return census


def rejection_reason(name: str, copy: StoreCatalogue, membership: Membership) -> str:
    """Why a store is not that store of that namespace; empty if it is, or may join."""
    identity = copy.identity
    member = membership.member(name)
    if identity is None:
        if member is not None:
            return f"what is there is not the store that was there: it is new. `busbar stores reset {name}` accepts it"
        return "" if copy.empty else "it is not a store of this namespace: it holds data and has no identity"
    if identity.namespace != membership.namespace:
        return "it is a store of another namespace"
    if identity.name != name:
        return f"it is the store {identity.name}, not {name}: were the files swapped?"
    if member is None or member.id != identity.id:
        return f"it is not the {name} that is in use: another one was made in its place"
    return ""
