"""The home of a catalogue in PostgreSQL: one schema, which several nodes may reach, and one writer.

Tables
    entry       every entry: its name, the number of the change that wrote it, its value.
    change      the last changes, a row for each entry of each; a NULL is a deletion.
    head        one row, if there is a catalogue: the id of the namespace, and the number of the last change.
    owner       one row: the epoch and the claim of the writer (ownership.py).
    member      the nodes of the namespace (members.py).
    store       the messaging stores of the namespace, with their addresses.
    secret      what all nodes have to agree on: keys.
    meta        what this schema is: application and version.

Rules
    * A change is one statement. It locks the row of the owner, compares the claim, and raises the number of the last change
      from the one before. If one of them does not fit, nothing is written.
    * If the connection is lost meanwhile, the outcome is unknown. The next handle of this process claims at once, and the
      changes show whether it was made.
    * Once this process has claimed, another owner's claim is Fenced: this process must stop.
    * The tables can be there before the catalogue is: nodes meet in them, and the first writer makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from busbar.store.catalogue_contract import (
    KEPT_CHANGES,
    CatalogueContent,
    CatalogueLocation,
    Changes,
    VersionedEntry,
)
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull
from busbar.store.location import StoreMissing
from busbar.store.postgresql import schema
from busbar.store.postgresql.address import DatabaseAddress, parse_address
from busbar.store.postgresql.connection import ConnectionLost, DatabaseConnection
from busbar.store.postgresql.journal import to_bytes, to_text
from busbar.store.postgresql.ownership import LEASE, Ownership

SCHEMA_VERSION: Final = 1
APPLICATION: Final = "busbar catalogue"
BEATS: Final = 1 / 4
"""The part of a lease after which the owner beats: every 1.5 seconds."""
CHANGES: Final = "SELECT max(version) FROM head"
"""How far the writer of a catalogue has come."""

_TABLES: Final = f"""
CREATE TABLE meta(key text PRIMARY KEY, value text NOT NULL);
{schema.OWNER_TABLE}
CREATE TABLE head(
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    namespace text NOT NULL,
    version bigint NOT NULL);
CREATE TABLE entry(name bytea PRIMARY KEY, version bigint NOT NULL, value bytea NOT NULL);
CREATE TABLE change(
    version bigint NOT NULL,
    name bytea NOT NULL,
    value bytea,
    PRIMARY KEY (version, name));
CREATE TABLE member(
    name text PRIMARY KEY,
    incarnation text NOT NULL,
    address text NOT NULL,
    place text NOT NULL,
    version text NOT NULL,
    level integer NOT NULL,
    brokers integer NOT NULL,
    gateways text NOT NULL,
    beat timestamptz NOT NULL,
    ended timestamptz);
CREATE TABLE store(name text PRIMARY KEY, url text NOT NULL, identity text NOT NULL);
CREATE TABLE secret(name text PRIMARY KEY, value bytea NOT NULL);
INSERT INTO meta VALUES ('application', '{APPLICATION}'), ('schema', '{SCHEMA_VERSION}');
"""
_CHANGE: Final = """
WITH fence AS (SELECT 1 FROM owner WHERE claim = $1::bigint FOR SHARE),
    next AS (UPDATE head SET version = $2::bigint FROM fence WHERE head.version = $2::bigint - 1 RETURNING head.version),
    gone AS (DELETE FROM entry USING next WHERE entry.name = ANY($3::bytea[])),
    puts AS (INSERT INTO entry(name, version, value)
        SELECT u.name, next.version, u.value FROM next, unnest($4::bytea[], $5::bytea[]) AS u(name, value)
        ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value),
    log AS (INSERT INTO change(version, name, value)
        SELECT next.version, u.name, u.value FROM next, unnest($6::bytea[], $7::bytea[]) AS u(name, value)),
    trim AS (DELETE FROM change USING next WHERE change.version <= next.version - $8::bigint)
SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM next)
"""

T = TypeVar("T")


def catalogue_at(
    url: str,
    holder: str = "",
    lease: float = LEASE,
    *,
    is_shared: bool = False,
    stale: Sequence[int] = (),
) -> CatalogueLocation:
    """The catalogue in a database. `holder` names its writer, and `lease` is in seconds.

    If it `is_shared`, several nodes may claim it, also before it is made. `stale` are claims
    whose lease is over. Raises StoreError if the address is wrong."""
    address = parse_address(url, "catalogue")
    drawn = [*stale]

    def exists() -> bool:
        return asked(
            address, lambda connection: prepare(connection, address) and _namespace(connection) is not None
        )

    def open_it() -> PostgresqlCatalogue:
        if not is_shared and not exists():
            raise StoreMissing(f"{address.shown} has no catalogue")
        return PostgresqlCatalogue(address, drawn, holder, lease)

    def create(content: CatalogueContent) -> None:
        asked(address, lambda connection: _create(connection, address, content))

    def set_aside() -> str:
        return asked(address, lambda connection: schema.set_aside(connection, address))

    return CatalogueLocation(address.shown, exists, open_it, create, set_aside, BEATS * lease)


def asked(address: DatabaseAddress, question: Callable[[DatabaseConnection], T]) -> T:
    """What a question gives over a connection of its own. Raises StoreError."""
    connection = DatabaseConnection(address)
    try:
        connection.open()
        return question(connection)
    except (ConnectionLost, asyncpg.PostgresError) as problem:
        raise StoreError(f"{address.shown}: {problem}") from problem
    finally:
        connection.drop()


def prepare(connection: DatabaseConnection, address: DatabaseAddress, creates: bool = False) -> bool:
    """Whether the tables of a catalogue are there; with `creates` they are made. Raises StoreError if the schema has
    something else."""
    if schema.read_meta(connection, address, APPLICATION, SCHEMA_VERSION, "catalogue") is not None:
        return True
    if creates:
        try:
            schema.create_tables(connection, address, _TABLES)
        except (asyncpg.DuplicateSchemaError, asyncpg.DuplicateTableError, asyncpg.UniqueViolationError):
            connection.execute("ROLLBACK")  # another node has made them at the same time
    return creates


def _namespace(connection: DatabaseConnection) -> str | None:
    """The id of the namespace; None if there is no catalogue yet."""
    found = connection.fetch("SELECT namespace FROM head")
    return found[0][0] if found else None


def _create(connection: DatabaseConnection, address: DatabaseAddress, content: CatalogueContent) -> None:
    """Make a catalogue with this content, all or nothing."""
    prepare(connection, address, creates=True)
    entries = content.entries
    connection.fetch(
        "WITH made AS (INSERT INTO head(namespace, version) VALUES ($1::text, $2::bigint))"
        " INSERT INTO entry SELECT * FROM unnest($3::bytea[], $4::bigint[], $5::bytea[])",
        content.namespace,
        content.version,
        [to_bytes(name) for name in entries],
        [entry.version for entry in entries.values()],
        [entry.value for entry in entries.values()],
    )


class PostgresqlCatalogue:
    """A handle on the catalogue in a schema of a database. Nothing is opened before `claim`."""

    def __init__(
        self, address: DatabaseAddress, drawn: list[int], holder: str = "", lease: float = LEASE
    ) -> None:
        """`drawn` are the claims of earlier handles of this process."""
        self._address = address
        self._connection = DatabaseConnection(address)
        self._owner = Ownership(self._connection, address, CHANGES, drawn, holder, lease)
        self._is_claimed = False
        self._failure: StoreError | None = None

    def claim(self) -> int:
        if self._failure is not None:
            raise OutcomeUnknown(str(self._failure)) from self._failure
        try:
            self._connection.open()
            if self._owner.was_replaced():
                raise Fenced(f"another owner has claimed {self._address.shown}")
            self._owner.take(0)
        except ConnectionLost as problem:
            raise StoreError(str(problem)) from problem
        except asyncpg.PostgresError as problem:
            raise StoreError(f"{self._address.shown} cannot be claimed: {problem}") from problem
        self._is_claimed = True
        return self._owner.epoch

    def read_all(self) -> CatalogueContent:
        rows = self._fetch(
            "SELECT NULL::bytea AS name, version, convert_to(namespace, 'UTF8') AS value FROM head"
            " UNION ALL SELECT name, version, value FROM entry"
        )
        head = next(row for row in rows if row[0] is None)
        entries = {to_text(row[0]): VersionedEntry(row[1], row[2]) for row in rows if row[0] is not None}
        return CatalogueContent(to_text(head[2]), head[1], entries)

    def write(self, version: int, changes: Changes) -> None:
        there = [(to_bytes(name), value) for name, value in changes.items() if value is not None]
        rows = self._fetch(
            _CHANGE,
            self._owner.claim,
            version,
            [to_bytes(name) for name, value in changes.items() if value is None],
            [name for name, _ in there],
            [value for _, value in there],
            [to_bytes(name) for name in changes],
            [*changes.values()],
            KEPT_CHANGES,
        )
        is_owner, is_next = rows[0]
        if not is_owner:
            raise self._broken(Fenced(f"another owner has claimed {self._address.shown}"))
        if not is_next:
            raise self._broken(OutcomeUnknown(f"{version} is not the number of the next change"))

    def changes_since(self, version: int) -> dict[int, dict[str, bytes | None]] | None:
        rows = self._fetch(
            "SELECT version, NULL::bytea AS name, NULL::bytea AS value, true AS last FROM head UNION ALL"
            " SELECT version, name, value, false FROM change WHERE version > $1::bigint ORDER BY version",
            version,
        )
        found: dict[int, dict[str, bytes | None]] = {}
        last = version
        for number, name, value, is_head in rows:
            if is_head:
                last = number
            else:
                found.setdefault(number, {})[to_text(name)] = value
        return found if len(found) == max(0, last - version) else None

    def beat(self) -> None:
        self._check()
        try:
            self._owner.beat()
        except Fenced as fenced:
            raise self._broken(fenced) from None
        except (ConnectionLost, asyncpg.PostgresError) as problem:
            raise self._broken(OutcomeUnknown(str(problem))) from problem

    def release(self) -> None:
        if self._is_claimed and self._failure is None:
            try:
                self._owner.free()
                self._connection.close()
            except (ConnectionLost, asyncpg.PostgresError):
                self._connection.end()  # the end of the session leaves the catalogue to the next owner, too
        self._is_claimed = False

    def close(self) -> None:
        self._broken(OutcomeUnknown(f"{self._address.shown} is closed: open it again"))
        self._connection.drop()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._is_claimed:
            raise StoreError(f"{self._address.shown} is not claimed")

    def _fetch(self, statement: str, *values: object) -> list[Any]:
        self._check()
        try:
            return self._connection.fetch(statement, *values)
        except asyncpg.DiskFullError as problem:
            raise StoreFull(f"no space is left for {self._address.shown}") from problem
        except (ConnectionLost, asyncpg.PostgresError, ValueError) as problem:
            raise self._broken(OutcomeUnknown(f"{self._address.shown}: {problem}")) from problem

    def _broken(self, failure: StoreError) -> StoreError:
        if self._failure is None:
            self._failure = failure
        self._connection.end()
        return failure
