"""Message sessions with several brokers: whoever accepts one is the only one who may believe that it holds it.

A broker dies, or a channel between brokers breaks, and the holders of its sessions are connected to another one. They go on
with their sessions, and nobody else gets these. A session whose holder has lost its connection is free.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from busbar.model.partitioning import index_of_key
from harness.amqp_driver import LinkRefused, LoadConnection, Receiver, connect, session_payload
from harness.processes import brokers_of
from harness.serving import Busbar, config_text
from tests.durability.test_broken_channels import LAUNCHER
from tests.durability.test_brokers import process_of
from tests.durability.test_store_outage import Operator

LOCK = 5.0
SESSIONS = {"RequiresSession": True, "EnablePartitioning": True}
QUEUES = {"q": {**SESSIONS, "LockDuration": f"PT{LOCK}S"}, "long": {**SESSIONS, "LockDuration": "PT5M"}}
RESTART_SECONDS = 100
"""More than a broker needs to come back, on a machine that is busy with other work."""
LOST = "com.microsoft:session-lock-lost"
HELD = "com.microsoft:session-cannot-be-locked"
BUSY = "com.microsoft:server-busy"


@pytest.mark.timeout(600)
@pytest.mark.req("S8", "S9", "S15", "P25")
def test_a_session_has_one_holder_through_deaths_of_brokers_and_broken_channels(tmp_path: Path) -> None:
    server = Busbar(
        tmp_path / "data",
        config_text(QUEUES, {"min_lock_duration": 100}),
        arguments=("--brokers", "2"),
        program=(str(LAUNCHER),),
    ).start()
    try:
        asyncio.run(the_channel_breaks(server))
        asyncio.run(the_owner_dies(server))
        server.kill()
        server.start()
        asyncio.run(nobody_is_waited_for_after_a_start(server))
        asyncio.run(the_gateway_of_the_holder_dies(server))
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


async def connection_to(server: Busbar, number: int) -> LoadConnection:
    """At a broker, once it takes clients."""
    async with asyncio.timeout(RESTART_SECONDS):
        while True:
            connection = await connect(server.port)
            if process_of(server, connection) == brokers_of(server).get(f"broker-{number}"):
                return connection
            await connection.close()
            await asyncio.sleep(0.02)


async def sessions_of(server: Busbar, queue: str, broker: str) -> list[str]:
    """Names of sessions whose fragments are that broker's."""
    views = await asyncio.to_thread(Operator(server).ask, "GET", f"fragments/{queue}")
    theirs = {view["index"] for view in views if view["broker"] == broker}
    return [name for name in (f"s{n}" for n in range(99)) if index_of_key(name, len(views)) in theirs]


async def accept(connection: LoadConnection, queue: str, session: str | None) -> Receiver:
    """One that is held by another is refused at once. A busy machine may take its time for one that is free."""
    return await connection.receiver(
        queue, session=session, wait=10_000, credit=10, decide=lambda deliveries: []
    )


async def accept_in_the_end(connection: LoadConnection, queue: str, session: str) -> set[str]:
    """Accept again and again until it is ours; what was said meanwhile."""
    said: set[str] = set()
    async with asyncio.timeout(RESTART_SECONDS):
        while True:
            try:
                await accept(connection, queue, session)
                return said
            except LinkRefused as error:
                said.add(str(error).partition(": ")[0])
                await asyncio.sleep(0.02)


async def goes_on(server: Busbar, connection: LoadConnection, holder: Receiver, session: str) -> None:
    """The holder gets what is sent to its session from now on, and completes it, while another one is refused."""
    other = await connection_to(server, 0)
    sender = await connection.sender("long", session_payload(lambda n: session))
    before = holder.confirmed
    async with asyncio.timeout(RESTART_SECONDS):
        while sender.acknowledged < 3:
            await sender.send(1)
            await asyncio.sleep(0.05)
        while holder.confirmed < before + 3:
            await asyncio.sleep(0.02)
    with pytest.raises(LinkRefused, match=HELD):
        await accept(other, "long", session)
    await other.close()


async def the_channel_breaks(server: Busbar) -> None:
    session = (await sessions_of(server, "long", "broker-1"))[0]
    connection = await connection_to(server, 0)
    here = await connection_to(server, 1)
    holder = await connection.receiver("long", session=session, wait=10_000, credit=10)
    os.kill(server.pid, signal.SIGUSR1)
    with pytest.raises(LinkRefused, match=HELD):
        await accept(here, "long", session)
    await goes_on(server, connection, holder, session)
    await connection.close()
    await accept_in_the_end(here, "long", session)  # as soon as the holder has left
    await here.close()


async def the_owner_dies(server: Busbar) -> None:
    near, far = await sessions_of(server, "long", "broker-0"), await sessions_of(server, "long", "broker-1")
    gateway, owner = brokers_of(server)["broker-0"], brokers_of(server)["broker-1"]
    connection, other = await connection_to(server, 0), await connection_to(server, 0)
    sender = await connection.sender("long", session_payload(lambda n: far[1]))
    holder = await connection.receiver("long", session=far[0], wait=10_000, credit=10)
    await sender.send(1)
    assert sender.acknowledged == 1
    killed = time.monotonic()
    os.kill(owner, signal.SIGKILL)
    nearby = await accept(other, "long", near[0])
    assert nearby.session == near[0], "other fragments go on"
    waiting = await other.receiver("long", session=None, wait=RESTART_SECONDS * 1000)
    served = time.monotonic() - killed
    assert waiting.session == far[1], "sessions that nobody holds are served"
    print(f"a session of the broker that died was accepted after {served:.2f} s")
    assert served < 60, "and not when a lock of five minutes would have ended"
    await goes_on(server, connection, holder, far[0])
    assert brokers_of(server)["broker-0"] == gateway
    await connection.close()
    await accept_in_the_end(other, "long", far[0])
    await other.close()


async def the_gateway_of_the_holder_dies(server: Busbar) -> None:
    session = (await sessions_of(server, "q", "broker-1"))[2]
    connection = await connection_to(server, 0)
    here = await connection_to(server, 1)
    await accept(connection, "q", session)
    killed = time.monotonic()
    os.kill(brokers_of(server)["broker-0"], signal.SIGKILL)
    await accept_in_the_end(here, "q", session)
    again = time.monotonic() - killed
    print(f"a session whose holder has lost its connection was accepted after {again:.2f} s")
    assert again < LOCK - 1, "its connection is lost, and so is its lock"
    await here.close()


async def nobody_is_waited_for_after_a_start(server: Busbar) -> None:
    """All connections are lost with the controller: there is nobody who could believe in anything."""
    session = (await sessions_of(server, "long", "broker-1"))[0]
    connection = await connection_to(server, 0)
    assert (await accept(connection, "long", session)).session == session
    await connection.close()
