"""The nodes of a namespace in their table, and what they agree on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from busbar.store.contract import StoreError, StoreInUse
from busbar.store.postgresql.members import Member, MemberTable
from harness.postgresql import shared_database

_names = itertools.count(1)
A = Member("a", "1", "h:1", "here", "1.0", 1, 2)


def url() -> str:
    return shared_database().url(f"unit_members_{next(_names)}")


def test_nodes_see_each_other() -> None:
    address = url()
    here, there = MemberTable(address), MemberTable(address)
    here.join(A, 6.0)
    there.join(replace(A, name="b", address="h:2"), 6.0)
    assert there.beat(replace(A, name="b"), ["b.0.x", "b.1.y"])
    seen = {member.name: member for member in here.look().members}
    assert seen["b"].address == "h:2" and seen["b"].gateways == "b.0.x b.1.y" and seen["b"].age < 60
    there.end(replace(A, name="b"))
    assert [member.name for member in here.look().members if member.has_ended] == ["b"]
    here.close()
    there.close()


def test_a_name_belongs_to_one_living_node() -> None:
    address = url()
    table = MemberTable(address)
    table.join(A, 6.0)
    table.beat(A, ["a.0.x"])
    with pytest.raises(StoreInUse, match="a node named 'a' is alive at h:1"):
        table.join(replace(A, incarnation="2", place="elsewhere"), 6.0)
    again = replace(A, incarnation="2")
    assert table.join(again, 6.0) == ["a.0.x"], "the lock of the directory proves the end of the first"
    assert not table.beat(A, []), "it was replaced"
    assert table.join(replace(A, incarnation="3", place="elsewhere"), 0.0) == [], (
        "the lease of the other is over"
    )
    table.close()


def test_secrets_are_made_once_and_stores_are_listed() -> None:
    address = url()
    first, second = MemberTable(address), MemberTable(address)
    assert first.secret("key", lambda: b"one") == second.secret("key", lambda: b"two") == b"one"
    names = [f"store-{number}" for number in range(9)]
    listed = first.add_stores(["postgresql://x/1", "postgresql://x/1"], names)
    assert [store.name for store in listed] == ["store-0", "store-1"]
    more = second.add_stores(["postgresql://x/1", "postgresql://x/2"], names)
    assert [(store.name, store.url[-1]) for store in more] == [
        ("store-0", "1"),
        ("store-1", "1"),
        ("store-2", "2"),
    ]
    assert second.look().stores == more and len({store.identity for store in more}) == 3
    first.close()
    second.close()


def test_a_database_that_is_away_is_an_error() -> None:
    table = MemberTable("postgresql://busbar@127.0.0.1:9/none")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        table.look()
    table.close()
