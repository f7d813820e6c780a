"""What only the store in PostgreSQL does: addresses, refusals, the journal, owners."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from busbar.fragment.changes import Changes, Head
from busbar.model.message import ACTIVE
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreInUse
from busbar.store.location import StoreCounters
from busbar.store.postgresql import journal, ownership
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.location import PostgresqlLocation
from busbar.store.postgresql.store import LastKnown, PostgresqlStore
from harness.faults.database_proxy import DatabaseProxy
from harness.postgresql import PostgresqlServer, own_database, shared_database
from tests.conformance.stores import lanes, put, record

_names = itertools.count(1)


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    """For tests that change the server."""
    with own_database() as started:
        yield started


def schema() -> str:
    return f"unit_{next(_names)}"


def opened(url: str, known: LastKnown | None = None) -> PostgresqlStore:
    store = PostgresqlStore(parse_address(url, "store-0"), known)
    store.claim()
    return store


# Addresses


def test_an_address_names_a_schema_or_the_store_does() -> None:
    given = parse_address("postgresql://u@h/db?schema=mine&sslmode=require", "store-3")
    assert (given.schema, given.dsn) == ("mine", "postgresql://u@h/db?sslmode=require")
    assert parse_address("postgres://u@h/db", "store-3").schema == "busbar_store_3"


@pytest.mark.parametrize(
    "url", ["sqlite:x", "postgresql://h/db?schema=Not%20one", "postgresql://h/db?schema=pg_x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StoreError):
        parse_address(url, "store-0")


def test_a_password_is_not_shown() -> None:
    address = parse_address("postgresql://u:se%40cret@h:1,i:2/db?password=secret&sslmode=require", "store-0")
    assert address.shown == "postgresql://u@h:1,i:2/db?sslmode=require&schema=busbar_store_0"
    assert "se%40cret" in address.dsn


# Servers that are refused


def test_a_server_that_forgets_at_a_power_cut_is_refused(database: PostgresqlServer) -> None:
    admin = opened(database.url(schema()))
    for setting in ("fsync", "full_page_writes"):
        admin._connection.execute(f"ALTER SYSTEM SET {setting} = off")
        admin._connection.execute("SELECT pg_reload_conf()")
        _until_set(admin, setting, "off")
        with pytest.raises(StoreError, match=f"{setting} = off"):
            opened(database.url(schema()))
        admin._connection.execute(f"ALTER SYSTEM RESET {setting}")
        admin._connection.execute("SELECT pg_reload_conf()")
        _until_set(admin, setting, "on")
    admin.close()


def _until_set(admin: PostgresqlStore, setting: str, value: str) -> None:
    deadline = time.monotonic() + 10
    while admin._connection.fetch("SELECT current_setting($1)", setting)[0][0] != value:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pooler_is_refused() -> None:
    with (
        DatabaseProxy(shared_database().port, is_pooler=True) as proxy,
        pytest.raises(StoreError, match="pooler"),
    ):
        opened(shared_database().url(schema(), proxy.port))


def test_a_server_without_tls_is_refused_where_tls_is_asked_for() -> None:
    with pytest.raises(StoreError, match="SSL"):
        opened(f"{shared_database().url(schema())}&sslmode=require")


def test_a_password_is_found_where_libpq_finds_it(
    database: PostgresqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = database.data / "pg_hba.conf"
    rules.write_text("host all busbar 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n")
    database.restart()
    admin = opened(database.url("admin"))
    admin._connection.execute(
        "CREATE ROLE app LOGIN PASSWORD 'secret'; GRANT CREATE ON DATABASE postgres TO app"
    )
    admin.close()
    url = database.url().replace("busbar@", "app@")
    with pytest.raises(StoreError, match="password"):
        opened(url)
    monkeypatch.setenv("PGPASSWORD", "secret")
    opened(url).close()
    monkeypatch.delenv("PGPASSWORD")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"127.0.0.1:{database.port}:*:app:secret\n")
    passwords.chmod(0o600)
    opened(f"{url}?passfile={passwords}").close()


def test_a_schema_of_another_application_is_left_alone() -> None:
    name = schema()
    store = opened(shared_database().url(schema()))
    store._connection.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.meta(theirs text)")
    with pytest.raises(StoreError, match="another application"):
        opened(shared_database().url(name))
    store.close()


def test_a_newer_schema_is_refused() -> None:
    url = shared_database().url(schema())
    store = opened(url)
    store._connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    store.close()
    with pytest.raises(StoreError, match="version 99"):
        opened(url)


def test_a_store_of_another_namespace_is_neither_opened_nor_replaced() -> None:
    url = shared_database().url(schema())
    theirs = PostgresqlLocation(url, "store-0", "them").make()
    theirs.claim()
    put(theirs, 1, ACTIVE, record(1))
    theirs.release()
    ours = PostgresqlLocation(url, "store-0", "us")
    for handle in (ours.open, ours.make):
        with pytest.raises(StoreError, match="another namespace"):
            handle().claim()
    theirs.claim()
    assert lanes(theirs, 1) == {ACTIVE: [1]}
    theirs.close()


def test_a_store_that_is_made_again_leaves_the_old_one_under_another_name() -> None:
    location = PostgresqlLocation(shared_database().url(schema()), "store-0", "us")
    store = location.make()
    store.claim()
    put(store, 1, ACTIVE, record(1))
    store.release()
    again = location.make()
    again.claim()
    assert lanes(again, 1) == {}
    assert isinstance(again, PostgresqlStore)
    aside = again._connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE $1", "%_replaced_%")
    assert len(aside) == 1
    assert again._connection.fetch(f"SELECT n FROM {aside[0][0]}.msg")[0][0] == 1
    assert location.size() > 0
    again.close()


# The journal


def test_the_statement_of_a_commit_is_prepared_once() -> None:
    store = opened(shared_database().url(schema()))
    for n in range(1, 4):
        put(store, 1, ACTIVE, record(n))
    plans = "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE 'WITH fence%'"
    assert [count for (count,) in store._connection.fetch(plans)] == [3]
    store.close()


def test_the_journal_is_cut_behind_a_snapshot_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_COMMITS", 10)
    monkeypatch.setattr(journal, "TRIM", 4)
    url = shared_database().url(schema())
    store = opened(url)
    for n in range(1, 48):
        changes = Changes(n % 5)
        changes.writers["w"] = (n, n)
        changes.head = Head(n % 5, n, [n] + [0] * 9, n)
        store.commit([changes])
    before = [(head.fragment, head.last, head.counts) for head in store.heads()]
    numbers = [n for (n,) in store._connection.fetch("SELECT commit FROM journal ORDER BY commit")]
    assert numbers == list(range(numbers[0], 48)) and len(numbers) < 20
    store.close()
    again = opened(url)
    assert [(head.fragment, head.last, head.counts) for head in again.heads()] == before
    assert [again.writers(f)["w"] for f in range(5)] == [(45, 45), (46, 46), (47, 47), (43, 43), (44, 44)]
    put(again, 1, ACTIVE, record(1))
    again.close()


def test_commits_that_the_server_has_lost_are_noticed_and_numbers_go_on(
    database: PostgresqlServer, tmp_path: Path
) -> None:
    """As after a failover to a standby that was behind."""
    location = PostgresqlLocation(database.url(schema()), "store-0", "us")
    store = location.make()
    epoch = store.claim()
    _send(store, 1, 5)
    _copy(database, tmp_path / "standby")
    _send(store, 6, 9)
    database.stop()
    shutil.rmtree(database.data)
    shutil.copytree(tmp_path / "standby", database.data)
    database.own_data()
    database.start()
    with pytest.raises(OutcomeUnknown, match="lost"):
        _send(store, 10, 10)
    store.close()
    again = location.open()
    # The difference of two tells the host that what it has in memory does not hold any more.
    assert again.claim() == epoch + 2
    assert [(head.last, head.counts[ACTIVE]) for head in again.heads()] == [(9, 5)]
    assert location.place.counters() == StoreCounters(reclaims=2, repeated=1, lost=4)
    assert lanes(again, 1) == {ACTIVE: [1, 2, 3, 4, 5]}
    _send(again, 10, 10)
    again.close()
    third = location.open()
    assert third.claim() == epoch + 3
    assert lanes(third, 1) == {ACTIVE: [1, 2, 3, 4, 5, 10]}
    third.close()


def _send(store: object, first: int, last: int) -> None:
    assert isinstance(store, PostgresqlStore)
    for n in range(first, last + 1):
        changes = Changes(1)
        changes.puts[ACTIVE] = [record(n)]
        changes.head = Head(1, n, [n] + [0] * 9, n)
        store.commit([changes])


def _copy(database: PostgresqlServer, target: Path) -> None:
    database.stop()
    shutil.copytree(database.data, target)
    database.start()


# Owners


def test_a_store_that_is_used_is_not_claimed() -> None:
    url = shared_database().url(schema())
    store = opened(url)
    ended = threading.Event()

    def use() -> None:
        for n in itertools.count(1):
            put(store, 1, ACTIVE, record(n))
            if ended.wait(0.05):
                return

    using = threading.Thread(target=use)
    using.start()
    try:
        with pytest.raises(StoreInUse, match=f"process {os.getpid()} on"):
            opened(url)
    finally:
        ended.set()
        using.join()
    store.close()


def test_an_idle_owner_shows_that_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    location = PostgresqlLocation(shared_database().url(schema()), "store-0", "us")
    store = location.make()
    store.claim()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            location.place.fingerprint()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with pytest.raises(StoreInUse):
            PostgresqlLocation(
                shared_database().url(location._address.schema), "store-0", "us"
            ).open().claim()
    finally:
        ended.set()
        looking.join()
    store.close()


def test_an_owner_that_hangs_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LEASE", 0.3)
    url = shared_database().url(schema())
    old = opened(url)
    put(old, 1, ACTIVE, record(1))
    new = opened(url)
    put(new, 1, ACTIVE, record(2))
    with pytest.raises(Fenced):
        put(old, 1, ACTIVE, record(3))
    with pytest.raises(Fenced):
        old.heads()
    assert lanes(new, 1) == {ACTIVE: [1, 2]}
    old.close()
    new.close()


def test_what_an_old_owner_has_in_its_socket_is_not_written() -> None:
    """Also where its session was not ended: the claim in the statement decides."""
    name = schema()
    with DatabaseProxy(shared_database().port) as proxy:
        old = opened(shared_database().url(name, proxy.port))
        put(old, 1, ACTIVE, record(1))
        proxy.hold()
        caught: list[BaseException] = []

        def write() -> None:
            try:
                put(old, 1, ACTIVE, record(2))
            except BaseException as error:
                caught.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        other = opened(shared_database().url(schema()))
        other._connection.execute(f"UPDATE {name}.owner SET claim = claim + 1, epoch = epoch + 1")
        proxy.release()
        writing.join(30)
        assert [type(error) for error in caught] == [Fenced]
        assert [n for (n,) in other._connection.fetch(f"SELECT n FROM {name}.msg")] == [1]
        other.close()
        old.close()
