"""Taps and repeating writers through every port."""

from __future__ import annotations

import pytest

from busbar.model.api import BrokerApi, EntityView
from busbar.model.commands import (
    COMPLETE,
    DEAD_LETTER,
    EVENTS,
    MAX_BATCH,
    MESSAGES,
    AdvanceTap,
    CommitWrites,
    FindTime,
    ReadTap,
    ResumeTap,
    Send,
    ShowTaps,
)
from busbar.model.effects import (
    COMPLETED,
    DEAD_LETTERED,
    Done,
    EventPage,
    PositionFound,
    Refused,
    Sent,
    TapPage,
    TapStates,
)
from busbar.model.errors import BatchOver, EntityAlreadyExists, EntityNotFound, TapOwned, TapPassed
from busbar.model.message import ACTIVE, DEAD, KEPT, Draft
from busbar.model.taps import TapChange, TapDescription
from tests.conformance.gateways import Gateway, queue
from tests.pages import shown


class Tapping(Gateway):
    """A gateway that reads a tap of one fragment."""

    def __init__(self, port: BrokerApi, fragment: int, tap: int, owner: str = "me") -> None:
        super().__init__(port)
        self.fragment = fragment
        self.tap = tap
        self.owner = owner

    async def states(self) -> TapStates:
        return await self.ask(TapStates, lambda request: ShowTaps(self.fragment, self.origin, request))

    def read(self, after: int, upto: int = 1 << 60, stream: int = MESSAGES, sub: int = ACTIVE):  # type: ignore[no-untyped-def]
        return lambda request: ReadTap(
            self.fragment, self.origin, request, self.tap, sub, stream, after, upto, 1000, 1 << 30
        )

    def advance(self, position: int, stream: int = MESSAGES, owner: str | None = None):  # type: ignore[no-untyped-def]
        by = self.owner if owner is None else owner
        return lambda request: AdvanceTap(self.fragment, self.origin, request, self.tap, stream, position, by)


async def test_a_tap_is_made_changed_and_deleted(port: BrokerApi) -> None:
    heard: list[tuple[str, int]] = []
    port.watch(lambda path, view: heard.append((path, len(view.taps) if view else -1)))
    made = await port.create_tap("ORDERS", TapDescription("Archive", events=True, max_age=5, owner="me"))
    (tap,) = made.taps
    assert (tap.name, tap.events, tap.max_age, tap.owner, tap.dead_letter) == (
        "Archive",
        True,
        5,
        "me",
        False,
    )
    assert tap.id > 0 and tap.created > 0
    assert (await port.entity("orders")).taps == (tap,)
    again = await port.create_tap("orders", TapDescription("archive", dead_letter=True))
    assert [other.dead_letter for other in again.taps] == [False, True]
    with pytest.raises(EntityAlreadyExists, match="has a tap 'ARCHIVE' already"):
        await port.create_tap("orders", TapDescription("ARCHIVE"))
    with pytest.raises(TapOwned, match="belongs to 'me'"):
        await port.change_tap("orders", "archive", False, TapChange(owner="you"))
    taken = await port.change_tap("orders", "archive", False, TapChange(owner="you", take_over=True))
    assert [other.owner for other in taken.taps] == ["you", ""]
    left = await port.change_tap("orders", "archive", False, TapChange(delete=True))
    assert [other.dead_letter for other in left.taps] == [True]
    with pytest.raises(EntityNotFound, match="no tap 'archive'"):
        await port.change_tap("orders", "archive", False, TapChange(delete=True))
    await Gateway(port).until(lambda: [count for _, count in heard] == [1, 2, 2, 1])


async def _tapped(port: BrokerApi, **of: object) -> tuple[Tapping, EntityView]:
    view = await port.create_tap("orders", TapDescription("t", owner="me", **of))  # type: ignore[arg-type]
    return Tapping(port, await queue(port), view.taps[-1].id), view


