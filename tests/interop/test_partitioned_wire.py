"""Partitioned queues as a plain AMQP client sees them, with exact credit: the cache, drains, keys, lock tokens."""

from __future__ import annotations

import time
from typing import Any

import pytest
from proton import Data, Delivery, int32, symbol, timestamp, uint

from harness.serving import Busbar
from tests.interop.partitioned_queues import BRIEF_LOCK, Names, data
from tests.interop.plain_amqp import PlainAmqp, array

pytestmark = pytest.mark.timeout(60)


@pytest.mark.req("P8")
def test_competing_receivers_that_wait_get_a_message_each(partitioned_plain: PlainAmqp, either: str) -> None:
    """Credit that was used up takes nothing from those who still wait."""
    receivers = [partitioned_plain.receiver(either, 1) for _ in range(4)]
    partitioned_plain.listen(0.1)
    for n in range(4):
        partitioned_plain.send(either, data(str(n)))
    partitioned_plain.pump(lambda: all(receiver.fetcher.has_message for receiver in receivers))
    received = [partitioned_plain.take(receiver)[0].body for receiver in receivers]
    assert sorted(received) == [b"0", b"1", b"2", b"3"]


@pytest.mark.req("P8")
def test_a_drain_finds_everything_and_is_answered(partitioned_plain: PlainAmqp, either: str) -> None:
    keyed, keyless = (data(str(n), key="one") for n in range(20)), (data(str(n)) for n in range(20, 40))
    partitioned_plain.send(either, *keyed, *keyless)
    receiver = partitioned_plain.receiver(either)
    receiver.link.drain(100)
    partitioned_plain.pump(lambda: not receiver.link.draining())
    # Proton knows the end of the drain before it has shown all that came before it.
    partitioned_plain.pump(lambda: len(receiver.fetcher.incoming) == 40)
    received = sorted(int(message.body) for message, _delivery in receiver.fetcher.incoming)
    assert received == [*range(40)]


@pytest.mark.req("P16")
def test_the_session_id_is_the_key_and_a_partition_key_must_equal_it(
    partitioned_plain: PlainAmqp, partitioned: str
) -> None:
    partitioned_plain.send(
        partitioned, data("a", key="same", session="same"), data("b", session="same"), data("c", key="same")
    )
    receiver = partitioned_plain.receiver(partitioned, 3)
    taken = [partitioned_plain.take(receiver)[0] for _ in range(3)]
    assert [message.body for message in taken] == [b"a", b"b", b"c"]
    assert len({message.annotations[symbol("x-opt-partition-id")] for message in taken}) == 1

    sender = partitioned_plain.connection.create_sender(partitioned)
    refused: Any = sender.link.send(data("d", key="k", session="s"))
    partitioned_plain.pump(lambda: refused.settled)
    assert refused.remote_state == Delivery.REJECTED
    assert refused.remote.condition.name == "amqp:not-allowed"
    assert "SessionId 's' and the PartitionKey 'k'" in refused.remote.condition.description
    sender.close()


@pytest.mark.req("P7", "P28")
def test_what_was_obtained_beyond_the_credit_is_kept_for_the_next_receives(
    partitioned_server: Busbar, partitioned_plain: PlainAmqp, partitioned: str
) -> None:
    partitioned_plain.send(partitioned, *(data(str(n)) for n in range(16)))
    spread = [data(str(n), key=f"k{n}") for n in range(16, 40)]
    partitioned_plain.send(partitioned, *spread)
    other = PlainAmqp(partitioned_server.port, partitioned_server.key)
    first = partitioned_plain.receiver(partitioned, 1)
    message, delivery = partitioned_plain.take(first)
    partitioned_plain.settle(delivery, Delivery.ACCEPTED)
    received = [message.body]

    # The others that were obtained are locked at the gateway: not seen by another receiver, and at hand for this one.
    second = other.receiver(partitioned, 100)
    other.listen(0.3)
    elsewhere = [other.take(second) for _ in range(len(second.fetcher.incoming))]
    assert len(elsewhere) < 39
    kept = 39 - len(elsewhere)
    first.link.flow(kept)
    for _ in range(kept):
        message, delivery = partitioned_plain.take(first)
        assert message.delivery_count == 0
        partitioned_plain.settle(delivery, Delivery.ACCEPTED)
        received.append(message.body)
    received += [message.body for message, _delivery in elsewhere]
    assert sorted(map(int, received)) == [*range(40)]
    other.close()


