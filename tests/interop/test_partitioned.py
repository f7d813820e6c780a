"""Partitioned queues through the vendor's SDK: the same for a client as regular ones, and what makes them different.

Where a message lies is seen in its sequence number, whose top 16 bits are the index of its fragment.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from busbar.model.partitioning import index_of_key
from harness.amqp_driver import connect
from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, Handler, nothing_left, take, take_one, text_of
from tests.interop.http_runtime import Http
from tests.interop.partitioned_queues import BRIEF_LOCK, Names, index_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]


async def settle_all(receiver: Handler, messages: list[Any]) -> None:
    for message in messages:
        await receiver.complete_message(message)


@pytest.mark.req("P8", "P32")
async def test_every_message_sent_is_received_once(partitioned_azure: Azure, either: str) -> None:
    """Sends one by one and in a batch, received one by one and many at a time."""
    sender, receiver = partitioned_azure.sender(either), partitioned_azure.receiver(either)
    for n in range(5):
        await sender.send_messages(ServiceBusMessage(str(n)))
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(5, 40)])

    taken = [await take_one(receiver) for _ in range(5)] + await take(receiver, 35)

    assert sorted(int(text_of(message)) for message in taken) == [*range(40)]
    assert all(message.delivery_count == 0 for message in taken)
    await settle_all(receiver, taken)
    assert await nothing_left(receiver)


@pytest.mark.req("P8")
async def test_abandon_defer_and_dead_letter(partitioned_azure: Azure, either: str) -> None:
    sender, receiver, dead = (
        partitioned_azure.sender(either),
        partitioned_azure.receiver(either),
        partitioned_azure.dead_letters(either),
    )
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
async def test_renewing_a_lock(partitioned_azure: Azure, partitioned_names: Names, either: str) -> None:
    queue = partitioned_names.take(either.rsplit("-", 1)[0] + "-brief")
    await partitioned_azure.send(queue, "held")
    receiver = partitioned_azure.receiver(queue)
    message = await take_one(receiver)
    for _ in range(3):
        await asyncio.sleep(BRIEF_LOCK / 2)
        before = message.locked_until_utc
        assert await receiver.renew_message_lock(message) > before
    await receiver.complete_message(message)

    await partitioned_azure.send(queue, "lost")
    message = await take_one(receiver)
    await asyncio.sleep(BRIEF_LOCK + 0.1)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)
    again = await take_one(receiver)
    assert (text_of(again), again.delivery_count) == ("lost", 1)
    await receiver.complete_message(again)


@pytest.mark.req("P8")
async def test_prefetch(partitioned_azure: Azure, either: str) -> None:
    sender, receiver = partitioned_azure.sender(either), partitioned_azure.receiver(either, prefetch_count=50)
    await receiver.opened()
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(30)])
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(30, 60)])

    taken: list[Any] = []
    while len(taken) < 60:
        more = await take(receiver, 1)
        await settle_all(receiver, more)
        taken += more

    assert sorted(int(text_of(message)) for message in taken) == [*range(60)]
    assert await nothing_left(receiver)


@pytest.mark.req("P8")
async def test_receive_and_delete(partitioned_azure: Azure, either: str) -> None:
    sender, receiver = partitioned_azure.sender(either), partitioned_azure.once(either)
    for n in range(12):
        await sender.send_messages(ServiceBusMessage(str(n)))

    taken = [await take_one(receiver), *await take(receiver, 11)]

    assert sorted(int(text_of(message)) for message in taken) == [*range(12)]
    assert await partitioned_azure.receiver(either).peek_messages(100) == []


@pytest.mark.req("P32")
async def test_schedule_and_cancel(partitioned_azure: Azure, either: str) -> None:
    sender, receiver = partitioned_azure.sender(either), partitioned_azure.receiver(either)
    soon, never = datetime.now(UTC) + timedelta(seconds=1.5), datetime.now(UTC) + timedelta(hours=1)
    await sender.schedule_messages(ServiceBusMessage("soon"), soon)
    cancelled = await sender.schedule_messages(
        [ServiceBusMessage("a", partition_key="k"), ServiceBusMessage("b", partition_key="k")], never
    )
    assert len({number >> 48 for number in cancelled}) == 1
    assert {text_of(message) for message in await receiver.peek_messages(10)} == {"soon", "a", "b"}

    await sender.cancel_scheduled_messages(cancelled)

    message = await take_one(receiver)
    assert text_of(message) == "soon"
    await receiver.complete_message(message)
    assert await receiver.peek_messages(10) == []


@pytest.mark.req("P32", "P30")
async def test_peek_reaches_every_message(partitioned_azure: Azure, either: str) -> None:
    """256 KB fit into one answer, whatever is asked for. Fragments have different numbers of messages, and some have none.
    A small message that would still fit does not come before a large one that does not."""
    sender, receiver = partitioned_azure.sender(either), partitioned_azure.receiver(either)
    for n, key in enumerate(["one"] * 9 + ["two"] * 6 + ["three"] * 3 + ["four"] * 2):
        size = 100 if n % 5 == 4 else 60_000
        await sender.send_messages(ServiceBusMessage(f"{n:02}".ljust(size), partition_key=key))

    pages: list[list[Any]] = []
    while more := await receiver.peek_messages(15):  # the SDK goes on behind the last one it saw
        pages.append(more)

    seen = [message for page in pages for message in page]
    numbers = [message.sequence_number for message in seen]
    assert numbers == sorted(set(numbers))
    assert sorted(text_of(message)[:2] for message in seen) == [f"{n:02}" for n in range(20)], (
        "each of them once"
    )
    assert all(sum(len(text_of(message)) for message in page) <= 256 * 1024 for page in pages)
    assert all(len(page) < 15 for page in pages) and len(pages) == 4, "16 large ones, 4 to a page"
    assert await receiver.peek_messages(1, sequence_number=numbers[0]), "nothing was taken"
    await partitioned_azure.once(either).receive_messages(max_message_count=20, max_wait_time=1)


@pytest.mark.req("P30")
async def test_a_peek_of_more_than_there_is(partitioned_azure: Azure, either: str) -> None:
    """No fragment has as many as are asked for: what there is comes, and the last peek says that there is no more."""
    sender, receiver = partitioned_azure.sender(either), partitioned_azure.receiver(either)
    for n in range(20):
        await sender.send_messages(ServiceBusMessage(str(n)))
    seen: list[Any] = []
    while more := await receiver.peek_messages(7):
        assert len(more) <= 7
        seen += more
    assert sorted(int(text_of(message)) for message in seen) == [*range(20)]
    assert len(await receiver.peek_messages(100, sequence_number=1)) == 20


@pytest.mark.req("P6", "P14")
async def test_a_key_names_one_fragment_and_keeps_its_order(
    partitioned_azure: Azure, partitioned: str
) -> None:
    sender, receiver = partitioned_azure.sender(partitioned), partitioned_azure.receiver(partitioned)
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
        key, _, place = text_of(message).partition(":")
        order.setdefault(key, []).append(int(place))
        fragments.setdefault(key, set()).add(index_of(message))
        assert message.partition_key == key
        annotations = message.raw_amqp_message.annotations or {}
        assert annotations[b"x-opt-partition-id"] == index_of(message)
    assert all(numbers == [*range(8)] for numbers in order.values())
    assert all(len(indexes) == 1 for indexes in fragments.values())
    assert len(set().union(*fragments.values())) > 4
    await settle_all(receiver, taken)


@pytest.mark.req("P6", "P17", "P18")
async def test_keyless_messages_go_round_robin(partitioned_azure: Azure, partitioned: str) -> None:
    sender, receiver = partitioned_azure.sender(partitioned), partitioned_azure.receiver(partitioned)
    for n in range(32):
        await sender.send_messages(ServiceBusMessage(str(n), message_id="always the same"))

    taken = await take(receiver, 32)

    assert Counter(map(index_of, taken)) == dict.fromkeys(range(16), 2)
    in_turn = [index_of(message) for message in sorted(taken, key=lambda message: int(text_of(message)))]
    assert len(set(in_turn[:16])) == 16 and in_turn[:16] == in_turn[16:]
    await settle_all(receiver, taken)


@pytest.mark.req("P17")
async def test_the_message_id_is_the_key_where_duplicates_are_detected(partitioned_azure: Azure) -> None:
    sender, receiver = partitioned_azure.sender("unique"), partitioned_azure.receiver("unique")
    for _ in range(2):
        for n in range(20):
            await sender.send_messages(ServiceBusMessage(str(n), message_id=f"id-{n}"))

    taken = await take(receiver, 20)

    assert sorted(int(text_of(message)) for message in taken) == [*range(20)]
    assert len(set(map(index_of, taken))) > 4
    await settle_all(receiver, taken)
    assert await nothing_left(receiver)


@pytest.mark.req("P32")
async def test_a_batch_lies_in_one_fragment(partitioned_azure: Azure, partitioned: str) -> None:
    sender, receiver = partitioned_azure.sender(partitioned), partitioned_azure.receiver(partitioned)
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
async def test_each_fragment_has_the_quota_of_the_entity(partitioned_server: Busbar) -> None:
    """1 MB for each of 16 fragments: a key fills its own fragment and no other; without a key all 16 are filled."""
    connection = await connect(partitioned_server.port)
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


@pytest.mark.req("P7")
async def test_the_first_message_found_is_returned_wherever_it_is(
    partitioned_azure: Azure, partitioned: str
) -> None:
    """No fragment is waited for: an almost empty queue answers as fast as any."""
    sender, receiver = partitioned_azure.sender(partitioned), partitioned_azure.receiver(partitioned)
    await asyncio.gather(sender.opened(), receiver.opened())
    for n in range(16):
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage(str(n)))
        message = await take_one(receiver)
        assert text_of(message) == str(n)
        assert time.monotonic() - began < 5
        await receiver.complete_message(message)


@pytest.mark.req("P7")
async def test_no_fragment_starves_under_load(partitioned_server: Busbar, partitioned: str) -> None:
    """A backlog in every fragment and a receiver with little credit: each fragment gives about as much as any."""
    connection = await connect(partitioned_server.port)
    sender = await connection.sender(partitioned, keyed, in_flight=200)
    await sender.send(3_200)
    receiver = await connection.receiver(partitioned, credit=20)
    seen: Counter[int] = Counter()
    receiver.arrived = counting(receiver.arrived, seen)  # type: ignore[method-assign]
    await receiver.settled(800)
    assert len(seen) == 16
    assert max(seen.values()) < 3 * min(seen.values())
    await receiver.settled(3_200)
    await connection.close()


KEYS = {index_of_key(key, 16): key for key in map("key-{}".format, range(500))}


def keyed(number: int) -> bytes:
    """The fragments in turn."""
    annotations = {Symbol("x-opt-partition-key"): KEYS[number % 16]}
    return encode_value(Described(ULong(0x72), annotations)) + encode_value(
        Described(ULong(0x75), b"x" * 100)
    )


def counting(arrived: Any, seen: Counter[int]) -> Any:
    marker = b"x-opt-partition-id\x61"

    def count(deliveries: list[Any]) -> None:
        for delivery in deliveries:
            at = delivery.payload.index(marker) + len(marker)
            seen[int.from_bytes(delivery.payload[at : at + 2], "big")] += 1
        arrived(deliveries)

    return count


@pytest.mark.req("P32")
async def test_by_number_reaches_the_right_fragment(partitioned_azure: Azure, partitioned: str) -> None:
    sender, receiver = partitioned_azure.sender(partitioned), partitioned_azure.receiver(partitioned)
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


# ---- over HTTP ----


@pytest.mark.req("P6", "P7", "P28", "P29")
async def test_http_reaches_all_fragments_and_keeps_what_it_obtained(
    partitioned_server: Busbar, partitioned: str
) -> None:
    """One connection: what the first receive obtains beyond one message serves the next ones."""
    http = Http(partitioned_server.port, partitioned_server.key)
    for n in range(20):
        assert (await http.send(partitioned, str(n).encode())).status == 201
    seen: dict[str, int] = {}
    for n in range(20):
        answer = await (http.peek_lock(partitioned) if n % 2 else http.take(partitioned))
        assert answer.status == (201 if n % 2 else 200)
        seen[answer.body.decode()] = answer.broker["SequenceNumber"]
        if n % 2:
            assert (await http.renew(answer.lock)).status == 200
            assert (await http.complete(answer.lock)).status == 200
            assert answer.lock.split("/")[-2] == str(answer.broker["SequenceNumber"])
    assert sorted(map(int, seen)) == [*range(20)]
    assert len({number >> 48 for number in seen.values()}) == 16
    assert (await http.peek_lock(partitioned, 0)).status == 204
    assert http.opened == 1
    await http.close()


@pytest.mark.req("P28")
async def test_what_an_http_connection_kept_returns_when_it_ends(
    partitioned_server: Busbar, partitioned: str
) -> None:
    sender, keeper, other = (Http(partitioned_server.port, partitioned_server.key) for _ in range(3))
    for n in range(16):
        await sender.send(partitioned, str(n).encode())
    first = await keeper.peek_lock(partitioned)
    assert (await other.peek_lock(partitioned, 0.2)).status == 204, "all others are locked at the gateway"
    await keeper.close()
    seen = {first.body}
    for _ in range(15):
        answer = await other.peek_lock(partitioned)
        assert answer.broker["DeliveryCount"] == 1, "as the first delivery is counted over HTTP"
        seen.add(answer.body)
    assert len(seen) == 16
    await sender.close()
    await other.close()
