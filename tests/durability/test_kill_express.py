"""`kill -9` of a server with express entities: what it may lose, and what it keeps (docs/express.md)."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.events import Delivery
from busbar.amqp.types import Described, Symbol, ULong
from busbar.message.decoded import decode_message
from harness.amqp_driver import COMPLETE, Payload, connect, payload_of, sas_token
from harness.serving import Busbar, config_text
from tests.durability.load_client import NUMBER

PLAIN = payload_of(b"express")
COUNT = 200
DELAY = 700
TOPIC = {
    "Name": "t",
    "Properties": {"EnableExpress": True},
    "Subscriptions": [{"Name": "a", "Properties": {}}, {"Name": "b", "Properties": {}}],
}


def in_header(number: int) -> bytes:
    return encode_value(Described(ULong(0x70), [True])) + PLAIN(number)


def in_annotation(number: int) -> bytes:
    forced = {Symbol("x-opt-force-persistence"): True}
    return encode_value(Described(ULong(0x72), forced)) + PLAIN(number)


def server_of(path: Path, delay: int, **properties: object) -> Busbar:
    queue = {"EnableExpress": True, **properties}
    return Busbar(path / "data", config_text({"q": queue}, {"express_delay": delay}, [TOPIC]))


async def send(port: int, entity: str, count: int, payload: Payload = PLAIN, first: int = 0) -> None:
    """Send messages whose ids are the numbers from `first` on; returns when all are acknowledged."""
    connection = await connect(port)
    sender = await connection.sender(entity, lambda number: payload(first + number))
    await sender.send(count)
    assert sender.acknowledged == count, sender.refused
    await connection.close()


async def receive(port: int, entity: str, seconds: float = 1.0) -> tuple[list[int], list[int]]:
    """Complete all that is there. The ids and the sequence numbers of the messages."""
    ids: list[int] = []
    numbers: list[int] = []

    def decide(deliveries: list[Delivery]) -> list[tuple[list[int], bytes]]:
        for delivery in deliveries:
            message = decode_message(delivery.payload)
            ids.append(int(str(message.message_id)))
            found = NUMBER.search(delivery.payload)
            assert found is not None
            numbers.append(int.from_bytes(found[1], "big"))
        return [([delivery.id for delivery in deliveries], COMPLETE)]

    connection = await connect(port)
    receiver = await connection.receiver(entity, decide=decide)
    began = time.monotonic()
    quiet = began + seconds
    seen = -1
    while time.monotonic() < quiet or seen != len(ids) or receiver.confirmed < len(ids):
        seen = len(ids)
        await asyncio.sleep(0.2)
        assert time.monotonic() < began + 30, f"{receiver.confirmed} of {len(ids)} messages were completed"
    assert not receiver.denied
    await connection.close()
    return ids, numbers


@pytest.mark.req("B9")
@pytest.mark.parametrize("partitioned", [False, True])
def test_messages_that_stay_are_written_and_younger_ones_may_be_lost(
    tmp_path: Path, partitioned: bool
) -> None:
    server = server_of(tmp_path, DELAY, EnablePartitioning=partitioned).start()
    asyncio.run(send(server.port, "q", COUNT))
    time.sleep(3 * DELAY / 1000)
    server.kill()
    server.start()
    ids, _ = asyncio.run(receive(server.port, "q"))
    assert sorted(ids) == list(range(COUNT)), "they had stayed longer than the delay"
    assert server.stop() == 0


@pytest.mark.req("B9")
def test_what_only_memory_has_is_lost_and_forced_messages_are_not(tmp_path: Path) -> None:
    server = server_of(tmp_path, 600_000).start()
    asyncio.run(send(server.port, "q", 20, in_header, first=1_000))
    asyncio.run(send(server.port, "q", 20, in_annotation, first=2_000))
    asyncio.run(send(server.port, "q", COUNT))  # the last message that was written is before them
    server.kill()
    server.start()
    ids, numbers = asyncio.run(receive(server.port, "q"))
    assert ids == [*range(1_000, 1_020), *range(2_000, 2_020)], "the others were in memory alone"
    asyncio.run(send(server.port, "q", 1, first=9_000))
    again, later = asyncio.run(receive(server.port, "q"))
    assert again == [9_000]
    assert later[0] > numbers[-1] + COUNT, "numbers that were acknowledged are not given again"
    assert server.stop() == 0


@pytest.mark.req("B9")
def test_forced_messages_over_http_are_not_lost(tmp_path: Path) -> None:
    server = server_of(tmp_path, 600_000).start()
    port = server.port
    asyncio.run(send(port, "q", 3))
    for number in range(5):
        properties = {"MessageId": str(500 + number), "ForcePersistence": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/q/messages",
            b"body",
            {
                "Authorization": sas_token(f"http://127.0.0.1:{port}/q", server.key),
                "BrokerProperties": json.dumps(properties),
                "Content-Type": "text/plain",
            },
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 201
    server.kill()
    server.start()
    ids, _ = asyncio.run(receive(server.port, "q"))
    assert ids == [0, 1, 2, *range(500, 505)], "what came before a forced message is written with it"
    assert server.stop() == 0


@pytest.mark.req("B9")
def test_what_was_completed_does_not_come_back(tmp_path: Path) -> None:
    """Neither what was never written, nor what was written before it was completed."""
    server = server_of(tmp_path, DELAY).start()
    asyncio.run(send(server.port, "q", COUNT))
    time.sleep(2 * DELAY / 1000)
    asyncio.run(send(server.port, "q", COUNT, first=COUNT))
    ids, _ = asyncio.run(receive(server.port, "q", seconds=0.3))
    assert sorted(ids) == list(range(2 * COUNT))
    server.kill()
    server.start()
    assert asyncio.run(receive(server.port, "q")) == ([], [])
    assert server.stop() == 0


@pytest.mark.req("B9")
def test_a_clean_stop_keeps_all(tmp_path: Path) -> None:
    server = server_of(tmp_path, 600_000).start()
    asyncio.run(send(server.port, "q", COUNT))
    asyncio.run(send(server.port, "t", COUNT))
    assert server.stop() == 0
    server.start()
    for entity in ("q", "t/Subscriptions/a", "t/Subscriptions/b"):
        ids, _ = asyncio.run(receive(server.port, entity))
        assert ids == list(range(COUNT)), entity
    assert server.stop() == 0


@pytest.mark.req("B9")
def test_copies_of_an_express_topic_are_written_when_they_stay_or_are_forced(tmp_path: Path) -> None:
    server = server_of(tmp_path, DELAY).start()
    asyncio.run(send(server.port, "t", COUNT))
    time.sleep(3 * DELAY / 1000)
    asyncio.run(send(server.port, "t", 10, in_header, first=1_000))
    server.kill()
    server.start()
    for name in ("a", "b"):
        ids, _ = asyncio.run(receive(server.port, f"t/Subscriptions/{name}"))
        assert ids == [*range(COUNT), *range(1_000, 1_010)]
    assert server.stop() == 0
