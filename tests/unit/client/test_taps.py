"""The operations on taps as they go over the wire, and reading ahead."""

from __future__ import annotations

import asyncio

import pytest

from busbar.amqp.types import Int
from busbar.client import (
    AlreadyExists,
    BusbarClientError,
    ConnectionLost,
    Ends,
    MessagingFactory,
    OperationTimeout,
    Page,
    TapOwned,
    TapSelection,
    TapTruncated,
)
from busbar.client.errors import TapPassed
from tests.unit.client.scripted_broker import ScriptedBroker

Asked = list[tuple[str, dict[str, object]]]

FRAGMENT: dict[str, object] = {
    "index": 0,
    "position": 5,
    "lost": 1,
    "end": 9,
    "event-position": 2,
    "event-lost": 0,
    "event-end": 3,
    "kept": 4,
    "kept-bytes": 400,
    "truncated": True,
    "available": True,
}
VIEW: dict[str, object] = {
    "name": "t",
    "entity": "q",
    "incarnation": "17",
    "dead-letter": False,
    "events": True,
    "consumes": False,
    "owner": "me",
    "max-age": 1000,
    "max-size": 2000,
    "lease": 3000,
    "created": 4000,
    "truncated": True,
    "fragments": [FRAGMENT],
}


def script(broker: ScriptedBroker, reply: object, status: int = 200) -> Asked:
    asked: Asked = []

    def manage(operation: str, body: dict[str, object]) -> tuple[int, object]:
        asked.append((operation, body))
        return status, reply

    broker.manage = manage
    return asked


async def test_every_operation(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    taps = await factory.taps("q")
    asked = script(scripted, VIEW)
    view = await taps.create("t", events=True, owner="me", max_age=1000)
    assert view.name == "t" and view.fragments[0].kept_bytes == 400 and view.fragments[0].truncated
    assert await taps.show("t") == await taps.own("t", "me", take_over=True) == view
    assert await taps.resume("t", "me") == view
    await taps.advance("t", "me", {0: 5, 3: 7}, stream="events")
    await taps.delete("t")
    await taps.commit_writes("w", 12)
    assert asked == [
        (
            "busbar:create-tap",
            {
                "name": "t",
                "events": True,
                "consumes": False,
                "from-earliest": False,
                "owner": "me",
                "max-age": 1000,
            },
        ),
        ("busbar:show-tap", {"name": "t"}),
        ("busbar:own-tap", {"name": "t", "owner": "me", "take-over": True}),
        ("busbar:resume-tap", {"name": "t", "owner": "me"}),
        (
            "busbar:advance-tap",
            {"name": "t", "owner": "me", "stream": "events", "positions": {0: 5, 3: 7}},
        ),
        ("busbar:delete-tap", {"name": "t"}),
        ("busbar:commit-writes", {"writer": "w", "batch": 12}),
    ]
    script(scripted, {"taps": [VIEW, VIEW]})
    assert await taps.list() == (view, view)
    asked = script(scripted, {"positions": {Int(0): 3}})
    assert await taps.find_time(99) == {0: 3} and asked == [("busbar:find-time", {"time": 99})]
    ends = {"entity": "q", "incarnation": "17", "fragments": 2}
    script(scripted, ends | {"ends": {0: 1, 1: 2}, "dead-ends": {0: 0, 1: 0}, "event-ends": {0: 4, 1: 5}})
    assert await taps.ends() == Ends("q", "17", 2, {0: 1, 1: 2}, {0: 0, 1: 0}, {0: 4, 1: 5})
    asked = script(scripted, {"rows": b"rows" * 300_000, "count": 3, "upto": 8})
    assert await taps.read(None, 1, 2, 8) == Page(b"rows" * 300_000, 3, 8, 3)
    assert asked[0][1]["name"] is None


async def test_the_node_of_the_dead_letter_queue(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    addresses: list[str | None] = []
    scripted.attach = lambda link: addresses.append(
        link.target.address if not link.sending and link.target is not None else None
    )
    await factory.taps("q", sub_queue="deadletter")
    assert "q/$deadletterqueue/$management" in addresses
    with pytest.raises(ValueError, match="'morgue' is not known"):
        await factory.taps("q", sub_queue="morgue")


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("busbar:tap-truncated", TapTruncated),
        ("busbar:tap-passed", TapPassed),
        ("busbar:tap-owned", TapOwned),
        ("com.microsoft:entity-already-exists", AlreadyExists),
        ("amqp:something-else", BusbarClientError),
    ],
)
async def test_errors_by_condition(
    factory: MessagingFactory, scripted: ScriptedBroker, condition: str, kind: type[BusbarClientError]
) -> None:
    taps = await factory.taps("q")
    asked = script(scripted, condition, 400)
    with pytest.raises(BusbarClientError, match="as told") as caught:
        await taps.read("t", 0, 0, 9)
    assert type(caught.value) is kind and caught.value.condition == condition
    assert len(asked) == 1


