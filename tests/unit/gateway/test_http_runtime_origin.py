"""An HTTP connection at the port: no message is locked for nobody, whatever comes first."""

from __future__ import annotations

import asyncio

import pytest

from busbar.gateway.http import runtime_origin
from busbar.gateway.http.errors import EntityDeleted
from busbar.gateway.http.runtime_origin import HttpOrigin
from busbar.model.api import EntityView
from busbar.model.commands import RELEASE, Demand, Inspect, Leave, Settle
from busbar.model.effects import Delivered, Done, Drained, Refused
from busbar.model.entities import QueueDescription
from busbar.model.errors import QuotaExceeded, ServerBusy
from busbar.model.message import ACTIVE, Record
from tests.unit.gateway.scripted_port import ScriptedPort

FRAGMENT = 7
ENTITY = EntityView("q", QueueDescription(), (FRAGMENT,))


def delivered(origin: int, consumer: int, *, until: int = 1_000) -> Delivered:
    record = Record(5, 1, 0, 0, 0, 3, b"xyz", None)
    return Delivered(origin, consumer, FRAGMENT, [record], 99, until)


def receiving(origin: HttpOrigin, wait: float, *, delete: bool = False) -> asyncio.Task[Delivered | None]:
    return asyncio.ensure_future(origin.receive(ENTITY, ACTIVE, delete, wait))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def released(port: ScriptedPort) -> list[list[int]]:
    return [command.numbers for command in port.said(Settle) if command.outcome == RELEASE]


async def test_a_message_is_handed_out_and_the_consumer_leaves() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 5)
    await turns()
    (demand,) = port.said(Demand)
    assert (demand.credit, demand.drain, demand.delete) == (1, False, False)
    message = delivered(origin.number, demand.consumer)
    port.emit(message)
    assert await task is message
    assert [leave.consumer for leave in port.said(Leave)] == [demand.consumer]
    assert released(port) == []


async def test_without_time_the_demand_drains_at_once() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 0)
    await turns()
    (demand,) = port.said(Demand)
    assert (demand.credit, demand.drain) == (1, True)
    port.emit(Drained(origin.number, demand.consumer))
    assert await task is None


async def test_a_message_that_comes_while_the_demand_is_withdrawn_is_handed_out() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 0.01, delete=True)
    while len(port.said(Demand)) < 2:
        await asyncio.sleep(0.005)
    _, withdrawal = port.said(Demand)
    assert (withdrawal.credit, withdrawal.drain) == (0, True)
    message = delivered(origin.number, withdrawal.consumer, until=0)
    port.emit(message, Drained(origin.number, withdrawal.consumer))
    assert await task is message


async def test_a_lost_connection_ends_the_wait_and_leaves_the_port() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 60)
    await turns()
    origin.leave()
    with pytest.raises(ConnectionResetError):
        await task
    assert port.origins == []
    assert port.said(Leave) == []  # the port itself makes all of the origin leave


async def test_a_cancelled_wait_gives_back_what_it_got_in_that_moment() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 60)
    await turns()
    port.emit(delivered(origin.number, 1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert released(port) == [[5]]


async def test_a_message_for_a_wait_that_is_over_is_released() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    first = receiving(origin, 60)
    await turns()
    first.cancel()
    await asyncio.wait([first])
    port.emit(delivered(origin.number, 1))
    second = receiving(origin, 60)
    await turns()
    port.emit(delivered(origin.number, 1), Drained(origin.number, 1))
    assert released(port) == [[5], [5]]
    assert not second.done()
    port.emit(delivered(origin.number, 2))
    assert await second is not None


async def test_when_the_broker_stops_a_wait_ends_as_if_its_time_were_up() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 60)
    await turns()
    origin.stop()
    await turns()
    _, withdrawal = port.said(Demand)
    assert (withdrawal.credit, withdrawal.drain) == (0, True)
    port.emit(Drained(origin.number, withdrawal.consumer))
    assert await task is None


async def test_a_fragment_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_origin, "DRAIN_WAIT", 0.02)
    port = ScriptedPort()
    origin = HttpOrigin(port)
    before = origin.number
    with pytest.raises(ServerBusy):
        await origin.receive(ENTITY, ACTIVE, False, 0)
    assert port.origins == [origin.number] != [before]


async def test_an_entity_that_goes_while_somebody_waits_is_gone() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    task = receiving(origin, 60)
    await turns()
    port.emit(Refused(origin.number, 0, "amqp:not-found", "no more"))
    with pytest.raises(EntityDeleted, match="no more"):
        await task


async def test_an_interrupted_wait_leaves_and_gives_back_what_comes_later() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    origin.interrupt(EntityDeleted("nobody waits yet"))
    task = receiving(origin, 60)
    await turns()
    origin.interrupt(EntityDeleted("deleted"))
    with pytest.raises(EntityDeleted, match="deleted"):
        await task
    assert len(port.said(Leave)) == 1
    port.emit(delivered(origin.number, 1))
    assert released(port) == [[5]]


async def test_questions_get_their_own_answers() -> None:
    port = ScriptedPort()
    origin = HttpOrigin(port)
    asked = [
        asyncio.ensure_future(origin.ask(lambda number, request: Inspect(FRAGMENT, number, request)))
        for _ in range(3)
    ]
    await turns()
    port.emit(
        Refused(origin.number, 3, QuotaExceeded.condition, "full"),
        Done(origin.number, 1),
        Done(origin.number, 17),
    )
    assert (await asked[0]).request == 1
    with pytest.raises(QuotaExceeded, match="full"):
        await asked[2]
    origin.leave()
    with pytest.raises(ConnectionResetError):
        await asked[1]


async def test_fresh_ids_differ() -> None:
    port = ScriptedPort()
    ids = {HttpOrigin(port).fresh_id() for _ in range(10)} | {HttpOrigin(port).fresh_id()}
    assert len(ids) == 11
    assert {len(fresh) for fresh in ids} == {32}
