"""Connections that break, sessions and servers that are killed, while a store in PostgreSQL commits: nothing is lost,
nothing is doubled, and no error is seen."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from busbar.fragment.changes import Changes, Head, SessionChange
from busbar.fragment.reads import ReadWaitingSessions
from busbar.model.message import ACTIVE, DEAD
from busbar.store.contract import StoreFull
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.connection import ConnectionLost, DatabaseConnection
from busbar.store.postgresql.location import PostgresqlLocation
from busbar.store.postgresql.store import PostgresqlStore
from harness.faults.database_proxy import Cut, DatabaseProxy
from harness.postgresql import PostgresqlServer, own_database
from tests.conformance.stores import lanes, record

CUTS = 60
_names = itertools.count(1)


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with own_database() as started:
        yield started


class Writer:
    """Commits messages one by one, and keeps the last KEPT of them. Counters and a session's row are written by difference,
    so that a commit that is made twice shows."""

    KEPT = 5

    def __init__(self, url: str) -> None:
        self.store = PostgresqlStore(parse_address(url, "store-0"))
        self.store.claim()
        self.n = 0

    def write(self) -> None:
        self.n += 1
        changes = Changes(1)
        changes.puts[ACTIVE] = [record(self.n)]
        gone = self.n - self.KEPT
        if gone > 0:
            changes.deletes[ACTIVE] = [gone]
        session = changes.sessions["s"] = SessionChange()
        session.turn, session.active = 1, 1
        changes.head = Head(1, self.n, [min(self.n, self.KEPT)] + [0] * 9, 0)
        self.store.commit([changes])

    def session(self) -> int:
        """The process of the server that serves the store."""
        connection = self.store._connection._connection
        assert connection is not None
        return int(connection.get_server_pid())

    def check(self, url: str) -> None:
        """Look at the store with another handle."""
        self.store.release()
        self.store.close()
        other = PostgresqlStore(parse_address(url, "store-0"))
        other.claim()
        assert lanes(other, 1) == {ACTIVE: list(range(max(1, self.n - self.KEPT + 1), self.n + 1))}
        assert [(head.last, head.counts[ACTIVE]) for head in other.heads()] == [
            (self.n, min(self.n, self.KEPT))
        ]
        assert other._connection.fetch("SELECT active FROM session")[0][0] == self.n
        assert other._connection.fetch("SELECT max(commit) FROM journal")[0][0] == self.n
        line = ReadWaitingSessions(0, 10)
        other.read(1, [line])
        assert line.rows == [("s", 1, 0)]
        other.close()


@pytest.mark.parametrize("cuts", [CUTS, pytest.param(1_000, marks=pytest.mark.deep)])
def test_a_cut_connection_loses_nothing_and_doubles_nothing(
    database: PostgresqlServer, cuts: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(18)
    schema = f"faults_{next(_names)}"
    with DatabaseProxy(database.port) as proxy:
        writer = Writer(database.url(schema, proxy.port))
        for at in range(cuts):
            writer.write()
            proxy.cut([Cut.ANSWER, Cut.BOTH, Cut.REQUEST][at % 3])
            writer.write()
            if chance.random() < 0.2:
                proxy.cut(chance.choice(list(Cut)))  # also while the owner claims again
        assert proxy.cuts >= cuts
        for outcome in ("was made", "was not made"):
            assert caplog.text.count(outcome) >= cuts // 4
        writer.check(database.url(schema))


def test_a_connection_that_ends_before_a_prepared_statement_is_used_is_lost(
    database: PostgresqlServer,
) -> None:
    address = parse_address(database.url(f"faults_{next(_names)}"), "store-0")
    ended, connection = DatabaseConnection(address), DatabaseConnection(address)
    for each in (ended, connection):
        each.open()
        each.fetch("SELECT 7")
    prepared = dict(ended._prepared)
    ended.end()
    connection._prepared = prepared  # they are of a connection that ended after they were prepared
    with pytest.raises(ConnectionLost):
        connection.fetch("SELECT 7")
    connection.open()
    assert connection.fetch("SELECT 7")[0][0] == 7
    for each in (ended, connection):
        each.drop()


def test_killed_sessions_lose_nothing(database: PostgresqlServer) -> None:
    schema = f"faults_{next(_names)}"
    writer = Writer(database.url(schema))
    ended = threading.Event()

    def end_sessions() -> None:
        other = PostgresqlStore(parse_address(database.url(f"faults_{next(_names)}"), "store-1"))
        other.claim()
        while not ended.wait(0.2):
            other._connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
                f"busbar {schema}",
            )
        other.close()

    ending = threading.Thread(target=end_sessions)
    ending.start()
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        writer.write()
    ended.set()
    ending.join()
    assert writer.n > 10
    writer.check(database.url(schema))


def test_a_server_that_crashes_and_is_back_is_a_pause(database: PostgresqlServer) -> None:
    schema = f"faults_{next(_names)}"
    writer = Writer(database.url(schema))

    def crash() -> None:
        time.sleep(0.3)
        # The server ends all sessions if one of them is killed, and recovers.
        os.kill(writer.session(), signal.SIGKILL)
        time.sleep(0.7)
        database.kill()
        time.sleep(0.5)
        database.start()

    crashing = threading.Thread(target=crash)
    crashing.start()
    while crashing.is_alive():
        writer.write()
    for _ in range(20):
        writer.write()
    writer.check(database.url(schema))


def test_a_failover_to_a_synchronous_standby_loses_nothing() -> None:
    """The address names both servers; the owner goes on with the one that accepts writes."""
    with own_database() as primary, contextlib.ExitStack() as stack:
        standby = primary.standby("second")
        stack.callback(standby.remove)
        standby.start()
        url = primary.url("failover").replace(f":{primary.port}", f":{primary.port},127.0.0.1:{standby.port}")
        writer = Writer(url)
        writer.store._connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
        writer.store._connection.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        while "synchronous with 1 of second" not in PostgresqlLocation(url, "store-0", "").status():
            assert time.monotonic() < deadline
            time.sleep(0.05)

        def fail_over() -> None:
            time.sleep(0.5)
            primary.kill()
            standby.promote()

        failing = threading.Thread(target=fail_over)
        failing.start()
        while failing.is_alive():
            writer.write()
        for _ in range(20):
            writer.write()
        writer.check(standby.url("failover"))


def test_a_full_disk_refuses_with_certainty(database: PostgresqlServer) -> None:
    """The server raises what it raises for a disk without space; a trigger stands for the disk."""
    schema = f"faults_{next(_names)}"
    writer = Writer(database.url(schema))
    writer.write()
    writer.store._connection.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.lane = 1 THEN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'full'; END IF; RETURN NEW;"
        " END $$;"
        " CREATE TRIGGER full_disk BEFORE INSERT ON msg FOR EACH ROW EXECUTE FUNCTION full_disk()"
    )
    refused = Changes(1)
    refused.puts = {ACTIVE: [record(50)], DEAD: [record(51)]}
    with pytest.raises(StoreFull):
        writer.store.commit([refused])
    writer.write()
    writer.check(database.url(schema))
