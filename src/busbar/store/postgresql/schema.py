"""The schema of a store: its tables, how it is created and when it is refused.

Tables
    owner       one row: the epoch, the claim of the present owner, and the session that it writes with.
    journal     one row for each commit: what the commit changed of counters, taps, writers, outbox rows and kept locks.
                Some rows have all of them, and the rows before those are deleted (journal.py).
    msg         every message, as in SQLite (store/sqlite/schema.py): (fragment, lane, n) is a place. Partial indexes have
                messages by due time, session, expiry, dead-letter number and target.
    dup         ids of duplicate detection, by segment.
    session     the sessions that have active messages; `session_line` is the order in which they are accepted.
    session_state  states of sessions.
    event       what happened to messages, until every tap has passed it.
    written     ids of repeating writers.
    definition  the identity of the store, and the definitions of the entities that its fragments are of.
    meta        what this schema is: application and version.

Rules
    * A schema that is not a store of Busbar, or newer, is refused and left as it is.
    * A schema is created in one transaction: there is never half a store.
    * Strings that clients choose are bytea: text takes no U+0000, and its order depends on a collation.
    * No row is changed by every commit. Dead versions of such a row make a store slow as soon as an old snapshot
      keeps vacuum from removing them.
"""

from __future__ import annotations

import time

import asyncpg

from busbar.store.contract import NewerSchema, StoreError
from busbar.store.postgresql.address import DatabaseAddress
from busbar.store.postgresql.connection import DatabaseConnection

SCHEMA_VERSION = 1
APPLICATION = "busbar messaging store"

_VACUUM = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,"
    " autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000"
)
_VACUUM_TOAST = (
    "toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000,"
    " toast.autovacuum_vacuum_cost_delay = 0"
)

OWNER_TABLE = """
CREATE TABLE owner(
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    claim bigint NOT NULL,
    holder text NOT NULL,
    pid integer NOT NULL,
    pid_started timestamptz,
    beat timestamptz NOT NULL);
INSERT INTO owner(epoch, claim, holder, pid, beat) VALUES (0, 0, '', 0, now());
"""
_TABLES = f"""
CREATE TABLE meta(key text PRIMARY KEY, value text NOT NULL);
{OWNER_TABLE}
CREATE TABLE journal(
    commit bigint PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    snapshot boolean NOT NULL,
    data bytea NOT NULL) WITH ({_VACUUM});
ALTER TABLE journal ALTER data SET STORAGE EXTERNAL;
CREATE INDEX journal_snapshot ON journal(commit) WHERE snapshot;
CREATE TABLE msg(
    n bigint NOT NULL,
    enqueued bigint NOT NULL,
    ttl bigint NOT NULL,
    due bigint NOT NULL,
    dead bigint NOT NULL,
    fragment bigint NOT NULL,
    target bigint NOT NULL,
    deliveries integer NOT NULL,
    size integer NOT NULL,
    lane smallint NOT NULL,
    hops smallint NOT NULL,
    kind smallint NOT NULL,
    session bytea,
    overlay bytea,
    content bytea NOT NULL) WITH ({_VACUUM}, {_VACUUM_TOAST});
ALTER TABLE msg ALTER content SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX msg_place ON msg(fragment, lane, n);
CREATE INDEX msg_due ON msg(fragment, due, n) WHERE lane = 3;
CREATE INDEX msg_session ON msg(fragment, session, lane, n) WHERE session IS NOT NULL;
CREATE INDEX msg_expiry ON msg(fragment, session, (enqueued + ttl), n)
    WHERE session IS NOT NULL AND lane = 0 AND ttl > 0;
CREATE INDEX msg_dead ON msg(fragment, lane, dead, enqueued) WHERE dead > 0;
CREATE INDEX msg_out ON msg(fragment, target, n) WHERE lane = 7;
CREATE TABLE dup(
    at bigint NOT NULL,
    n bigint NOT NULL,
    fragment bigint NOT NULL,
    segment bigint NOT NULL,
    id bytea NOT NULL,
    PRIMARY KEY (fragment, segment, id)) WITH ({_VACUUM});
CREATE TABLE session(
    fragment bigint NOT NULL,
    turn bigint NOT NULL,
    active bigint NOT NULL,
    id bytea NOT NULL,
    PRIMARY KEY (fragment, id)) WITH (fillfactor = 70, {_VACUUM});
CREATE INDEX session_line ON session(fragment, turn);
CREATE TABLE session_state(
    fragment bigint NOT NULL,
    at bigint NOT NULL,
    size bigint NOT NULL,
    id bytea NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (fragment, id)) WITH ({_VACUUM}, {_VACUUM_TOAST});
ALTER TABLE session_state ALTER state SET STORAGE EXTERNAL;
CREATE TABLE event(
    fragment bigint NOT NULL,
    at bigint NOT NULL,
    n bigint NOT NULL,
    time bigint NOT NULL,
    enqueued bigint NOT NULL,
    deliveries bigint NOT NULL,
    outcome integer NOT NULL,
    reason bytea NOT NULL,
    PRIMARY KEY (fragment, at)) WITH ({_VACUUM});
CREATE TABLE written(
    fragment bigint NOT NULL,
    writer bigint NOT NULL,
    batch bigint NOT NULL,
    id bytea NOT NULL,
    PRIMARY KEY (fragment, writer, batch, id)) WITH ({_VACUUM});
CREATE TABLE definition(name bytea PRIMARY KEY, value bytea NOT NULL);
INSERT INTO meta VALUES ('application', '{APPLICATION}'), ('schema', '{SCHEMA_VERSION}');
"""


