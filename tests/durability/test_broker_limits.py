"""Limits of connections with several brokers: they are the namespace's, and the brokers share them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from busbar.cluster.node_settings import share_of
from busbar.model.limits import SHARED_LIMITS, Limits
from harness.amqp_driver import ConnectionOver, LinkRefused, LoadConnection, connect
from harness.processes import brokers_of, client_connections
from harness.serving import Busbar, config_text
from tests.durability.test_brokers import process_of

BROKERS = 3
CONNECTIONS, ENTITY_CONNECTIONS = 12, 7


@pytest.mark.parametrize("limit", (1, 2, 3, 7, 1_000, 5_000))
def test_the_shares_are_the_limit_or_one_each(limit: int) -> None:
    whole = Limits(**dict.fromkeys(SHARED_LIMITS, limit))
    shares = [share_of(whole, number, BROKERS) for number in range(BROKERS)]
    for name in SHARED_LIMITS:
        each = [getattr(share, name) for share in shares]
        assert sum(each) == max(limit, BROKERS)
        assert max(each) - min(each) <= 1 and min(each) >= 1
    for share in shares:
        assert {k: v for k, v in asdict(share).items() if k not in SHARED_LIMITS} == {
            k: v for k, v in asdict(whole).items() if k not in SHARED_LIMITS
        }


@pytest.mark.req("B12")
def test_all_brokers_together_have_as_many_connections_as_the_namespace_may(tmp_path: Path) -> None:
    """They are had wherever the clients are, and again as soon as they are free."""
    limits = {"max_connections": CONNECTIONS, "max_entity_connections": ENTITY_CONNECTIONS}
    server = Busbar(
        tmp_path / "data", config_text({"q": {}}, limits), arguments=("--brokers", str(BROKERS))
    ).start()
    try:
        asyncio.run(crowd(server))
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


async def crowd(server: Busbar) -> None:
    connections = [await connect(server.port) for _ in range(CONNECTIONS)]
    await is_full(server)
    at = Counter(process_of(server, connection) for connection in connections)
    assert sorted(at) == sorted(brokers_of(server).values())

    # All that one entity may have are first at some brokers alone, then at the others.
    for is_reversed in (False, True):
        order = sorted(
            connections, key=lambda connection: process_of(server, connection), reverse=is_reversed
        )
        attached = [connection for connection in order if await attaches(connection)]
        assert attached == order[:ENTITY_CONNECTIONS]
        for connection in attached:
            await connection.close()
        connections = order[ENTITY_CONNECTIONS:] + [await room_for_one(server) for _ in attached]
        await is_full(server)

    # What a broker had that was killed is free.
    killed = min(brokers_of(server).values())
    lost = [connection for connection in connections if process_of(server, connection) == killed]
    others = [connection for connection in connections if connection not in lost]
    os.kill(killed, signal.SIGKILL)
    for connection in lost:
        connection.abort()
    others += [await room_for_one(server) for _ in lost]
    await is_full(server)
    for connection in others:
        await connection.close()


async def attaches(connection: LoadConnection) -> bool:
    try:
        await connection.receiver("q", credit=1)
        return True
    except LinkRefused as error:
        assert "resource-limit-exceeded" in str(error) and "'q'" in str(error)
        return False


async def is_full(server: Busbar) -> None:
    for _ in range(BROKERS):
        with pytest.raises(ConnectionOver, match=f"{CONNECTIONS} AMQP connections"):
            await connect(server.port)


async def room_for_one(server: Busbar) -> LoadConnection:
    """A connection in the place of one that has ended, which the gateway may not have noticed yet."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(ConnectionOver, ConnectionError):
                return await connect(server.port)
            await asyncio.sleep(0.02)


@pytest.mark.req("B12")
def test_sdk_clients_of_two_brokers_share_the_limit_of_an_entity(tmp_path: Path) -> None:
    server = Busbar(
        tmp_path / "data",
        config_text({"q": {}}, {"max_entity_connections": 2}),
        arguments=("--brokers", "2"),
    ).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        first, second, third = (
            stack.enter_context(
                ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)
            )
            for _ in range(3)
        )
        senders = [client.get_queue_sender("q") for client in (first, second)]
        for sender in senders:
            sender.send_messages(ServiceBusMessage("x"))
        assert {*client_connections(server).values()} == {*brokers_of(server).values()}, "one at each"
        with pytest.raises(ServiceBusError, match="'q' has links of as many"):
            third.get_queue_sender("q").send_messages(ServiceBusMessage("too many"))
        first.close()
        third.get_queue_sender("q").send_messages(ServiceBusMessage("in its place"))