async def test_reads_are_repeated_and_creations_are_not(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    asked: list[str] = []

    def manage(operation: str, body: dict[str, object]) -> tuple[int, object]:
        asked.append(operation)
        if len(asked) == 1:
            scripted.hang_up()
            return 0, None
        if len(asked) == 2:
            return 503, "com.microsoft:server-busy"
        return 200, {"positions": {}}

    taps = await factory.taps("q")
    scripted.manage = manage
    assert await taps.find_time(1) == {}
    assert len(asked) == 3 and scripted.connections == 2
    asked.clear()
    with pytest.raises(ConnectionLost):
        await taps.create("t")
    assert asked == ["busbar:create-tap"]


async def test_no_reply(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    taps = await factory.taps("q")
    script(scripted, None, 0)
    factory.operation_timeout = 0.1
    with pytest.raises(OperationTimeout, match=r"q/\$management"):
        await taps.delete("t")


async def test_a_reply_of_another_kind(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    taps = await factory.taps("q")
    script(scripted, {"rows": 5})
    with pytest.raises(BusbarClientError, match="'rows' of the broker's reply is a int"):
        await taps.read(None, 0, 0, 1)


async def test_pages_are_read_ahead(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    asked: list[int] = []

    def manage(operation: str, body: dict[str, object]) -> tuple[int, object]:
        after = body["after"]
        assert isinstance(after, int)
        asked.append(after)
        return 200, {"rows": b"%d" % after, "count": 10, "upto": min(after + 10, 95)}

    scripted.manage = manage
    taps = await factory.taps("q")
    pages = taps.pages("t", 0, 0, 95)
    first = await anext(pages)
    await asyncio.sleep(0.1)
    assert first.rows == b"0" and asked == [0, 10, 20], "two ahead of the one that was taken"
    rest = [page async for page in pages]
    assert [page.rows for page in rest] == [b"%d" % after for after in range(10, 95, 10)]
    asked.clear()
    early = taps.pages("t", 0, 0, 95)
    await anext(early)
    await early.aclose()
    await asyncio.sleep(0.05)
    assert len(asked) <= 3, "nobody reads on"


async def test_pages_end_where_there_is_no_more_now_and_raise_errors(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    taps = await factory.taps("q")
    script(scripted, {"rows": b"", "count": 0, "upto": 4})
    assert [page.upto async for page in taps.pages("t", 0, 0, 95)] == [4]
    script(scripted, "busbar:tap-truncated", 410)
    with pytest.raises(TapTruncated):
        _ = [page async for page in taps.pages("t", 0, 0, 95)]


async def test_ranges_follow_one_another_without_a_stop(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    asked: list[tuple[object, int]] = []

    def manage(operation: str, body: dict[str, object]) -> tuple[int, object]:
        after, upto = body["after"], body["upto"]
        assert isinstance(after, int) and isinstance(upto, int)
        asked.append((body["fragment"], after))
        return 200, {"rows": b"", "count": 10, "upto": min(after + 10, upto)}

    scripted.manage = manage
    taps = await factory.taps("q")
    pages = taps.pages_of("t", [(3, 0, 10), (1, 5, 25)])
    assert (await anext(pages))[0] == 3
    await asyncio.sleep(0.1)
    assert asked == [(3, 0), (1, 5), (1, 15)], "the next range is read ahead too"
    assert [(fragment, page.upto) async for fragment, page in pages] == [(1, 15), (1, 25)]


async def test_a_selection_is_asked_for_and_a_broker_that_ignores_it_is_refused(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    taps = await factory.taps("q")
    select = TapSelection(bodies=False, sessions=("s",), properties={"region": ("eu", None)})
    asked = script(scripted, {"rows": b"", "count": 0, "upto": 8, "scanned": 6})
    assert await taps.read(None, 1, 2, 8, select=select) == Page(b"", 0, 8, 6)
    assert asked[0][1]["select"] == {
        "bodies": False,
        "sessions": ["s"],
        "properties": {"region": ["eu", None]},
    }
    asked = script(scripted, {"rows": b"", "count": 0, "upto": 8})
    assert (await taps.read(None, 1, 2, 8, select=TapSelection())).upto == 8
    assert "select" not in asked[0][1]
    with pytest.raises(BusbarClientError, match="is it a Busbar of this version"):
        await taps.read(None, 1, 2, 8, select=select)