def identity(connection: DatabaseConnection, address: DatabaseAddress) -> str | None:
    """The identity of the store in the schema; None if there is no store. Raises StoreError if the schema has something
    else, or a newer store."""
    found = read_meta(connection, address, APPLICATION, SCHEMA_VERSION, "store")
    return None if found is None else found.get("identity", "")


def read_meta(
    connection: DatabaseConnection, address: DatabaseAddress, application: str, version: int, what: str
) -> dict[str, str] | None:
    """The rows of `meta`; None if the schema has no tables. Raises StoreError if the schema is of another application, or of
    a version above this one."""
    (tables,) = connection.fetch(
        "SELECT count(*) FILTER (WHERE relname = 'meta'), count(*) FROM pg_class"
        " WHERE relnamespace = to_regnamespace($1::text)",
        f'"{address.schema}"',
    )
    if tables[1] == 0:
        return None
    found: dict[str, str] = {}
    if tables[0]:
        try:
            found = dict(connection.fetch("SELECT key, value FROM meta"))
        except asyncpg.UndefinedColumnError:
            pass  # it is another application's
    if found.get("application") != application:
        raise StoreError(
            f"{address.shown} is not a Busbar {what}: its schema has tables of another application"
        )
    there = found.get("schema", "0")
    if int(there) > version:
        raise NewerSchema(
            f"{address.shown} has version {there} of the schema: this Busbar knows up to version {version}"
        )
    return found


def create(connection: DatabaseConnection, address: DatabaseAddress, identity: str) -> None:
    """Create the tables of an empty store, all or none."""
    create_tables(connection, address, f"{_TABLES} INSERT INTO meta VALUES ('identity', '{identity}');")


def create_tables(connection: DatabaseConnection, address: DatabaseAddress, tables: str) -> None:
    """Create the schema, if it is not there, and tables in it, all or none."""
    name = address.schema
    has_schema = connection.fetch("SELECT to_regnamespace($1::text) IS NOT NULL", f'"{name}"')[0][0]
    made = "" if has_schema else f'CREATE SCHEMA "{name}";'
    connection.execute(f"BEGIN; {made} {tables} COMMIT")


def set_aside(connection: DatabaseConnection, address: DatabaseAddress) -> str:
    """Give the schema another name, under which an operator finds what it has. Returns that name."""
    suffix = f"_replaced_{time.time_ns() // 1_000_000}"
    aside = address.schema[: 63 - len(suffix)] + suffix
    connection.execute(f'ALTER SCHEMA "{address.schema}" RENAME TO "{aside}"')
    return aside