async def test_a_tap_sees_what_receivers_are_done_with_until_it_has_passed(port: BrokerApi) -> None:
    tapping, _ = await _tapped(port, from_earliest=True)
    fragment = tapping.fragment
    first, second, third = await tapping.send(fragment, 3)
    tapping.want(fragment, 2)
    await tapping.until(lambda: len(tapping.numbers()) == 2)
    await tapping.settle(tapping.delivered()[0], COMPLETE)
    assert (await tapping.states()).end == third
    page = await tapping.ask(TapPage, tapping.read(0))
    assert [record.n for record in shown(page)] == [first, second, third]
    assert ([r.lane for r in shown(page)], page.upto) == ([KEPT, KEPT, ACTIVE], third)
    assert all(record.content == b"body" for record in shown(page))
    refused = await tapping.ask(Refused, tapping.advance(second, owner="you"))
    assert refused.condition == TapOwned.condition
    await tapping.ask(Done, tapping.advance(second))
    refused = await tapping.ask(Refused, tapping.read(0))
    assert refused.condition == TapPassed.condition
    page = await tapping.ask(TapPage, tapping.read(second))
    assert [record.n for record in shown(page)] == [third]
    found = await tapping.ask(
        PositionFound, lambda request: FindTime(fragment, tapping.origin, request, ACTIVE, 1 << 50)
    )
    assert found.position == third
    states = await tapping.ask(
        TapStates, lambda request: ResumeTap(fragment, tapping.origin, request, tapping.tap, "me")
    )
    assert [(state.id, state.position, state.truncated) for state in states.taps] == [
        (tapping.tap, second, False)
    ]


async def test_events_and_dead_letters(port: BrokerApi) -> None:
    tapping, _ = await _tapped(port, events=True)
    fragment = tapping.fragment
    view = await port.create_tap("orders", TapDescription("d", dead_letter=True, owner="me"))
    dead = Tapping(port, fragment, view.taps[-1].id)
    one, two = await tapping.send(fragment, 2)
    for outcome in (DEAD_LETTER, COMPLETE):
        seen = len(tapping.delivered())
        tapping.want(fragment, 1)
        await tapping.until(lambda: len(tapping.delivered()) > seen)  # noqa: B023
        await tapping.settle(tapping.delivered()[-1], outcome)
    states = await tapping.states()
    assert (states.end, states.dead_end, states.event_end) == (two, 1, 2)
    events = await tapping.ask(EventPage, tapping.read(0, stream=EVENTS))
    assert [(event.at, event.n, event.outcome) for event in events.events] == [
        (1, one, DEAD_LETTERED),
        (2, two, COMPLETED),
    ]
    page = await dead.ask(TapPage, dead.read(0, sub=DEAD))
    assert [(record.n, record.dead) for record in shown(page)] == [(one, 1)]
    await tapping.ask(Done, tapping.advance(2, EVENTS))


async def test_a_writer_that_repeats_itself(port: BrokerApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)

    async def write(batch: int, *ids: str) -> Sent:
        drafts = [Draft(b"x", id, None, None, 0, 0) for id in ids]
        return await gateway.ask(
            Sent, lambda request: Send(fragment, gateway.origin, request, drafts, False, "w", batch)
        )

    async def commit(batch: int) -> None:
        await gateway.ask(Done, lambda request: CommitWrites(fragment, gateway.origin, request, "w", batch))

    assert (await write(1, "a", "b")).duplicates == []
    assert (await write(1, "b", "c")).duplicates == [0]
    await commit(1)
    assert (await write(2, "c", "d")).duplicates == [0]
    await commit(2)
    assert (await write(2, "d")).duplicates == [0]
    drafts = [Draft(b"x", "e", None, None, 0, 0)]
    over = await gateway.ask(
        Refused, lambda request: Send(fragment, gateway.origin, request, drafts, False, "w", 1)
    )
    assert over.condition == BatchOver.condition
    await commit(MAX_BATCH)
    assert (await gateway.counts(fragment))[ACTIVE] == 4
