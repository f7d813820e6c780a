"""As many AMQP connections to one queue at once as there may be: all of them are served, and one more is not.

With BUSBAR_DEEP=1 these are 5,000, the documented most; else the limits are lowered.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator

import pytest
import uvloop

from busbar.model.limits import Limits
from harness.amqp_driver import ConnectionOver, LoadConnection, Receiver, connect
from harness.serving import BROKERS, Busbar, serving

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
MOST = Limits().max_connections if DEEP else 1_000
LIMITS = {} if DEEP else {"max_connections": MOST, "max_entity_connections": MOST}
AT_ONCE = 50
DESCRIPTORS = MOST + 1_000
KILOBYTES = 60
"""What one connection with a token and a link may cost the server."""


@pytest.fixture
def roomy() -> Iterator[Busbar]:
    """A server that may have a descriptor for each connection, as the test may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        pytest.skip(f"a process may have {hard} descriptors here; {DESCRIPTORS} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, DESCRIPTORS), hard))
    try:
        with serving({"q": {}}, LIMITS) as server:
            yield server
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(bool(BROKERS), reason="several gateways share the limit: test_broker_limits.py")
@pytest.mark.req("B12")
def test_the_most_connections_are_served_at_once(roomy: Busbar) -> None:
    uvloop.run(crowd(roomy))


async def crowd(server: Busbar) -> None:
    connections = [await using(server, receives=False) for _ in range(AT_ONCE)]
    before = server.resident_bytes()
    while len(connections) < MOST:
        made = (using(server, receives=number % 2 == 0) for number in range(AT_ONCE))
        connections += await asyncio.gather(*made)
    each = (server.resident_bytes() - before) / 1024 / (MOST - AT_ONCE)
    print(f"{MOST:,} connections with a token and a link: {each:.1f} KB of the server's memory each")
    with pytest.raises(ConnectionOver, match="resource-limit-exceeded"):
        await connect(server.port)

    for start in range(0, MOST, AT_ONCE):
        await asyncio.gather(*(one_message(each) for each in connections[start : start + AT_ONCE]))
    receivers = [receiver for _, receiver in connections if receiver is not None]
    async with asyncio.timeout(120):
        while sum(receiver.confirmed for receiver in receivers) < MOST:
            await asyncio.sleep(0.05)
    assert sum(receiver.received for receiver in receivers) == MOST, "each message was delivered once"
    assert not any(connection.lost.done() for connection, _ in connections)
    assert each < KILOBYTES

    connections.pop()[0].abort()
    async with asyncio.timeout(30):
        while True:  # its place is free as soon as the server has noticed
            try:
                connections.append((await connect(server.port), None))
                break
            except (ConnectionOver, ConnectionError):
                await asyncio.sleep(0.05)
    for connection, _ in connections:
        connection.abort()


async def using(server: Busbar, *, receives: bool) -> tuple[LoadConnection, Receiver | None]:
    """A connection with a token, and a link to the queue."""
    connection = await connect(server.port, token_for="q")
    if receives:
        return connection, await connection.receiver("q", credit=1)
    await connection.sender("q", in_flight=1)
    return connection, None


async def one_message(user: tuple[LoadConnection, Receiver | None]) -> None:
    sender = await user[0].sender("q", in_flight=1)
    await sender.send(1)
    assert sender.acknowledged == 1
