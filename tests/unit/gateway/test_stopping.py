"""A gateway that stops answers what clients go on asking, and closes each connection between two series of requests."""

from __future__ import annotations

import asyncio
import math

import pytest

from busbar.amqp.outcomes import ACCEPTED
from busbar.gateway.gateway import Gateway
from busbar.gateway.listening import connection_limiter
from busbar.model.commands import AwaitSession, CancelScheduled, Settle
from busbar.model.effects import Done, Effect
from harness.amqp_driver import ConnectionOver, LoadConnection, connect
from harness.transaction_driver import WireRequests, WireSession
from harness.waiting import until
from tests.unit.gateway.transactional_port import ENTITIES, TransactionalPort, gateway_on, received
from tests.unit.partitions.transactions import SESSIONS


class CancellingPort(TransactionalPort):
    def _effect(self, command: object) -> Effect | None:
        if isinstance(command, CancelScheduled):
            return Done(command.origin, command.request)
        return super()._effect(command)  # type: ignore[arg-type]


@pytest.fixture
def slow_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of the test itself are no end of its requests, however busy the machine is."""
    monkeypatch.setattr(connection_limiter, "QUIET_SECONDS", 600.0)
    monkeypatch.setattr(connection_limiter, "REQUEST_SECONDS", 3_600.0)


async def asked(requests: WireRequests) -> int:
    return (await requests.ask("cancel-scheduled-message", {"sequence-numbers": [5]}))[0]


async def closed_by_gateway(connection: LoadConnection) -> str:
    await asyncio.wait_for(asyncio.shield(connection.lost), 30)
    return "" if connection.error is None else connection.error.condition


def stop(gateway: Gateway) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(gateway.stop())


@pytest.mark.usefixtures("slow_end")
async def test_a_client_that_goes_on_asking_is_answered_by_a_gateway_that_stops() -> None:
    broker = CancellingPort(*ENTITIES)
    async with gateway_on(broker) as (gateway, port):
        asking, idle = await connect(port), await connect(port)
        requests = await WireSession(asking).management("q")
        broker.held = {CancelScheduled}
        first = asyncio.get_running_loop().create_task(asked(requests))
        await until(lambda: bool(broker.said(CancelScheduled)))
        stopping = stop(gateway)
        assert await closed_by_gateway(idle) == "amqp:connection:forced", "it had asked for nothing"
        broker.release(CancelScheduled)
        assert await first == 200, "it was under way"
        assert [await asked(requests) for _ in range(20)] == [200] * 20, (
            "the client has not heard of the stop"
        )
        assert asking.error is None and not stopping.done()
        await asking.close()
        await stopping


async def test_a_client_that_never_pauses_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "QUIET_SECONDS", math.inf)
    monkeypatch.setattr(connection_limiter, "REQUEST_SECONDS", 0.3)
    async with gateway_on(CancellingPort(*ENTITIES)) as (gateway, port):
        asking = await connect(port)
        requests = await WireSession(asking).management("q")
        stopping = stop(gateway)
        with pytest.raises((ConnectionOver, asyncio.CancelledError)):
            while True:
                assert await asked(requests) == 200
        assert await closed_by_gateway(asking) == "amqp:connection:forced"
        await stopping


async def test_a_client_that_has_asked_for_a_while_ago_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(connection_limiter, "REQUEST_SECONDS", 3_600.0)
    async with gateway_on(CancellingPort(*ENTITIES)) as (gateway, port):
        asking = await connect(port)
        requests = await WireSession(asking).management("q")
        assert await asked(requests) == 200
        stopping = stop(gateway)
        assert await closed_by_gateway(asking) == "amqp:connection:forced"
        await stopping


async def test_a_settlement_is_answered_before_the_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for the next owner of its store, and an SDK that gets no answer repeats it, and is told of a lost lock."""
    monkeypatch.setattr(connection_limiter, "ANSWER_SECONDS", 3_600.0)
    broker = CancellingPort(*ENTITIES)
    broker.held = {Settle}
    async with gateway_on(broker) as (gateway, port):
        settling = await connect(port)
        receiver = await WireSession(settling).receiver("q")
        (delivery,) = await received(broker, receiver)
        settled = asyncio.get_running_loop().create_task(receiver.settle(delivery))
        await until(lambda: bool(broker.said(Settle)))
        stopping = stop(gateway)
        await asyncio.sleep(0.1)
        assert not stopping.done() and settling.error is None
        broker.release(Settle)
        outcome = await settled
        assert outcome is not None and outcome.code == ACCEPTED
        assert await closed_by_gateway(settling) == "amqp:connection:forced"
        await stopping


async def test_a_client_that_waits_for_a_session_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "ANSWER_SECONDS", 3_600.0)
    broker = CancellingPort(*ENTITIES)
    async with gateway_on(broker) as (gateway, port):
        waiting = await connect(port)
        attaching = asyncio.get_running_loop().create_task(
            WireSession(waiting).receiver(SESSIONS.path, session=None)
        )
        await until(lambda: bool(broker.said(AwaitSession)))
        stopping = stop(gateway)
        assert await closed_by_gateway(waiting) == "amqp:connection:forced"
        await stopping
        with pytest.raises(ConnectionOver):
            await attaching
