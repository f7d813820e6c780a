"""Taps from outside: what was received is still there for who has not passed it, up to the limits and no further."""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Delivery, Message
from proton.reactor import AtMostOnce

from busbar.cli.main import run
from busbar.model.effects import ABANDONED, COMPLETED, CONSUMED, DEAD_LETTERED, RECEIVED_AND_DELETED
from busbar.model.message import ACTIVE, DEAD, KEPT
from busbar.pages.rows import properties_of
from harness.serving import PATIENCE, Busbar, config_text
from harness.waiting import eventually
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.taps import Refused, Taps, body_of, write

LIMITS = {**PATIENCE, "min_lock_duration": 100, "max_taps": 3, "max_tap_page_bytes": 4096}
REGULAR, PARTITIONED = 16, 4

QUEUES: dict[str, dict[str, object]] = {
    **{f"q{n}": {} for n in range(REGULAR)},
    **{f"p{n}": {"EnablePartitioning": True} for n in range(PARTITIONED)},
}
pytestmark = [pytest.mark.timeout(60), pytest.mark.server(QUEUES, LIMITS, checked=True)]


@pytest.fixture
def client(server: Busbar) -> Iterator[PlainAmqp]:
    connection = PlainAmqp(server.port, server.key)
    yield connection
    connection.close()


_regular = itertools.count()
_partitioned = itertools.count()


@pytest.fixture
def taps(client: PlainAmqp) -> Taps:
    return Taps(client, f"q{next(_regular)}")


@pytest.fixture
def spread(client: PlainAmqp) -> Taps:
    """Of a partitioned queue."""
    return Taps(client, f"p{next(_partitioned)}")


def send(taps: Taps, *bodies: str) -> None:
    taps.client.send(
        taps.queue, *[Message(id=body[:20], body=body.encode(), inferred=True) for body in bodies]
    )


def settle(
    taps: Taps, count: int, outcome: int = Delivery.ACCEPTED, queue: str = "", **fields: object
) -> None:
    receiver = taps.client.receiver(queue or taps.queue, count)
    for _ in range(count):
        _message, delivery = taps.client.take(receiver)
        assert taps.client.settle(delivery, outcome, **fields) == outcome
    receiver.close()


def bodies(taps: Taps, name: str | None, after: int, upto: int, fragment: int = 0) -> list[str]:
    return [body_of(row).decode() for row in taps.rows(name, after, upto, fragment)]


def test_what_was_completed_is_read_again_until_it_was_passed(taps: Taps) -> None:
    send(taps, "before")
    made = taps("create-tap", name="archive", owner="me")
    assert made["owner"] == "me" and made["fragments"][0]["position"] == 1
    send(taps, "a", "b", "c")
    settle(taps, 3)
    end = taps.ends()[0]
    rows = taps.rows("archive", 1, end)
    assert [(row.n, row.lane, body_of(row)) for row in rows] == [
        (2, KEPT, b"a"),
        (3, KEPT, b"b"),
        (4, ACTIVE, b"c"),
    ]
    settle(taps, 1)
    assert [(row.n, row.content) for row in taps.rows("archive", 1, end)] == [(r.n, r.content) for r in rows]
    shown = taps("show-tap", name="ARCHIVE")["fragments"][0]
    assert (shown["kept"], shown["end"], shown["available"]) == (3, end, True) and shown["kept-bytes"] > 0

    taps("advance-tap", name="archive", owner="me", positions={0: 3})
    assert bodies(taps, "archive", 3, end) == ["c"]
    with pytest.raises(Refused, match="busbar:tap-passed"):
        taps.rows("archive", 1, end)
    taps("advance-tap", name="archive", owner="me", positions={0: 2})  # going back changes nothing
    taps("advance-tap", name="archive", owner="me", positions={0: end})
    eventually(lambda: taps("show-tap", name="archive")["fragments"][0]["kept"] == 0)
    with pytest.raises(Refused):
        taps("advance-tap", name="archive", owner="me", positions={0: end + 1})


