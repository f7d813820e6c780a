"""The place of a store in PostgreSQL: opened, created, measured."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from threading import Lock
from typing import Final, TypeVar

import asyncpg

from busbar.store.contract import OutcomeUnknown, Store, StoreError
from busbar.store.location import OwnerSilence, StoreCounters, StoreLocation
from busbar.store.postgresql import schema
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.connection import ConnectionLost, DatabaseConnection
from busbar.store.postgresql.ownership import LEASE, PAUSES, LeaseWatch, Ownership, boot_time
from busbar.store.postgresql.status import measured_size, status_text
from busbar.store.postgresql.store import LastKnown, PostgresqlStore

SPEAKS: Final = 5 / 6
"""The part of a lease for which an owner performs effects without another answer of the server."""

T = TypeVar("T")


class PostgresqlLocation:
    """A schema of a database. `identity` distinguishes the store from those that other namespaces may have there."""

    def __init__(self, url: str, name: str, identity: str, lease: float = 0.0) -> None:
        """`lease` is in seconds (0: LEASE): an owner of which nothing is seen for so long may be replaced."""
        self._address = parse_address(url, name)
        self._lease = lease or LEASE
        self._identity = identity
        self._known = LastKnown()
        self._store: PostgresqlStore | None = None
        self._watch = LeaseWatch(inf, self._lease / PAUSES)
        self._watching = Lock()
        """Several threads may look at the owner."""
        self._seen: OwnerSilence | None = None

    @property
    def place(self) -> StoreLocation:
        return StoreLocation(
            self._address.shown,
            self.make,
            self.size,
            self.beat,
            self.status,
            lambda: self.counters,
            self.may_speak,
            self.silence,
            self.note_silence,
        )

    @property
    def counters(self) -> StoreCounters:
        return self._known.counters

    def open(self) -> Store:
        seen, self._seen = self._seen, None
        self._store = PostgresqlStore(
            self._address, self._known, self._identity, creates=False, lease=self._lease, seen=seen
        )
        return self._store

    def check(self) -> None:
        """Raise StoreError if the server cannot be reached, or is none that a store may be in."""
        connection = DatabaseConnection(self._address)
        try:
            connection.open()
        except ConnectionLost as problem:
            raise StoreError(str(problem)) from problem
        finally:
            connection.drop()

    def may_exist(self) -> bool:
        """Whether the store is there, or cannot be reached."""
        return self._ask(lambda connection, _: schema.identity(connection, self._address) is not None, True)

    def make(self) -> Store:
        """Create an empty store. If this store is there already, its schema is renamed. That of another namespace is not
        touched."""
        connection = DatabaseConnection(self._address)
        try:
            connection.open()
            if schema.identity(connection, self._address) == self._identity:
                schema.set_aside(connection, self._address)
        except (ConnectionLost, asyncpg.PostgresError) as problem:
            raise StoreError(f"{self._address.shown} cannot be replaced: {problem}") from problem
        finally:
            connection.drop()
        self._known = LastKnown()
        self._store = PostgresqlStore(self._address, self._known, self._identity, lease=self._lease)
        return self._store

    def beat(self) -> object:
        """Show other processes that the owner works; called on the store's thread. The place of a store never changes."""
        if self._store is not None:
            try:
                self._store.beat()
            except OutcomeUnknown:
                pass  # the next commit reports it
        return None

    def may_speak(self) -> bool:
        """Whether the owner has shown lately that it works, by its own clock. It is silent before its lease is over."""
        return self._store is None or boot_time() - self._store.shown_at < SPEAKS * self._lease

    def silence(self) -> OwnerSilence:
        """For how many seconds nothing was seen of the owner, since the first look at it."""

        def look(connection: DatabaseConnection, _: str) -> OwnerSilence:
            if schema.identity(connection, self._address) is None:
                return OwnerSilence(inf)
            asked = boot_time()
            row = Ownership(connection, self._address).row()
            with self._watching:
                self._watch.is_free(row, asked, boot_time())
                return OwnerSilence(self._watch.silence if row.is_alive else inf, self._watch.sign)

        return self._ask(look, OwnerSilence(-1.0))

    def note_silence(self, seen: OwnerSilence) -> None:
        """Let the next claim begin with what another process has seen of the owner."""
        self._seen = seen

    def size(self) -> int:
        return self._ask(measured_size, 0)

    def status(self) -> str:
        return self._ask(status_text, "")

    def _ask(self, question: Callable[[DatabaseConnection, str], T], otherwise: T) -> T:
        """Ask over a connection of its own: the caller is on another thread than the store."""
        connection = DatabaseConnection(self._address)
        try:
            connection.open()
            return question(connection, self._address.schema)
        except (ConnectionLost, StoreError, asyncpg.PostgresError):
            return otherwise
        finally:
            connection.drop()
