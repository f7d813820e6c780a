"""A clean stop (Ctrl-C) and a new start on the same data: nothing is lost, locks are kept, numbers go on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from harness.serving import Busbar, ServerDied
from tests.interop.azure_sdk import Azure, Farewells, nothing_left, take, take_one, text_of

SHORT_LOCK = 3
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(60),
    pytest.mark.server(
        {"long": {}, "short": {"LockDuration": f"PT{SHORT_LOCK}S"}, "states": {}}, {"min_lock_duration": 100}
    ),
]


def clients(server: Busbar, farewells: Farewells) -> Azure:
    return Azure(server.connection_string, farewells, asynchronous=True)


async def restart(server: Busbar) -> None:
    assert await asyncio.to_thread(server.stop) == 0
    await asyncio.to_thread(server.start)


@pytest.mark.req("U8")
async def test_locks_are_kept_over_a_clean_restart(own_server: Busbar, farewells: Farewells) -> None:
    before = clients(own_server, farewells)
    await before.send("long", "locked")
    await before.send("short", "locked too")
    long = await take_one(before.receiver("long"))
    short = await take_one(before.receiver("short"))
    assert short.locked_until_utc is not None
    await restart(own_server)
    before.leave()

    after = clients(own_server, farewells)
    receiver = after.receiver("long")
    assert await nothing_left(receiver)
    long._receiver = receiver.raw
    long._is_deferred_message = True  # the SDK settles it by its token
    await receiver.complete_message(long)
    assert await receiver.peek_messages(sequence_number=1) == []

    again = await take_one(after.receiver("short"), wait=2 * SHORT_LOCK)
    assert datetime.now(UTC) >= short.locked_until_utc
    assert again.delivery_count == 1
    after.leave()


@pytest.mark.req("U8")
async def test_every_state_is_kept_over_a_clean_restart(own_server: Busbar, farewells: Farewells) -> None:
    before = clients(own_server, farewells)
    later = ServiceBusMessage("scheduled", scheduled_enqueue_time_utc=datetime.now(UTC) + timedelta(hours=1))
    await before.send("states", "completed", "abandoned", "deferred", "dead", "active", later)
    receiver = before.receiver("states")
    completed, abandoned, deferred, dead = await take(receiver, 4)
    await receiver.complete_message(completed)
    await receiver.abandon_message(abandoned)
    await receiver.defer_message(deferred)
    await receiver.dead_letter_message(dead, reason="kept")
    await restart(own_server)
    before.leave()

    after = clients(own_server, farewells)
    receiver = after.receiver("states")
    peeked = await receiver.peek_messages(10, sequence_number=1)
    assert [(text_of(message), message.state, message.delivery_count) for message in peeked] == [
        ("abandoned", ServiceBusMessageState.ACTIVE, 1),
        ("deferred", ServiceBusMessageState.DEFERRED, 0),
        ("active", ServiceBusMessageState.ACTIVE, 0),
        ("scheduled", ServiceBusMessageState.SCHEDULED, 0),
    ]
    [taken] = await receiver.receive_deferred_messages(deferred.sequence_number)
    assert text_of(taken) == "deferred"
    assert (await take_one(after.dead_letters("states"))).dead_letter_reason == "kept"
    await after.send("states", "new")
    assert [message.sequence_number for message in await take(receiver, 3)] == [2, 5, 7]
    after.leave()


async def test_a_program_with_ordinary_retries_survives_a_restart(
    own_server: Busbar, farewells: Farewells
) -> None:
    program = Azure(own_server.connection_string, farewells, asynchronous=True, retry_total=3)
    sender, receiver = program.sender("long"), program.receiver("long")
    await sender.send_messages(ServiceBusMessage("before"))
    await receiver.complete_message(await take_one(receiver))
    await restart(own_server)

    await sender.send_messages(ServiceBusMessage("after"))

    assert text_of(await take_one(receiver, wait=20)) == "after"
    program.leave()


async def test_a_second_instance_on_the_same_data_is_refused(own_server: Busbar) -> None:
    second = Busbar(own_server.data)

    with pytest.raises(ServerDied) as refused:
        await asyncio.to_thread(second.start)

    assert str(own_server.data) in str(refused.value)
    assert "Traceback" not in str(refused.value)
