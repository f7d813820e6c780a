"""Ids and sessions without end: what a queue remembers counts towards its size, and costs as much at the end as at first."""

from __future__ import annotations

import os
import time

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, ULong
from harness.amqp_driver import LoadConnection, connect, session_payload
from harness.serving import PATIENCE, Busbar
from tests.robustness.bystander import Bystander

MEGABYTE = 1024 * 1024
LIMITS = {"min_size_in_megabytes": 1, "size_increment": 1, **PATIENCE}
SESSIONS: dict[str, object] = {"RequiresSession": True}
TINY: dict[str, object] = {"MaxSizeInMegabytes": 1}
REMEMBERS: dict[str, object] = {
    "RequiresDuplicateDetection": True,
    "DuplicateDetectionHistoryTimeWindow": "P7D",
}
QUEUES = {
    "ids": {**TINY, **REMEMBERS},
    "states": {**TINY, **SESSIONS},
    "few": SESSIONS,
    "many": SESSIONS,
    "bystander": {},
}
MANY = 100_000 if os.environ.get("BUSBAR_DEEP") else 4_000
ID_SIZE = 64
"""As docs/security.md has it."""

pytestmark = [
    pytest.mark.alone,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.server(QUEUES, LIMITS),
]


def long_id(number: int) -> bytes:
    return encode_value(Described(ULong(0x73), [f"{number:0128}"])) + encode_value(
        Described(ULong(0x75), b"x")
    )


async def test_ids_that_are_remembered_count_against_the_quota(server: Busbar, bystander: Bystander) -> None:
    """Their messages are received at once; the ids would be on the disk for seven days."""
    connection = await connect(server.port)
    sender = await connection.sender("ids", long_id, batch=100)
    receiver = await connection.receiver("ids", delete=True)
    most = MEGABYTE // ID_SIZE
    before = server.resident_bytes()
    seconds: list[float] = []
    while not sender.refused and sender.next < 2 * most:
        began = time.monotonic()
        await sender.send(400)  # until they are received, the messages count, too
        await receiver.settled(sender.acknowledged)
        seconds.append(time.monotonic() - began)
    print(f"{sender.acknowledged} ids taken; 400 took {[round(one, 3) for one in seconds]} s")
    assert {condition for _, condition in sender.refused} == {"amqp:resource-limit-exceeded"}
    error = sender.last_error
    assert error is not None and "ids that duplicate detection remembers" in str(error.description)
    assert 0.9 * most < sender.acknowledged <= most
    whole = seconds[1:-1]
    assert min(whole[-3:]) < 4 * max(whole[:2])
    assert server.resident_bytes() - before < 25 * MEGABYTE
    await connection.close()


async def set_state(connection: LoadConnection, session: str, state: bytes) -> int:
    await connection.receiver("states", credit=0, session=session)
    node = await connection.requests("states/$management")
    reply = await node.ask(
        {"session-id": session, "session-state": state}, {"operation": "com.microsoft:set-session-state"}
    )
    return int(str(reply.application_properties["statusCode"]))


async def test_empty_states_of_sessions_count_towards_the_size(server: Busbar, bystander: Bystander) -> None:
    """Sessions that nobody ever sent to. A state stays when its session has no message, and an empty one is a state."""
    connection = await connect(server.port)
    sender = await connection.sender("states", session_payload(lambda _: "fills the queue", b"x" * 50_000))
    await sender.send(20)
    assert sender.acknowledged == 20, "a megabyte, but for some KB"
    await connection.close()
    statuses: list[int] = []
    while len(statuses) < 400 and 403 not in statuses:
        connection = await connect(server.port)
        for _ in range(40):
            statuses.append(await set_state(connection, f"{len(statuses):0>4}" + "\U0001f40c" * 124, b""))
        await connection.close()
    print(f"{statuses.count(200)} empty states taken")
    assert set(statuses) == {200, 403}
    assert statuses.count(200) < MEGABYTE // 20 // 500


async def accepting(server: Busbar, queue: str, sessions: int) -> float:
    """Seconds for one accept of the next session among so many that have a message each."""
    connection = await connect(server.port)
    sender = await connection.sender(queue, session_payload(lambda number: f"{number:0128}"))
    await sender.send(sessions)
    assert sender.acknowledged == sessions
    began = time.monotonic()
    for _ in range(80):
        await connection.receiver(queue, credit=0, session=None)
    seconds = (time.monotonic() - began) / 80
    await connection.close()
    return seconds


async def test_the_next_of_many_sessions_costs_no_more(server: Busbar, bystander: Bystander) -> None:
    few = await accepting(server, "few", 400)
    many = await accepting(server, "many", MANY)
    print(f"an accept among 400 sessions {few * 1e3:.2f} ms, among {MANY:,} {many * 1e3:.2f} ms")
    assert many < 4 * few