@pytest.mark.req("P28")
@pytest.mark.parametrize("how", ["the link closes", "the connection is lost", "nobody comes back for it"])
def test_what_was_never_handed_out_returns_uncounted(
    partitioned_server: Busbar, partitioned_plain: PlainAmqp, partitioned_names: Names, how: str
) -> None:
    queue = partitioned_names.take("partitioned-brief" if how.startswith("nobody") else "partitioned")
    partitioned_plain.send(queue, *(data(str(n), key=str(n)) for n in range(30)))
    holder = PlainAmqp(partitioned_server.port, partitioned_server.key)
    receiver = holder.receiver(queue, 1)
    first, _delivery = holder.take(receiver)
    began = time.monotonic()
    if how == "the link closes":
        receiver.close()
    elif how == "the connection is lost":
        connection: Any = holder.connection
        connection.conn.transport.close_tail()
        connection.conn.transport.close_head()
        connection.container.process()
    taker = partitioned_plain.receiver(queue, 29)
    partitioned_plain.pump(lambda: len(taker.fetcher.incoming) == 29, timeout=10)
    assert time.monotonic() - began < 10
    taken = [partitioned_plain.take(taker)[0] for _ in range(29)]
    assert {message.delivery_count for message in taken} == {0}
    assert {message.body for message in taken} | {first.body} == {str(n).encode() for n in range(30)}
    if how != "the connection is lost":
        holder.close()


@pytest.mark.req("P28")
def test_a_cached_message_is_handed_out_with_a_full_lock(
    partitioned_plain: PlainAmqp, partitioned_names: Names
) -> None:
    queue = partitioned_names.take("partitioned-brief")
    partitioned_plain.send(queue, *(data(str(n), key=str(n)) for n in range(20)))
    receiver = partitioned_plain.receiver(queue, 1)
    partitioned_plain.take(receiver)
    partitioned_plain.listen(BRIEF_LOCK * 0.4)  # what is cached now has less than two thirds of its lock left
    began = time.time()
    receiver.link.flow(1)
    message, delivery = partitioned_plain.take(receiver)
    assert message.annotations[symbol("x-opt-locked-until")] / 1000 >= began + BRIEF_LOCK - 0.05
    partitioned_plain.listen(BRIEF_LOCK * 0.75)  # beyond its first lock, within the renewed one
    assert partitioned_plain.settle(delivery, Delivery.ACCEPTED) == Delivery.ACCEPTED
    receiver.close()


@pytest.mark.req("P32")
def test_tokens_of_several_fragments_in_one_request(partitioned_plain: PlainAmqp, partitioned: str) -> None:
    partitioned_plain.send(partitioned, *(data(str(n), key=str(n)) for n in range(6)))
    receiver = partitioned_plain.receiver(partitioned, 6)
    found = []
    for _ in range(6):
        message, delivery = partitioned_plain.take(receiver)
        partitioned_plain.settle(delivery, Delivery.MODIFIED, undeliverable=True)
        number = array(Data.LONG, message.annotations[symbol("x-opt-sequence-number")])
        status, body = partitioned_plain.manage(
            partitioned,
            "receive-by-sequence-number",
            {"sequence-numbers": number, "receiver-settle-mode": uint(1)},
        )
        assert status == 200
        found.append(body["messages"][0]["lock-token"])
    tokens = array(Data.UUID, *found)

    status, body = partitioned_plain.manage(partitioned, "renew-lock", {"lock-tokens": tokens})
    assert status == 200 and len(body["expirations"].elements) == 6
    done: dict[str, object] = {"lock-tokens": tokens, "disposition-status": "completed"}
    assert partitioned_plain.manage(partitioned, "update-disposition", done)[0] == 200
    everything: dict[str, object] = {"from-sequence-number": 0, "message-count": int32(9)}
    assert partitioned_plain.manage(partitioned, "peek-message", everything)[0] == 204
    assert partitioned_plain.manage(partitioned, "update-disposition", done)[0] == 410


def test_batch_delete_walks_all_fragments(partitioned_plain: PlainAmqp, partitioned: str) -> None:
    partitioned_plain.send(partitioned, *(data(str(n), key=str(n)) for n in range(30)))
    request: dict[str, object] = {"message-count": int32(25), "enqueued-time-utc": timestamp(253402300799999)}
    assert partitioned_plain.manage(partitioned, "batch-delete-messages", request) == (
        200,
        {"message-count": 25},
    )
    assert partitioned_plain.manage(partitioned, "batch-delete-messages", request) == (
        200,
        {"message-count": 5},
    )
    assert partitioned_plain.manage(partitioned, "batch-delete-messages", request)[0] == 204
