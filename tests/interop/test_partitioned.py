"""Partitioned queues: the same for a client as regular ones, and what makes them different for those who look.

Where a message lies is seen in its sequence number, whose top 16 bits are the index of its fragment.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError
from proton import Data, Delivery, Message, int32, symbol, timestamp, uint

from bench.load import connect
from tests.interop.azure_sdk import Azure, Farewells, Handler, nothing_left, take, take_one, text_of
from tests.interop.plain_amqp import PlainAmqp, array
from tests.serving import Busbar, serving

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]

PARTITIONED = 24
BRIEF_LOCK = 0.8
LIMITS = {"min_lock_duration": 100, "min_size_in_megabytes": 1, "size_step": 1, "min_duplicate_window": 100}


def queue_table() -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {}
    for index in range(PARTITIONED):
        table[f"regular-{index}"] = {}
        table[f"partitioned-{index}"] = {"EnablePartitioning": True}
    for index in range(4):
        table[f"partitioned-brief-{index}"] = {
            "EnablePartitioning": True,
            "LockDuration": f"PT{BRIEF_LOCK}S",
        }
        table[f"regular-brief-{index}"] = {"LockDuration": f"PT{BRIEF_LOCK}S"}
    table["unique"] = {"EnablePartitioning": True, "RequiresDuplicateDetection": True}
    table["small"] = {"EnablePartitioning": True, "MaxSizeInMegabytes": 1}
    return table


@pytest.fixture(scope="module")
def server() -> Iterator[Busbar]:
    with serving(queue_table(), LIMITS) as running:
        yield running


class Names:
    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def take(self, kind: str) -> str:
        self._given[kind] += 1
        return f"{kind}-{self._given[kind] - 1}"


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture
def partitioned(names: Names) -> str:
    return names.take("partitioned")


@pytest.fixture(params=["regular", "partitioned"])
def either(request: pytest.FixtureRequest, names: Names) -> str:
    """A queue of each kind: the test is the same for both."""
    return names.take(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(server: Busbar, farewells: Farewells) -> AsyncIterator[Azure]:
    client = Azure(server.connection_string, farewells, asynchronous=True)
    yield client
    client.leave()
    await asyncio.sleep(0)


@pytest.fixture
def amqp(server: Busbar) -> Iterator[PlainAmqp]:
    client = PlainAmqp(server.port, server.key)
    yield client
    client.close()


def index_of(message: Any) -> int:
    return int(message.sequence_number) >> 48


def data(text: str, key: str | None = None, session: str | None = None) -> Message:
    message = Message(body=text.encode(), inferred=True, group_id=session)
    if key is not None:
        message.annotations = {symbol("x-opt-partition-key"): key}
    return message


async def settle_all(receiver: Handler, messages: list[Any]) -> None:
    for message in messages:
        await receiver.complete_message(message)


# ---- the same on both kinds of queue ----


@pytest.mark.req("P8", "P32")
async def test_every_message_sent_is_received_once(sdk: Azure, either: str) -> None:
    """Sends one by one and in a batch, received one by one and many at a time."""
    sender, receiver = sdk.sender(either), sdk.receiver(either)
    for n in range(5):
        await sender.send_messages(ServiceBusMessage(str(n)))
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(5, 40)])

    taken = [await take_one(receiver) for _ in range(5)] + await take(receiver, 35)

    assert sorted(int(text_of(message)) for message in taken) == [*range(40)]
    assert all(message.delivery_count == 0 for message in taken)
    await settle_all(receiver, taken)
    assert await nothing_left(receiver)


@pytest.mark.req("P8")
async def test_abandon_defer_and_dead_letter(sdk: Azure, either: str) -> None:
    sender, receiver, dead = sdk.sender(either), sdk.receiver(either), sdk.dead_letters(either)
    for name in ("again", "later", "bad", "done"):
        await sender.send_messages(ServiceBusMessage(name))
    by_name = {text_of(message): message for message in await take(receiver, 4)}

    await receiver.abandon_message(by_name["again"])
    await receiver.defer_message(by_name["later"])
    await receiver.dead_letter_message(by_name["bad"], reason="because", error_description="of this")
    await receiver.complete_message(by_name["done"])

    again = await take_one(receiver)
    assert (text_of(again), again.delivery_count) == ("again", 1)
    assert again.sequence_number == by_name["again"].sequence_number
    await receiver.complete_message(again)
    buried = await take_one(dead)
    assert (text_of(buried), buried.dead_letter_reason) == ("bad", "because")
    assert buried.dead_letter_error_description == "of this"
    await dead.complete_message(buried)
    (late,) = await receiver.receive_deferred_messages([by_name["later"].sequence_number])
    assert text_of(late) == "later"
    await receiver.complete_message(late)
    assert await nothing_left(receiver) and await nothing_left(dead)


@pytest.mark.req("P8", "P32")
async def test_renewing_a_lock(sdk: Azure, names: Names, either: str) -> None:
    queue = names.take(either.rsplit("-", 1)[0] + "-brief")
    await sdk.send(queue, "held")
    receiver = sdk.receiver(queue)
    message = await take_one(receiver)
    for _ in range(3):
        await asyncio.sleep(BRIEF_LOCK / 2)
        before = message.locked_until_utc
        assert await receiver.renew_message_lock(message) > before
    await receiver.complete_message(message)

    await sdk.send(queue, "lost")
    message = await take_one(receiver)
    await asyncio.sleep(BRIEF_LOCK + 0.1)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)
    again = await take_one(receiver)
    assert (text_of(again), again.delivery_count) == ("lost", 1)
    await receiver.complete_message(again)


@pytest.mark.req("P8")
async def test_prefetch(sdk: Azure, either: str) -> None:
    sender, receiver = sdk.sender(either), sdk.receiver(either, prefetch_count=50)
    await receiver.opened()
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(30)])
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(30, 60)])

    taken = []
    while len(taken) < 60:
        more = await take(receiver, 1)
        await settle_all(receiver, more)
        taken += more

    assert sorted(int(text_of(message)) for message in taken) == [*range(60)]
    assert await nothing_left(receiver)


@pytest.mark.req("P8")
async def test_receive_and_delete(sdk: Azure, either: str) -> None:
    sender, receiver = sdk.sender(either), sdk.once(either)
    for n in range(12):
        await sender.send_messages(ServiceBusMessage(str(n)))

    taken = [await take_one(receiver), *await take(receiver, 11)]

    assert sorted(int(text_of(message)) for message in taken) == [*range(12)]
    assert await sdk.receiver(either).peek_messages(100) == []


@pytest.mark.req("P32")
async def test_schedule_and_cancel(sdk: Azure, either: str) -> None:
    sender, receiver = sdk.sender(either), sdk.receiver(either)
    soon, never = datetime.now(UTC) + timedelta(seconds=0.6), datetime.now(UTC) + timedelta(hours=1)
    await sender.schedule_messages(ServiceBusMessage("soon"), soon)
    cancelled = await sender.schedule_messages(
        [ServiceBusMessage("a", partition_key="k"), ServiceBusMessage("b", partition_key="k")], never
    )
    assert len({number >> 48 for number in cancelled}) == 1
    assert len(await receiver.peek_messages(10)) == 3

    await sender.cancel_scheduled_messages(cancelled)

    message = await take_one(receiver)
    assert text_of(message) == "soon"
    await receiver.complete_message(message)
    assert await receiver.peek_messages(10) == []


@pytest.mark.req("P32", "P30")
async def test_peek_reaches_every_message(sdk: Azure, either: str) -> None:
    sender, receiver = sdk.sender(either), sdk.receiver(either)
    for n in range(20):
        await sender.send_messages(ServiceBusMessage(f"{n:02}" + "x" * 30_000))

    seen: list[Any] = []
    while more := await receiver.peek_messages(
        7, sequence_number=seen[-1].sequence_number + 1 if seen else 0
    ):
        assert sum(len(text_of(message)) for message in more) <= 256 * 1024
        seen += more

    numbers = [message.sequence_number for message in seen]
    assert numbers == sorted(set(numbers)) and len(numbers) == 20
    assert {text_of(message)[:2] for message in seen} == {f"{n:02}" for n in range(20)}
    await sdk.once(either).receive_messages(max_message_count=20, max_wait_time=1)


@pytest.mark.req("P8")
def test_competing_receivers_that_wait_get_a_message_each(
    server: Busbar, amqp: PlainAmqp, names: Names
) -> None:
    """Credit that was used up takes nothing from those who still wait."""
    for kind in ("regular", "partitioned"):
        queue = names.take(kind)
        receivers = [amqp.receiver(queue, 1) for _ in range(4)]
        amqp.listen(0.1)
        for n in range(4):
            amqp.send(queue, data(str(n)))
        amqp.pump(lambda receivers=receivers: all(r.fetcher.has_message for r in receivers))
        received = [amqp.take(receiver)[0].body for receiver in receivers]
        assert sorted(received) == [b"0", b"1", b"2", b"3"]
        for receiver in receivers:
            receiver.close()


@pytest.mark.req("P8")
def test_a_drain_finds_everything_and_is_answered(amqp: PlainAmqp, names: Names) -> None:
    for kind in ("regular", "partitioned"):
        queue = names.take(kind)
        amqp.send(
            queue, *(data(str(n), key="one") for n in range(20)), *(data(str(n)) for n in range(20, 40))
        )
        receiver = amqp.receiver(queue)
        receiver.link.drain(100)
        amqp.pump(lambda receiver=receiver: not receiver.link.draining())
        amqp.listen(0.05)
        received = sorted(int(message.body) for message, _delivery in receiver.fetcher.incoming)
        assert received == [*range(40)]
        receiver.close()


# ---- where messages go ----


@pytest.mark.req("P6", "P14", "P21")
async def test_a_key_names_one_fragment_and_keeps_its_order(sdk: Azure, partitioned: str) -> None:
    sender, receiver = sdk.sender(partitioned), sdk.receiver(partitioned)
    keys = [f"key-{n}" for n in range(12)]
    for n in range(4):
        for key in keys:
            await sender.send_messages(ServiceBusMessage(f"{key}:{n}", partition_key=key))
    for key in keys:
        await sender.send_messages([ServiceBusMessage(f"{key}:{n}", partition_key=key) for n in range(4, 8)])

    taken = await take(receiver, 96)

    order: dict[str, list[int]] = {}
    fragments: dict[str, set[int]] = {}
    for message in taken:
        key, _, n = text_of(message).partition(":")
        order.setdefault(key, []).append(int(n))
        fragments.setdefault(key, set()).add(index_of(message))
        assert message.partition_key == key
        assert message.raw_amqp_message.annotations[b"x-opt-partition-id"] == index_of(message)
    assert all(numbers == [*range(8)] for numbers in order.values())
    assert all(len(indexes) == 1 for indexes in fragments.values())
    assert len(set().union(*fragments.values())) > 4
    await settle_all(receiver, taken)


@pytest.mark.req("P6", "P18")
async def test_keyless_messages_go_round_robin(sdk: Azure, partitioned: str) -> None:
    sender, receiver = sdk.sender(partitioned), sdk.receiver(partitioned)
    for n in range(32):
        await sender.send_messages(ServiceBusMessage(str(n), message_id="always the same"))

    taken = await take(receiver, 32)

    assert Counter(map(index_of, taken)) == dict.fromkeys(range(16), 2)
    in_turn = [index_of(message) for message in sorted(taken, key=lambda message: int(text_of(message)))]
    assert all(after == (before + 1) % 16 for before, after in pairwise(in_turn))
    await settle_all(receiver, taken)


@pytest.mark.req("P16")
def test_the_session_id_is_the_key_and_a_partition_key_must_equal_it(
    amqp: PlainAmqp, partitioned: str
) -> None:
    amqp.send(
        partitioned, data("a", key="same", session="same"), data("b", session="same"), data("c", key="same")
    )
    receiver = amqp.receiver(partitioned, 3)
    taken = [amqp.take(receiver)[0] for _ in range(3)]
    assert [message.body for message in taken] == [b"a", b"b", b"c"]
    assert len({message.annotations[symbol("x-opt-partition-id")] for message in taken}) == 1

    sender = amqp.connection.create_sender(partitioned)
    refused = sender.link.send(data("d", key="k", session="s"))
    amqp.pump(lambda: refused.settled)
    assert refused.remote_state == Delivery.REJECTED
    assert refused.remote.condition.name == "amqp:not-allowed"
    assert "SessionId 's' and the PartitionKey 'k'" in refused.remote.condition.description
    sender.close()


@pytest.mark.req("P17")
async def test_the_message_id_is_the_key_where_duplicates_are_detected(sdk: Azure) -> None:
    sender, receiver = sdk.sender("unique"), sdk.receiver("unique")
    for _ in range(2):
        for n in range(20):
            await sender.send_messages(ServiceBusMessage(str(n), message_id=f"id-{n}"))

    taken = await take(receiver, 20)

    assert sorted(int(text_of(message)) for message in taken) == [*range(20)]
    assert len(set(map(index_of, taken))) > 4
    await settle_all(receiver, taken)
    assert await nothing_left(receiver)


@pytest.mark.req("P32")
async def test_a_batch_lies_in_one_fragment(sdk: Azure, partitioned: str) -> None:
    sender, receiver = sdk.sender(partitioned), sdk.receiver(partitioned)
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(10)])

    taken = await take(receiver, 10)

    assert [text_of(message) for message in taken] == [str(n) for n in range(10)]
    assert len(set(map(index_of, taken))) == 1
    with pytest.raises(ServiceBusError, match="distinct SessionId"):
        await sender.send_messages([ServiceBusMessage("a", partition_key=key) for key in ("x", "y")])
    with pytest.raises(ServiceBusError, match="distinct SessionId"):
        await sender.send_messages([ServiceBusMessage("a", partition_key="x"), ServiceBusMessage("b")])
    await settle_all(receiver, taken)
    assert await nothing_left(receiver)


@pytest.mark.req("P11")
async def test_each_fragment_has_the_quota_of_the_entity(server: Busbar) -> None:
    """1 MB for each of 16 fragments: a key fills its own fragment and no other; without a key all 16 are filled."""
    connection = await connect(server.port)
    body = b"x" * 200_000

    def keyed(number: int) -> bytes:
        return b"\x00\x53\x72\xc1\x1b\x02\xa3\x13x-opt-partition-key\xa1\x03one" + data_section(body)

    pinned = await connection.sender("small", keyed, in_flight=1)
    await pinned.send(10)
    assert pinned.acknowledged == 5
    assert {condition for _number, condition in pinned.refused} == {"amqp:resource-limit-exceeded"}
    anywhere = await connection.sender("small", in_flight=4, body=body)
    await anywhere.send(100)
    assert anywhere.acknowledged == 75
    assert {condition for _number, condition in anywhere.refused} == {"amqp:resource-limit-exceeded"}
    receiver = await connection.receiver("small", credit=200, delete=True)
    await receiver.settled(80)
    await connection.close()


def data_section(body: bytes) -> bytes:
    return b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


# ---- receiving from many fragments ----


@pytest.mark.req("P7")
async def test_the_first_message_found_is_returned_wherever_it_is(sdk: Azure, partitioned: str) -> None:
    """No fragment is waited for: an almost empty queue answers as fast as any."""
    sender, receiver = sdk.sender(partitioned), sdk.receiver(partitioned)
    await asyncio.gather(sender.opened(), receiver.opened())
    for n in range(16):
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage(str(n)))
        message = await take_one(receiver)
        assert text_of(message) == str(n)
        assert time.monotonic() - began < 1
        await receiver.complete_message(message)


@pytest.mark.req("P7", "P28")
def test_what_was_obtained_beyond_the_credit_is_kept_for_the_next_receives(
    server: Busbar, amqp: PlainAmqp, partitioned: str
) -> None:
    amqp.send(partitioned, *(data(str(n)) for n in range(16)))
    spread = [data(str(n), key=f"k{n}") for n in range(16, 40)]
    amqp.send(partitioned, *spread)
    other = PlainAmqp(server.port, server.key)
    first = amqp.receiver(partitioned, 1)
    message, delivery = amqp.take(first)
    amqp.settle(delivery, Delivery.ACCEPTED)
    received = [message.body]

    # The others that were obtained are locked at the gateway: not seen by another receiver, and at hand for this one.
    second = other.receiver(partitioned, 100)
    other.listen(0.3)
    elsewhere = [other.take(second) for _ in range(len(second.fetcher.incoming))]
    assert len(elsewhere) < 39
    kept = 39 - len(elsewhere)
    first.link.flow(kept)
    for _ in range(kept):
        message, delivery = amqp.take(first)
        assert message.delivery_count == 0
        amqp.settle(delivery, Delivery.ACCEPTED)
        received.append(message.body)
    received += [message.body for message, _delivery in elsewhere]
    assert sorted(map(int, received)) == [*range(40)]
    other.close()


@pytest.mark.req("P28")
def test_what_was_never_handed_out_returns_uncounted(server: Busbar, amqp: PlainAmqp, names: Names) -> None:
    """When the link closes, when the connection is lost, and when the client does not come back."""
    for how in ("close", "lose", "wait"):
        queue = names.take("partitioned-brief" if how == "wait" else "partitioned")
        amqp.send(queue, *(data(str(n), key=str(n)) for n in range(30)))
        holder = PlainAmqp(server.port, server.key)
        receiver = holder.receiver(queue, 1)
        first, _delivery = holder.take(receiver)
        began = time.monotonic()
        if how == "close":
            receiver.close()
        elif how == "lose":
            holder.connection.conn.transport.close_tail()
            holder.connection.conn.transport.close_head()
            holder.connection.container.process()
        taker = amqp.receiver(queue, 29)
        amqp.pump(lambda taker=taker: len(taker.fetcher.incoming) == 29, timeout=5)
        assert time.monotonic() - began < 2
        taken = [amqp.take(taker)[0] for _ in range(29)]
        assert {message.delivery_count for message in taken} == {0}
        assert {message.body for message in taken} | {first.body} == {str(n).encode() for n in range(30)}
        taker.close()
        if how != "lose":
            holder.close()


@pytest.mark.req("P28")
def test_a_cached_message_is_handed_out_with_a_full_lock(amqp: PlainAmqp, names: Names) -> None:
    queue = names.take("partitioned-brief")
    amqp.send(queue, *(data(str(n), key=str(n)) for n in range(20)))
    receiver = amqp.receiver(queue, 1)
    amqp.take(receiver)
    amqp.listen(BRIEF_LOCK * 0.4)  # what is cached now has less than two thirds of its lock left
    began = time.time()
    receiver.link.flow(1)
    message, delivery = amqp.take(receiver)
    assert message.annotations[symbol("x-opt-locked-until")] / 1000 >= began + BRIEF_LOCK - 0.05
    amqp.listen(BRIEF_LOCK * 0.75)  # beyond its first lock, within the renewed one
    assert amqp.settle(delivery, Delivery.ACCEPTED) == Delivery.ACCEPTED
    receiver.close()


@pytest.mark.req("P7")
async def test_no_fragment_starves_under_load(server: Busbar, partitioned: str) -> None:
    """A backlog in every fragment and a receiver with little credit: each fragment gives about as much as any."""
    connection = await connect(server.port)
    sender = await connection.sender(partitioned, in_flight=200, body=b"x" * 100)
    await sender.send(3_200)
    receiver = await connection.receiver(partitioned, credit=20)
    seen: Counter[int] = Counter()
    receiver.arrived = counting(receiver.arrived, seen)  # type: ignore[method-assign]
    await receiver.settled(800)
    assert len(seen) == 16
    assert max(seen.values()) < 4 * min(seen.values())
    await receiver.settled(3_200)
    await connection.close()


def counting(arrived: Any, seen: Counter[int]) -> Any:
    marker = b"x-opt-partition-id\x61"

    def count(deliveries: list[Any]) -> None:
        for delivery in deliveries:
            at = delivery.payload.index(marker) + len(marker)
            seen[int.from_bytes(delivery.payload[at : at + 2], "big")] += 1
        arrived(deliveries)

    return count


# ---- by sequence number ----


@pytest.mark.req("P32")
async def test_by_number_reaches_the_right_fragment(sdk: Azure, partitioned: str) -> None:
    sender, receiver = sdk.sender(partitioned), sdk.receiver(partitioned)
    for n in range(16):
        await sender.send_messages(ServiceBusMessage(str(n)))
    taken = await take(receiver, 16)
    for message in taken:
        await receiver.defer_message(message)
    for message in taken:
        (back,) = await receiver.receive_deferred_messages([message.sequence_number])
        assert text_of(back) == text_of(message)
        assert await receiver.renew_message_lock(back) > datetime.now(UTC)
        await receiver.complete_message(back)
    assert await receiver.peek_messages(10) == []
    with pytest.raises(ServiceBusError, match="2 fragments"):
        await receiver.receive_deferred_messages([taken[0].sequence_number, taken[1].sequence_number])


@pytest.mark.req("P32")
def test_tokens_of_several_fragments_in_one_request(amqp: PlainAmqp, partitioned: str) -> None:
    amqp.send(partitioned, *(data(str(n), key=str(n)) for n in range(6)))
    receiver = amqp.receiver(partitioned, 6)
    found = []
    for _ in range(6):
        message, delivery = amqp.take(receiver)
        amqp.settle(delivery, Delivery.MODIFIED, undeliverable=True)
        number = array(Data.LONG, message.annotations[symbol("x-opt-sequence-number")])
        status, body = amqp.manage(
            partitioned,
            "receive-by-sequence-number",
            {"sequence-numbers": number, "receiver-settle-mode": uint(1)},
        )
        assert status == 200
        found.append(body["messages"][0]["lock-token"])
    tokens = array(Data.UUID, *found)

    status, body = amqp.manage(partitioned, "renew-lock", {"lock-tokens": tokens})
    assert status == 200 and len(body["expirations"].elements) == 6
    done: dict[str, object] = {"lock-tokens": tokens, "disposition-status": "completed"}
    assert amqp.manage(partitioned, "update-disposition", done)[0] == 200
    everything: dict[str, object] = {"from-sequence-number": 0, "message-count": int32(9)}
    assert amqp.manage(partitioned, "peek-message", everything)[0] == 204
    assert amqp.manage(partitioned, "update-disposition", done)[0] == 410


def test_batch_delete_walks_all_fragments(amqp: PlainAmqp, partitioned: str) -> None:
    amqp.send(partitioned, *(data(str(n), key=str(n)) for n in range(30)))
    request = {"message-count": int32(25), "enqueued-time-utc": timestamp(253402300799999)}
    assert amqp.manage(partitioned, "batch-delete-messages", request) == (200, {"message-count": 25})
    assert amqp.manage(partitioned, "batch-delete-messages", request) == (200, {"message-count": 5})
    assert amqp.manage(partitioned, "batch-delete-messages", request)[0] == 204
