"""The operations on taps: what is asked of which fragment, what is shown, and what happens when a store is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import RequestBody
from busbar.gateway.amqp.requests import PAGES, LargeReplyLimiter
from busbar.gateway.amqp.tap_management import TapOperations
from busbar.model.api import EntityView
from busbar.model.commands import (
    EVENTS,
    MAX_BATCH,
    MESSAGES,
    AdvanceTap,
    Command,
    CommitWrites,
    FindTime,
    ReadTap,
    ResumeTap,
    ShowTaps,
)
from busbar.model.effects import Done, Effect, EventPage, MessageEvent, PositionFound, TapState, TapStates
from busbar.model.entities import QueueDescription
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    ServerBusy,
    TapNotFound,
    TapTruncated,
)
from busbar.model.limits import Limits
from busbar.model.message import ACTIVE, DEAD, KEPT, Record
from busbar.model.taps import TapChange, TapDescription
from busbar.pages.rows import decode_events, decode_messages
from tests.pages import page_of

TAP = TapDescription("Archive", owner="me", id=7, created=1_000, max_age=5, max_size=6, lease=8)
DEAD_TAP = TapDescription("dead", dead_letter=True, id=8, created=1_000)
CONTENT = b"\x10" + bytes(7) + b"\x00\x53\x75\xa0\x01x"


class Catalogue:
    """What the node asks of the port."""

    def __init__(self, view: EntityView) -> None:
        self.view = view
        self.created: list[TapDescription] = []
        self.changes: list[tuple[str, bool, TapChange]] = []

    async def entity(self, path: str) -> EntityView:
        return self.view

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        self.created.append(tap)
        self.view = replace(self.view, taps=(*self.view.taps, replace(tap, id=99)))
        return self.view

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        self.changes.append((name, dead_letter, change))
        return self.view


class Fragments:
    """A connection whose fragments answer what a test lets them answer."""

    origin = 1
    writable = True

    def __init__(self, view: EntityView, limits: Limits) -> None:
        self.catalogue = Catalogue(view)
        self.service = SimpleNamespace(broker=self.catalogue, limits=limits)
        self.pages = LargeReplyLimiter(cast(LinkConnection, self))
        self.asked: list[Command] = []
        self.failing: dict[int, Exception] = {}
        self.held_back = False
        self.hearing: list[Any] = []

    async def ask(self, build: Callable[[int], Command]) -> Effect:
        command = build(len(self.asked) + 1)
        self.asked.append(command)
        if command.fragment in self.failing:
            raise self.failing[command.fragment]
        request, number = command.request, command.fragment - 100
        if isinstance(command, ShowTaps | ResumeTap):
            states = [
                TapState(7, 10 + number, 0, 1, 0, number == 2, 3, 4, 20 + number),
                TapState(8, 2, 0, 0, 0, False, 0, 0, 5),
            ]
            return TapStates(1, request, states, 20 + number, 5, 9)
        if isinstance(command, FindTime):
            return PositionFound(1, request, 30 + number)
        if isinstance(command, ReadTap) and command.stream == EVENTS:
            return EventPage(1, request, [MessageEvent(4, 2, 1, 9, 8, 0, "why")], 4)
        if isinstance(command, ReadTap):
            record = Record(command.after + 1, 5, 0, 0, 0, 1, CONTENT, None)
            return page_of(1, request, [record], [KEPT], command.upto)
        return Done(1, request)

    # for LargeReplyLimiter

    def replies_wait(self) -> bool:
        return self.held_back

    def retry(self, who: Any) -> None:
        self.hearing.append(who)

    def consumer(self, who: Any) -> int:
        return 1

    def forget_consumer(self, number: int) -> None: ...


class Node:
    def __init__(self, count: int = 3, sub: int = ACTIVE, limits: Limits | None = None) -> None:
        self.view = EntityView("q", QueueDescription(), tuple(range(100, 100 + count)), taps=(TAP, DEAD_TAP))
        self.fragments = Fragments(self.view, limits or Limits())
        self.operations = TapOperations(cast(LinkConnection, self.fragments), self.view, sub).operations

    async def __call__(self, operation: str, **body: object) -> dict[str, Any]:
        request = {key.replace("_", "-"): value for key, value in body.items()}
        perform: Callable[[RequestBody], Awaitable[Any]] = self.operations[f"busbar:{operation}"][1]
        status, reply = await perform(RequestBody(operation, request))
        assert status == 200
        return cast(dict[str, Any], reply)

    def said(self, kind: type) -> list[Any]:
        return [command for command in self.fragments.asked if isinstance(command, kind)]


def test_each_operation_needs_its_right() -> None:
    rights = {name.removeprefix("busbar:"): right for name, (right, _perform) in Node().operations.items()}
    assert rights == {
        "create-tap": "Manage",
        "delete-tap": "Manage",
        "commit-writes": "Send",
        **dict.fromkeys(
            [
                "show-tap",
                "list-taps",
                "own-tap",
                "advance-tap",
                "resume-tap",
                "find-time",
                "ends",
                "read-tap",
            ],
            "Listen",
        ),
    }


async def test_a_tap_is_shown_with_all_its_fragments() -> None:
    node = Node()
    node.fragments.failing[101] = ServerBusy("unavailable")
    shown = await node("show-tap", name="archive")
    fragments = shown.pop("fragments")
    assert shown == {
        "name": "Archive",
        "entity": "q",
        "incarnation": "100",
        "dead-letter": False,
        "events": False,
        "consumes": False,
        "owner": "me",
        "reader": "",
        "max-age": 5,
        "max-size": 6,
        "lease": 8,
        "created": 1_000,
        "truncated": True,
    }
    assert fragments[0] == {
        "index": 0,
        "position": 10,
        "lost": 0,
        "end": 20,
        "event-position": 1,
        "event-lost": 0,
        "event-end": 9,
        "kept": 3,
        "kept-bytes": 4,
        "truncated": False,
        "available": True,
    }
    assert (fragments[1]["available"], fragments[1]["position"], fragments[1]["end"]) == (False, 0, 0)
    assert (fragments[2]["truncated"], fragments[2]["position"]) == (True, 12)


async def test_each_sub_queue_has_its_own_taps() -> None:
    assert [tap["name"] for tap in (await Node()("list-taps"))["taps"]] == ["Archive"]
    dead = Node(sub=DEAD)
    (tap,) = (await dead("list-taps"))["taps"]
    assert (tap["name"], tap["dead-letter"], tap["fragments"][0]["end"]) == ("dead", True, 5)
    with pytest.raises(TapNotFound):
        await dead("show-tap", name="archive")
    await dead("own-tap", name="dead", owner="x", take_over=True)
    await dead("delete-tap", name="dead")
    assert dead.fragments.catalogue.changes == [
        ("dead", True, TapChange(owner="x", take_over=True)),
        ("dead", True, TapChange(delete=True)),
    ]


async def test_what_a_new_tap_does_not_say_is_the_default() -> None:
    node = Node(1)
    assert (await node("create-tap", name="new"))["name"] == "new"
    await node(
        "create-tap",
        name="all",
        events=True,
        consumes=True,
        from_earliest=True,
        owner="o",
        max_age=1,
        max_size=2,
        lease=3,
    )
    assert node.fragments.catalogue.created == [
        TapDescription("new"),
        TapDescription("all", False, True, True, True, "o", 1, 2, 3),
    ]
    with pytest.raises(ArgumentError, match="'events'"):
        await node("create-tap", name="bad", events="yes")


async def test_positions_go_to_their_fragments() -> None:
    node = Node()
    await node("advance-tap", name="ARCHIVE", owner="me", stream="events", positions={0: 5, 2: 6})
    await node("advance-tap", name="archive", owner="me", positions={1: 7})
    asked = [(c.fragment, c.tap, c.stream, c.position, c.owner) for c in node.said(AdvanceTap)]
    assert asked == [(100, 7, EVENTS, 5, "me"), (102, 7, EVENTS, 6, "me"), (101, 7, MESSAGES, 7, "me")]


@pytest.mark.parametrize("positions", [{3: 1}, {-1: 1}, {0: -1}, {0: 1 << 48}, {"0": 1}, {0: "1"}])
async def test_positions_that_are_none_reach_nobody(positions: dict[object, object]) -> None:
    node = Node()
    with pytest.raises(ArgumentOutOfRange, match="positions"):
        await node("advance-tap", name="archive", owner="me", positions=positions)
    assert not node.said(AdvanceTap)


async def test_what_concerns_all_fragments_reaches_those_that_can_be_reached() -> None:
    node = Node()
    node.fragments.failing[100] = ServerBusy("unavailable")
    for operation, body, kind in (
        ("advance-tap", {"name": "archive", "owner": "me", "positions": {0: 1, 1: 1, 2: 1}}, AdvanceTap),
        ("resume-tap", {"name": "archive", "owner": "me"}, ResumeTap),
        ("commit-writes", {"writer": "w", "batch": 4}, CommitWrites),
    ):
        with pytest.raises(ServerBusy):
            await node(operation, **cast(dict[str, Any], body))
        assert [command.fragment for command in node.said(kind)] == [100, 101, 102]


async def test_ends_and_times_leave_out_what_is_out() -> None:
    node = Node()
    node.fragments.failing[101] = ServerBusy("unavailable")
    assert await node("ends") == {
        "entity": "q",
        "incarnation": "100",
        "fragments": 3,
        "ends": {0: 20, 2: 22},
        "dead-ends": {0: 5, 2: 5},
        "event-ends": {0: 9, 2: 9},
    }
    assert await node("find-time", time=-5) == {"positions": {0: 30, 2: 32}}
    assert {command.at for command in node.said(FindTime)} == {0}
    node.fragments.failing[101] = TapTruncated("another error is one")
    with pytest.raises(TapTruncated):
        await node("ends")


async def test_a_page_is_rows() -> None:
    node = Node(limits=Limits(max_tap_page_count=50, max_tap_page_bytes=1_000))
    page = await node("read-tap", name="archive", fragment=2, after=4, upto=9, count=60, max_bytes=5_000)
    (row,) = decode_messages(b"".join(page["rows"].parts))
    assert (row.n, row.lane, row.content) == (5, KEPT, CONTENT)
    assert (page["count"], page["upto"]) == (1, 9)
    (asked,) = node.said(ReadTap)
    assert (asked.fragment, asked.tap, asked.sub, asked.count, asked.max_bytes) == (102, 7, ACTIVE, 50, 1_000)

    page = await node("read-tap", name="archive", stream="events", after=0, upto=9)
    assert [event.reason for event in decode_events(page["rows"])] == ["why"]
    await node("read-tap", name=None, after=0, upto=9)
    assert node.said(ReadTap)[-1].tap == 0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"fragment": 3}, ArgumentOutOfRange),
        ({"fragment": -1}, ArgumentOutOfRange),
        ({"after": -1}, ArgumentOutOfRange),
        ({"upto": 1 << 48}, ArgumentOutOfRange),
        ({"count": 0}, ArgumentOutOfRange),
        ({"max_bytes": 0}, ArgumentOutOfRange),
        ({"stream": "letters"}, ArgumentError),
        ({"name": None, "stream": "events"}, InvalidOperation),
        ({"name": "nobody"}, TapNotFound),
    ],
)
async def test_pages_that_cannot_be(body: dict[str, object], error: type[Exception]) -> None:
    node = Node()
    with pytest.raises(error):
        await node("read-tap", **{"name": "archive", "after": 0, "upto": 5, **body})
    assert not node.said(ReadTap)


async def test_a_queue_made_anew_is_another_one() -> None:
    node = Node()
    node.fragments.catalogue.view = replace(node.view, fragments=(200, 201, 202))
    for operation in ("ends", "list-taps"):
        with pytest.raises(EntityNotFound):
            await node(operation)


async def test_a_writer_is_named() -> None:
    node = Node()
    await node("commit-writes", writer="w", batch=MAX_BATCH)
    assert [(c.fragment, c.writer, c.batch) for c in node.said(CommitWrites)] == [
        (100, "w", MAX_BATCH),
        (101, "w", MAX_BATCH),
        (102, "w", MAX_BATCH),
    ]
    for writer, batch in (
        ("", 1),
        ("x" * 257, 1),
        (5, 1),
        ("w", -1),
        ("w", MAX_BATCH + 1),
        ("w", None),
        ("w", True),
    ):
        with pytest.raises(ArgumentError):
            await node("commit-writes", writer=writer, batch=batch)
    with pytest.raises(InvalidOperation):
        await Node(sub=DEAD)("commit-writes", writer="w", batch=1)


# ---- the turns of large replies ----


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_few_pages_are_made_at_a_time() -> None:
    peer = Node().fragments
    under_way, most, gate = 0, 0, asyncio.Event()

    async def read() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await gate.wait()
        under_way -= 1

    tasks = [asyncio.ensure_future(peer.pages.take(read)) for _ in range(10)]
    await settle()
    assert under_way == PAGES
    gate.set()
    await asyncio.gather(*tasks)
    assert most == PAGES


async def test_no_page_is_made_while_the_client_does_not_take_what_it_has() -> None:
    peer = Node().fragments
    made: list[int] = []

    async def read() -> None:
        made.append(1)

    peer.held_back = True
    tasks = [asyncio.ensure_future(peer.pages.take(read)) for _ in range(3)]
    await settle()
    assert not made
    peer.pages.replenish(0)  # the client said something, but not what helps
    await settle()
    assert not made
    peer.held_back, peer.writable = False, False
    peer.pages.replenish(0)
    await settle()
    assert not made
    peer.writable = True
    peer.pages.replenish(0)
    await asyncio.gather(*tasks)
    assert len(made) == 3 and peer.hearing