def test_a_tap_can_begin_with_what_is_there_and_two_do_not_disturb_each_other(taps: Taps) -> None:
    send(taps, "a", "b")
    taps("create-tap", name="all", from_earliest=True)
    taps("create-tap", name="new")
    send(taps, "c")
    settle(taps, 2)
    end = taps.ends()[0]
    assert bodies(taps, None, 0, end) == ["c"], "what the queue holds, whatever is kept for taps"
    settle(taps, 1)
    assert bodies(taps, "all", 0, end) == ["a", "b", "c"]
    assert bodies(taps, "new", 2, end) == ["c"]
    taps("own-tap", name="all", owner="me")
    taps("advance-tap", name="all", owner="me", positions={0: end})
    assert bodies(taps, "new", 2, end) == ["c"]
    taps("delete-tap", name="new")
    eventually(lambda: taps("show-tap", name="all")["fragments"][0]["kept"] == 0)


def test_pages_are_bounded(taps: Taps) -> None:
    taps("create-tap", name="t")
    send(taps, *[f"{n:04}" + "x" * 200 for n in range(60)])
    end = taps.ends()[0]
    page = taps("read-tap", name="t", after=0, upto=end, count=1_000, max_bytes=1 << 30)
    assert 0 < page["count"] < 60 and page["upto"] < end and len(page["rows"]) < 3 * 4096
    assert taps("read-tap", name="t", after=0, upto=end, count=7)["count"] == 7
    assert [body[:4] for body in bodies(taps, "t", 0, end)] == [f"{n:04}" for n in range(60)]


def test_a_tap_has_one_owner(taps: Taps) -> None:
    taps("create-tap", name="t")
    send(taps, "a")
    taps("own-tap", name="t", owner="one")
    for operation, body in (
        ("own-tap", {"owner": "two"}),
        ("advance-tap", {"owner": "two", "positions": {0: 1}}),
        ("resume-tap", {"owner": "two"}),
    ):
        with pytest.raises(Refused, match="busbar:tap-owned") as refused:
            taps(operation, name="t", **body)
        assert refused.value.status == 409
    assert taps("own-tap", name="t", owner="two", take_over=True)["owner"] == "two"
    taps("advance-tap", name="t", owner="two", positions={0: 1})
    with pytest.raises(Refused, match="busbar:tap-owned"):
        taps("advance-tap", name="t", owner="one", positions={0: 1})


def test_taps_are_limited_named_and_found(taps: Taps) -> None:
    assert taps("list-taps")["taps"] == []
    for name in ("a", "b", "c"):
        taps("create-tap", name=name)
    assert [tap["name"] for tap in taps("list-taps")["taps"]] == ["a", "b", "c"]
    for body, condition in (
        ({"name": "d"}, "amqp:resource-limit-exceeded"),
        ({"name": "A"}, "com.microsoft:entity-already-exists"),
        ({"name": "a b"}, "com.microsoft:argument-error"),
        ({}, "com.microsoft:argument-error"),
    ):
        with pytest.raises(Refused) as refused:
            taps("create-tap", **body)
        assert refused.value.condition == condition
    for operation in ("show-tap", "delete-tap"):
        with pytest.raises(Refused, match="no tap 'x'") as refused:
            taps(operation, name="x")
        assert (refused.value.status, refused.value.condition) == (404, "amqp:not-found")


def test_links_stay_when_taps_change(taps: Taps) -> None:
    receiver = taps.client.receiver(taps.queue, 10)
    sender = taps.client.connection.create_sender(taps.queue)
    taps("create-tap", name="t")
    taps("own-tap", name="t", owner="me")
    sender.send(Message(body=b"x", inferred=True))
    taps("delete-tap", name="t")
    message, _delivery = taps.client.take(receiver)
    assert message.body == b"x"


