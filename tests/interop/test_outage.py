"""What management, counts and timeouts are while a messaging store is unavailable, or does not answer, through the
vendor's SDK."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusServerBusyError
from azure.servicebus.management import FalseRuleFilter, SqlRuleFilter

from busbar.client import MessagingFactory, OutgoingMessage, encode
from busbar.client.errors import SendFailed
from busbar.client.retry import NO_RETRY
from harness.faults.shims import build_shim
from harness.serving import Busbar, config_text
from tests.interop.administration import Administration, BareHttp, administrations
from tests.interop.azure_sdk import in_thread, text_of
from tests.interop.partitioned_queues import index_of
from tests.interop.test_stores import OUT, busbar, client_of, key_in

FRAGMENTS = 16
WIDE = {"EnablePartitioning": True}
Change = Callable[[Administration], Any]

pytestmark = [pytest.mark.timeout(60), pytest.mark.server({"p": WIDE, "doomed": WIDE}, checked=True)]


# ---- management ----


async def changed_queue(admin: Administration) -> None:
    await admin.update_queue(await admin.get_queue("p"), user_metadata="changed", max_delivery_count=7)


async def changed_topic(admin: Administration) -> None:
    await admin.update_topic(await admin.get_topic("t"), user_metadata="changed")


async def changed_subscription(admin: Administration) -> None:
    await admin.update_subscription("t", await admin.get_subscription("t", "kept"), max_delivery_count=7)


CREATIONS: dict[str, Change] = {
    "create a queue": lambda admin: admin.create_queue("new", enable_partitioning=True),
    "create a topic": lambda admin: admin.create_topic("new-topic", enable_partitioning=True),
    "create a subscription": lambda admin: admin.create_subscription("t", "new"),
}
CHANGES: dict[str, Change] = {
    "update a queue": changed_queue,
    "update a topic": changed_topic,
    "update a subscription": changed_subscription,
    "delete a queue": lambda admin: admin.delete_queue("doomed"),
    "delete a subscription": lambda admin: admin.delete_subscription("t", "doomed"),
    "delete a topic": lambda admin: admin.delete_topic("doomed-topic"),
}


async def everything(admin: Administration) -> dict[str, tuple[str | None, int]]:
    """All entities, and the properties that are changed."""
    queues, topics = await admin.list_queues(), await admin.list_topics()
    found = {each.name: (each.user_metadata, each.max_delivery_count) for each in queues}
    found |= {each.name: (each.user_metadata, 0) for each in topics}
    for topic in topics:
        for each in await admin.list_subscriptions(topic.name):
            found[f"{topic.name}/{each.name}"] = (each.user_metadata, each.max_delivery_count)
    return found


def fragments_used(server: Busbar, queue: str) -> Counter[int]:
    """Send to a queue, a message for each fragment, and see where they come from."""
    with (
        client_of(server) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        for number in range(FRAGMENTS):
            sender.send_messages(ServiceBusMessage(str(number)))
        taken: list[Any] = []
        while len(taken) < FRAGMENTS:
            messages = receiver.receive_messages(max_message_count=FRAGMENTS, max_wait_time=20)
            assert messages, f"{len(taken)} came"
            for message in messages:
                receiver.complete_message(message)
            taken += messages
    return Counter(map(index_of, taken))


@pytest.mark.req("P26")
async def test_management_fails_cleanly_while_a_store_is_out_and_can_be_retried(own_server: Busbar) -> None:
    """What has to begin in all fragments is made in all or in none. What is refused says which store is unavailable, and
    the same client does it later. All else changes at once, and holds in the fragments that come back."""
    async with administrations(own_server) as (admin, other):
        for topic in ("t", "doomed-topic"):
            await admin.create_topic(topic, enable_partitioning=True)
        for subscription in ("kept", "doomed"):
            await admin.create_subscription("t", subscription)
        before = await everything(admin)
        busbar(own_server, "stores", "offline", OUT)
        for number, (name, change) in enumerate(CREATIONS.items()):
            with pytest.raises(HttpResponseError, match=OUT) as failed:
                await change((admin, other)[number % 2])
            assert failed.value.status_code == 503, name
            assert await everything(admin) == before, name
        await admin.create_rule("t", "kept", "new", filter=SqlRuleFilter("colour = 'red'"))
        await admin.delete_rule("t", "kept", "$Default")
        for number, change in enumerate(CHANGES.values()):
            await change((admin, other)[number % 2])
        after = {name: known for name, known in before.items() if "doomed" not in name}
        after |= {"p": ("changed", 7), "t": ("changed", 0), "t/kept": (None, 7)}
        assert await everything(admin) == await everything(other) == after

        busbar(own_server, "stores", "online", OUT)
        for change in CREATIONS.values():
            await change(admin)
        after |= {"new": (None, 10), "new-topic": (None, 0), "t/new": (None, 10)}
        assert await everything(admin) == await everything(other) == after
        assert [rule.name for rule in await admin.list_rules("t", "kept")] == ["new"]
    for queue in ("new", "p"):
        assert await in_thread(fragments_used, own_server, queue) == dict.fromkeys(range(FRAGMENTS), 1)
    with client_of(own_server) as client, client.get_topic_sender("t") as sender:
        for colour in ("red", "blue"):
            for _ in range(FRAGMENTS):
                sender.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
        with client.get_subscription_receiver("t", "kept") as receiver:
            red = receiver.peek_messages(100)
    assert Counter(map(index_of, red)) == dict.fromkeys(range(FRAGMENTS), 1)
    assert set(map(text_of, red)) == {"red"}


@pytest.mark.req("P26")
async def test_a_change_that_an_outage_interrupts_can_be_repeated(own_server: Busbar) -> None:
    """Creations are under way when the store goes: each has succeeded whole, or failed and left nothing behind."""
    async with administrations(own_server) as (_, admin):
        names = [f"raced-{number}" for number in range(12)]
        creating = [
            asyncio.ensure_future(admin.create_queue(name, enable_partitioning=True)) for name in names
        ]
        await asyncio.wait(creating, return_when=asyncio.FIRST_COMPLETED)
        await in_thread(busbar, own_server, "stores", "offline", OUT)
        outcomes = await asyncio.gather(*creating, return_exceptions=True)
        failed = {name for name, what in zip(names, outcomes, strict=True) if isinstance(what, BaseException)}
        assert {getattr(what, "status_code", 0) for what in outcomes if isinstance(what, BaseException)} <= {
            503
        }
        there = {queue.name for queue in await admin.list_queues()}
        assert there & set(names) == set(names) - failed
        await in_thread(busbar, own_server, "stores", "online", OUT)
        for name in failed:
            await admin.create_queue(name, enable_partitioning=True)
        for name in names:
            assert len(busbar(own_server, "queue", "show", name, "--fragments")) == FRAGMENTS


# ---- counts ----


@pytest.mark.req("P27")
async def test_counts_add_up_over_fragments_and_an_entity_says_that_it_is_limited(own_server: Busbar) -> None:
    async with administrations(own_server) as (admin, _):
        await admin.create_topic("t", enable_partitioning=True)
        for subscription in ("all", "none"):
            await admin.create_subscription("t", subscription)
        await admin.create_rule("t", "none", "false", filter=FalseRuleFilter())
        await admin.delete_rule("t", "none", "$Default")
        await in_thread(fill, own_server)

        queue = await admin.get_queue_runtime_properties("p")
        assert (queue.active_message_count, queue.dead_letter_message_count) == (40, 5)
        assert (queue.scheduled_message_count, queue.total_message_count) == (16, 64)
        assert queue.size_in_bytes > 64 * 1000
        copies = await admin.get_subscription_runtime_properties("t", "all")
        assert (copies.active_message_count, copies.total_message_count) == (32, 32)
        assert (await admin.get_subscription_runtime_properties("t", "none")).total_message_count == 0
        assert (await statuses(admin)) == ["Available"] * 3

        busbar(own_server, "stores", "offline", OUT)
        assert (await statuses(admin)) == ["Limited"] * 3
        shown = busbar(own_server, "queue", "show", "p", "--fragments")
        assert {one["store"] for one in shown if one["state"] == "unavailable"} == {OUT}
        less = await admin.get_queue_runtime_properties("p")
        assert less.active_message_count == sum(
            one.get("active", 0) for one in shown if one["state"] != "unavailable"
        )
        assert 0 < less.active_message_count < 40, "of the fragments that answer"

        busbar(own_server, "stores", "online", OUT)
        again = await admin.get_queue_runtime_properties("p")
        assert again.active_message_count == queue.active_message_count
        assert (again.total_message_count, again.size_in_bytes) == (64, queue.size_in_bytes)
        assert (await statuses(admin)) == ["Available"] * 3


def fill(server: Busbar) -> None:
    """A queue with messages of every state in all fragments: 48 sent, of which 5 are dead and 3 deferred; 16 scheduled. A
    topic with two in each."""
    later = datetime.now(UTC) + timedelta(hours=1)
    with client_of(server) as client:
        with client.get_queue_sender("p") as sender, client.get_queue_receiver("p") as receiver:
            for _ in range(48):
                sender.send_messages(ServiceBusMessage("x" * 1000))
            for _ in range(FRAGMENTS):
                sender.schedule_messages(ServiceBusMessage("x" * 1000), later)
            taken = receiver.receive_messages(max_message_count=8, max_wait_time=20)
            assert len(taken) == 8
            for message in taken[:5]:
                receiver.dead_letter_message(message)
            for message in taken[5:]:
                receiver.defer_message(message)
        with client.get_topic_sender("t") as sender:
            for _ in range(2 * FRAGMENTS):
                sender.send_messages(ServiceBusMessage("x"))


async def statuses(admin: Administration) -> list[str]:
    found = [
        await admin.get_queue("p"), await admin.get_topic("t"), await admin.get_subscription("t", "all"),
    ]  # fmt: skip
    return [each.availability_status for each in found]


# ---- timeouts ----


HASTY, PATIENT = 1, 20
"""Seconds that a client gives an operation: less and more than the 15 s that a failover may take."""


def outcomes_of(server: Busbar, name: str, count: int, seconds: float) -> tuple[set[str], list[float]]:
    """Send without a key, with so much time for each; what was acknowledged, and how long each took. Nothing but a time-out
    may be told instead."""
    sent, took = set(), []
    with client_of(server) as client, client.get_queue_sender("p") as sender:
        for number in range(count):
            began = time.monotonic()
            with contextlib.suppress(OperationTimeoutError):
                sender.send_messages(ServiceBusMessage(f"{name} {number}"), timeout=seconds)
                sent.add(f"{name} {number}")
            took.append(time.monotonic() - began)
    return sent, took


@pytest.mark.req("P19")
async def test_clients_with_much_and_with_little_time(tmp_path: Path) -> None:
    """While a store does not answer, a client with a second for each send is answered or told that it timed out, not long
    after. One with more than 15 s gets all its messages through. When a store is unavailable, both do."""
    control = tmp_path / "stuck"
    environment = {"LD_PRELOAD": str(build_shim("hanging_disk", tmp_path)), "HANG_FILE": str(control)}
    server = Busbar(tmp_path / "data", config_text({"p": WIDE}), environment=environment).start()
    try:
        lost = key_in(server, OUT, inside=True)
        control.write_text(f"{OUT}.db sync")
        assert await in_thread(is_refused, server, lost), (
            "its commit hangs, and what comes after is certainly undone"
        )
        hasty = [in_thread(outcomes_of, server, f"hasty{number}", 3, HASTY) for number in range(3)]
        patient = asyncio.ensure_future(in_thread(outcomes_of, server, "patient", FRAGMENTS, PATIENT))
        sent: set[str] = set()
        for acknowledged, took in await asyncio.gather(*hasty):
            sent |= acknowledged
            assert max(took) < HASTY + 5, "it hung"
        assert await in_thread(is_refused, server, lost), "the store answered"
        control.unlink()
        acknowledged, took = await patient
        assert acknowledged == {f"patient {number}" for number in range(FRAGMENTS)}
        assert max(took) < PATIENT
        sent |= acknowledged

        busbar(server, "stores", "offline", OUT)
        for seconds in (HASTY, PATIENT):
            name = f"out {seconds}"
            acknowledged, _took = await in_thread(outcomes_of, server, name, FRAGMENTS, seconds)
            assert acknowledged == {f"{name} {number}" for number in range(FRAGMENTS)}
            sent |= acknowledged
        busbar(server, "stores", "online", OUT)
        seen = [
            text for text in await in_thread(texts_in, server) if text != "keyed"
        ]  # sent twice, nobody knows how often
        assert sent <= set(seen), "what was acknowledged is there"
        assert len(seen) == len(set(seen)), "and nothing twice"
    finally:
        control.unlink(missing_ok=True)
        assert server.stop() == 0


def is_refused(server: Busbar, key: str) -> bool:
    """Whether a hasty send with that key fails, as it must where its store can write nothing."""
    with client_of(server) as client, client.get_queue_sender("p") as sender:
        try:
            sender.send_messages(ServiceBusMessage("keyed", partition_key=key), timeout=HASTY)
        except (OperationTimeoutError, ServiceBusServerBusyError):
            return True
    return False


def texts_in(server: Busbar) -> list[str]:
    with client_of(server) as client, client.get_queue_receiver("p") as receiver:
        return [text_of(message) for message in receiver.peek_messages(250)]


@pytest.mark.req("P19")
@pytest.mark.deep
@pytest.mark.timeout(200)
async def test_without_a_timeout_of_their_own_operations_end_after_a_minute(tmp_path: Path) -> None:
    """A receive over HTTP from a queue that has nothing; an operation of Busbar's client when nobody answers any more."""
    server = Busbar(tmp_path / "data", config_text({"p": WIDE})).start()
    try:
        began = time.monotonic()
        assert await in_thread(status_of_a_receive, server) == 204
        assert 55 < time.monotonic() - began < 70
        factory = await MessagingFactory.connect(server.connection_string, retry=NO_RETRY)
        sender = await factory.sender("p")
        await sender.send([encode(OutgoingMessage(b"x"))])
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(SendFailed):
            await sender.send([encode(OutgoingMessage(b"x"))])
        assert 55 < time.monotonic() - began < 70
        await factory.close()
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.stop()


def status_of_a_receive(server: Busbar) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=90)
    token = {"Authorization": BareHttp(server).token(life=300)}
    connection.request("DELETE", "/p/messages/head", headers=token)
    status = connection.getresponse().status
    connection.close()
    return status
