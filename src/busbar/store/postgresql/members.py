"""The nodes of a namespace, as the tables beside its catalogue have them, and what all nodes have to agree on.

Rules
    * Every node has one row. It writes its row itself, and beats. Ages are computed by the clock of the server alone.
    * A name belongs to one node. Another process with that name is refused while the node lives.
    * If the process has the place of the node, it holds the lock of the same data directory. So the one before has ended.
    * A secret is made once, by the first node that needs it.
    * Stores are listed with their addresses, so that a node needs to be given none.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import asyncpg

from busbar.store.contract import StoreError, StoreInUse
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.catalogue import CHANGES, prepare
from busbar.store.postgresql.connection import ConnectionLost, DatabaseConnection
from busbar.store.postgresql.ownership import OwnerRow, Ownership

_MEMBERS: Final = (
    "SELECT name, incarnation, address, place, version, level, brokers, gateways,"
    " extract(epoch FROM clock_timestamp() - beat)::float8, ended IS NOT NULL FROM member ORDER BY name"
)
_JOIN: Final = (
    "INSERT INTO member(name, incarnation, address, place, version, level, brokers, gateways, beat)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, '', clock_timestamp()) ON CONFLICT (name) DO UPDATE SET"
    " incarnation = excluded.incarnation, address = excluded.address, place = excluded.place,"
    " version = excluded.version, level = excluded.level, brokers = excluded.brokers, gateways = '',"
    " beat = excluded.beat, ended = NULL"
)
_MINE: Final = "WHERE name = $1 AND incarnation = $2 RETURNING name"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the namespace."""

    name: str
    incarnation: str
    """Drawn at each start."""
    address: str
    """Where its node port is."""
    place: str
    """The machine and the data directory."""
    version: str
    level: int
    """The highest version of what nodes exchange that it has."""
    brokers: int
    gateways: str = ""
    """The names of its gateways, separated by spaces."""
    age: float = 0.0
    """Seconds since its last beat."""
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class ListedStore:
    name: str
    url: str
    identity: str


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """What a node sees of the others at one time."""

    owner: OwnerRow
    """Of the catalogue: its holder is the controller."""
    members: list[Member]
    stores: list[ListedStore]

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)


class MemberTable:
    """The tables as one node uses them, from one thread at a time. Methods raise StoreError if the database is away."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url, "catalogue")
        self._connection = DatabaseConnection(self._address)
        self._owner = Ownership(self._connection, self._address, CHANGES)

    def close(self) -> None:
        self._connection.drop()

    def _using(self, work: Callable[[], T]) -> T:
        try:
            if not self._connection.is_open:
                self._connection.open()
                prepare(self._connection, self._address, creates=True)
            return work()
        except (ConnectionLost, asyncpg.PostgresError) as problem:
            self._connection.end()
            raise StoreError(f"{self._address.shown}: {problem}") from problem

    def _fetch(self, statement: str, *values: object) -> list[Any]:
        return self._using(lambda: self._connection.fetch(statement, *values))

    # ---- the node's own row ----

    def join(self, member: Member, lease: float) -> list[str]:
        """Enter a node. Returns the gateways that its earlier processes had, which have ended. Raises StoreInUse if another
        node of that name lives."""
        before = self._find(member.name)
        if (
            before is not None
            and before.place != member.place
            and not before.has_ended
            and before.age < lease
        ):
            raise StoreInUse(
                f"a node named '{member.name}' is alive at {before.address}; choose another name with --node"
            )
        self._fetch(
            _JOIN,
            member.name,
            member.incarnation,
            member.address,
            member.place,
            member.version,
            member.level,
            member.brokers,
        )
        return before.gateways.split() if before is not None and before.place == member.place else []

    def beat(self, member: Member, gateways: Sequence[str]) -> bool:
        """Show that the node works, with its gateways. False if another node has taken its name."""
        return bool(
            self._fetch(
                f"UPDATE member SET beat = clock_timestamp(), gateways = $3 {_MINE}",
                member.name,
                member.incarnation,
                " ".join(gateways),
            )
        )

    def end(self, member: Member) -> None:
        """Note that the node has ended in good order."""
        ended = f"UPDATE member SET ended = clock_timestamp() {_MINE}"
        self._fetch(ended, member.name, member.incarnation)

    # ---- the others ----

    def look(self) -> ClusterLook:
        return self._using(lambda: ClusterLook(self._owner.row(), self._members(), self._stores()))

    def _members(self) -> list[Member]:
        return [Member(*row) for row in self._connection.fetch(_MEMBERS)]

    def _find(self, name: str) -> Member | None:
        return next((row for row in self._using(self._members) if row.name == name), None)

    # ---- what all agree on ----

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret of the namespace, made now if there is none."""
        found = self._fetch("SELECT value FROM secret WHERE name = $1", name)
        if not found:
            insert = "INSERT INTO secret VALUES ($1, $2) ON CONFLICT DO NOTHING"
            self._fetch(insert, name, make())
            found = self._fetch("SELECT value FROM secret WHERE name = $1", name)
        value: bytes = found[0][0]
        return value

    def entry(self, name: str) -> bytes | None:
        """An entry of the catalogue, as the controller has written it."""
        found = self._fetch("SELECT value FROM entry WHERE name = $1", name.encode())
        return found[0][0] if found else None

    def _stores(self) -> list[ListedStore]:
        return [store for store in self._all_stores() if store.url]

    def _all_stores(self) -> list[ListedStore]:
        """All stores, also those that were removed: they have no address. Their names are not given again."""
        rows = self._connection.fetch("SELECT name, url, identity FROM store ORDER BY name")
        return [ListedStore(*row) for row in rows]

    def remove_store(self, name: str) -> None:
        """Forget where a store is."""
        self._fetch("UPDATE store SET url = '' WHERE name = $1", name)

    def add_stores(self, urls: Sequence[str], names: Sequence[str]) -> list[ListedStore]:
        """List the stores of these addresses, unless they are listed; an address that is given twice is two stores. New ones
        get the first of `names` that are free. Returns all stores."""

        def work() -> list[ListedStore]:
            self._connection.execute("BEGIN; LOCK TABLE store IN EXCLUSIVE MODE")
            try:
                known = self._all_stores()
                counts = Counter(store.url for store in known)
                free = iter([name for name in names if name not in {store.name for store in known}])
                for url, count in Counter(urls).items():
                    for _ in range(count - counts[url]):
                        row = (next(free), url, secrets.token_hex(16))
                        self._connection.fetch("INSERT INTO store VALUES ($1, $2, $3)", *row)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return self._stores()

        return self._using(work)