def test_a_tap_that_falls_behind_is_truncated_and_says_so(taps: Taps) -> None:
    taps("create-tap", name="small", owner="me", max_size=2_000)
    for n in range(12):
        send(taps, f"{n:02}" + "x" * 240)
        settle(taps, 1)
    eventually(lambda: bool(taps("show-tap", name="small")["truncated"]))
    shown = taps("show-tap", name="small")["fragments"][0]
    assert shown["lost"] > 0 and shown["truncated"]
    with pytest.raises(Refused, match="busbar:tap-truncated") as refused:
        taps.rows("small", 0, 12)
    assert str(shown["lost"]) in refused.value.text
    send(taps, "sent anyway")
    lost = taps("resume-tap", name="small", owner="me")["fragments"][0]
    assert not lost["truncated"] and lost["position"] >= shown["lost"]
    end = taps.ends()[0]
    assert bodies(taps, "small", lost["position"], end)[-1] == "sent anyway"


def test_old_messages_truncate_too(taps: Taps) -> None:
    taps("create-tap", name="brief", owner="me", max_age=200)
    send(taps, "a")
    settle(taps, 1)
    eventually(lambda: bool(taps("show-tap", name="brief")["truncated"]))
    with pytest.raises(Refused, match="busbar:tap-truncated"):
        taps.rows("brief", 0, 1)


def test_events_say_what_became_of_messages(taps: Taps) -> None:
    taps("create-tap", name="e", events=True, owner="me")
    send(taps, "abandoned then completed", "buried", "deleted")
    settle(taps, 1, Delivery.MODIFIED, failed=True)
    settle(taps, 1)
    settle(taps, 1, Delivery.REJECTED)
    taps.client.connection.create_receiver(taps.queue, credit=1, options=AtMostOnce()).receive()
    eventually(lambda: taps("ends")["event-ends"][0] == 4)
    events = taps.events("e")
    assert [(event.at, event.n, event.outcome, event.deliveries) for event in events] == [
        (1, 1, ABANDONED, 1),
        (2, 1, COMPLETED, 1),
        (3, 2, DEAD_LETTERED, 0),
        (4, 3, RECEIVED_AND_DELETED, 0),
    ]
    assert all(0 < event.enqueued <= event.time for event in events)
    taps("advance-tap", name="e", owner="me", stream="events", positions={0: 2})
    assert [event.at for event in taps.events("e", 2)] == [3, 4]
    with pytest.raises(Refused, match="busbar:tap-passed"):
        taps("read-tap", name="e", stream="events", after=0, upto=1)
    assert bodies(taps, "e", 0, 3)[1:] == ["buried", "deleted"], "messages have a position of their own"


def test_dead_letters_have_taps_of_their_own(taps: Taps) -> None:
    dead = Taps(taps.client, taps.queue, dead_letter=True)
    dead("create-tap", name="t", owner="me")
    taps("create-tap", name="t")
    send(taps, "a", "b", "c")
    receiver = taps.client.receiver(taps.queue, 3)
    taken = [taps.client.take(receiver) for _ in range(3)]
    for index in (2, 0):  # not in the order of their numbers
        assert taps.client.settle(taken[index][1], Delivery.REJECTED) == Delivery.REJECTED
    receiver.close()
    end = dead("ends")["dead-ends"][0]
    rows = dead.rows("t", 0, end)
    assert [(row.n, row.dead, row.lane) for row in rows] == [(3, 1, DEAD), (1, 2, DEAD)]
    settle(taps, 2, queue=f"{taps.queue}/$deadletterqueue")
    assert [row.n for row in dead.rows("t", 0, end)] == [3, 1]
    dead("advance-tap", name="t", owner="me", positions={0: 1})
    assert [row.n for row in dead.rows("t", 1, end)] == [1]
    assert isinstance(properties_of(rows[0].overlay), dict)
    assert [tap["dead-letter"] for tap in dead("list-taps")["taps"]] == [True]
    assert {row.n for row in taps.rows("t", 0, taps.ends()[0])} == {1, 2, 3}


def test_a_tap_that_consumes_has_the_queue_for_itself(taps: Taps) -> None:
    send(taps, "a", "b", "c")
    receiver = taps.client.receiver(taps.queue, 1)
    _message, locked = taps.client.take(receiver)
    made = taps("create-tap", name="eater", consumes=True, owner="me", lease=600)
    assert made["consumes"] and made["fragments"][0]["end"] == 0, "the first message is somebody's"
    assert taps.client.settle(locked, Delivery.ACCEPTED) == Delivery.ACCEPTED
    end = taps("show-tap", name="eater")["fragments"][0]["end"]
    assert end == 3 and bodies(taps, "eater", 0, end) == ["b", "c"]
    receiver.link.flow(5)
    taps.client.listen(0.2)
    assert not receiver.fetcher.has_message, "while the lease runs nobody else receives"
    taps("advance-tap", name="eater", owner="me", positions={0: 2})
    eventually(lambda: bodies(taps, None, 0, 3) == ["c"])
    message, _delivery = taps.client.take(receiver)
    assert message.body == b"c", "when it has run out, others do"


def test_consumed_messages_are_kept_for_other_taps(taps: Taps) -> None:
    taps("create-tap", name="watcher", events=True)
    taps("create-tap", name="eater", consumes=True, owner="me")
    send(taps, "a", "b")
    assert bodies(taps, "eater", 0, 2) == ["a", "b"]
    taps("advance-tap", name="eater", owner="me", positions={0: 2})
    eventually(lambda: [event.outcome for event in taps.events("watcher")] == [CONSUMED, CONSUMED])
    assert [(row.n, row.lane) for row in taps.rows("watcher", 0, 2)] == [(1, KEPT), (2, KEPT)]


def test_positions_of_a_time(taps: Taps) -> None:
    send(taps, "a")
    time.sleep(0.05)
    between = time.time_ns() // 1_000_000
    time.sleep(0.05)
    send(taps, "b")
    assert taps("find-time", time=between)["positions"] == {0: 1}
    assert taps("find-time", time=0)["positions"] == {0: 0}
    assert taps("find-time", time=between + 3_600_000)["positions"] == {0: 2}


def test_a_partitioned_queue_is_read_fragment_by_fragment(spread: Taps) -> None:
    spread("create-tap", name="t", from_earliest=True, owner="me")
    sent = [f"m{n}" for n in range(100)]
    for body in sent:
        send(spread, body)
    settle(spread, 100)
    ends = spread.ends()
    assert len(ends) == 16 and spread("ends")["fragments"] == 16
    found = [body for index, end in ends.items() for body in bodies(spread, "t", 0, end, index)]
    assert sorted(found) == sorted(sent)
    spread("advance-tap", name="t", owner="me", positions=ends)
    shown = spread("show-tap", name="t")["fragments"]
    assert {fragment["index"]: fragment["position"] for fragment in shown} == ends


# ---- writers ----


def test_a_batch_that_is_written_again_adds_nothing(taps: Taps, spread: Taps) -> None:
    for written in (taps, spread):
        client, queue = written.client, written.queue
        ids = [f"m{n}" for n in range(40)]
        assert write(client, queue, "job", 1, ids) == []
        assert write(client, queue, "job", 1, [*reversed(ids), "late"]) == []
        written("commit-writes", writer="job", batch=1)
        assert write(client, queue, "job", 1, ids) == []
        assert write(client, queue, "other", 1, ["m0"]) == [], "another writer's ids are its own"
        written("commit-writes", writer="job", batch=2)
        assert set(write(client, queue, "job", 1, ids)) == {"busbar:batch-over"}, "a zombie"
        assert write(client, queue, "job", 2, ["m0"]) == [], "the ids of an old batch are forgotten"
        found = [
            body for index, end in written.ends().items() for body in bodies(written, None, 0, end, index)
        ]
        assert sorted(found) == sorted([*ids, "late", "m0", "m0"])


def test_a_writer_says_who_it_is_and_names_its_messages(taps: Taps) -> None:
    assert write(taps.client, taps.queue, "job", 1, ["a", "", "b"]) == ["com.microsoft:argument-error"]
    with pytest.raises(Exception, match="batch of a writer"):
        write(taps.client, taps.queue, "job", -1, ["a"])
    with pytest.raises(Refused):
        Taps(taps.client, taps.queue, dead_letter=True)("commit-writes", writer="job", batch=1)


# ---- rights, and entities that come and go ----


def busbar(server: Busbar, *arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert run([*arguments, "--data", str(server.data)]) == 0


def test_a_queue_made_anew_is_another_one(server: Busbar) -> None:
    incarnations = []
    for _ in range(2):
        busbar(server, "queue", "create", "anew")
        client = PlainAmqp(server.port, server.key)
        taps = Taps(client, "anew")
        assert taps("list-taps")["taps"] == []
        incarnations.append(taps("create-tap", name="t")["incarnation"])
        assert taps("ends")["incarnation"] == incarnations[-1]
        client.close()
        busbar(server, "queue", "delete", "anew", "--yes")
    assert len(set(incarnations)) == 2


def test_a_store_that_is_out_takes_its_fragments_along(server: Busbar, spread: Taps) -> None:
    spread("create-tap", name="t", from_earliest=True, owner="me")
    for n in range(32):
        send(spread, str(n))
    ends = spread.ends()
    busbar(server, "stores", "offline", "store-2")
    try:
        shown = spread("show-tap", name="t")["fragments"]
        out = [fragment["index"] for fragment in shown if not fragment["available"]]
        assert 0 < len(out) < 16 and {shown[index]["end"] for index in out} == {0}
        assert spread.ends() == {index: end for index, end in ends.items() if index not in out}
        for index, end in ends.items():
            if index not in out:
                assert len(spread.rows("t", 0, end, index)) == end
                continue
            with pytest.raises(Refused, match="server-busy"):
                spread("read-tap", name="t", fragment=index, after=0, upto=end)
        with pytest.raises(Refused, match="server-busy"):
            spread("advance-tap", name="t", owner="me", positions=ends)
        with pytest.raises(Refused, match="server-busy"):
            spread("create-tap", name="another")
        assert spread("own-tap", name="t", owner="me")["owner"] == "me", "which changes nothing"
    finally:
        busbar(server, "stores", "online", "store-2")
    eventually(lambda: len(spread.ends()) == 16)
    spread("advance-tap", name="t", owner="me", positions=ends)
    shown = spread("show-tap", name="t")["fragments"]
    assert {fragment["index"]: fragment["position"] for fragment in shown} == ends


def test_taps_and_positions_survive_kill_nine(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"q": {}}, LIMITS)).start()
    client = PlainAmqp(server.port, server.key)
    taps = Taps(client, "q")
    taps("create-tap", name="t", owner="me")
    send(taps, "a", "b", "c")
    settle(taps, 3)
    taps("advance-tap", name="t", owner="me", positions={0: 1})
    end = taps.ends()[0]
    before = [(row.n, row.content) for row in taps.rows("t", 1, end)]
    assert write(client, "q", "w", 5, ["x"]) == []
    taps("commit-writes", writer="w", batch=5)
    server.kill()
    server.start()
    try:
        client = PlainAmqp(server.port, server.key)
        taps = Taps(client, "q")
        shown = taps("show-tap", name="t")
        assert (shown["owner"], shown["fragments"][0]["position"]) == ("me", 1)
        assert [(row.n, row.content) for row in taps.rows("t", 1, end)] == before
        assert write(client, "q", "w", 5, ["x"]) == [] and write(client, "q", "w", 4, ["y"]) == [
            "busbar:batch-over"
        ]
        assert bodies(taps, "t", end, taps.ends()[0]) == ["x"]
        client.close()
    finally:
        server.stop()
