"""`kill -9` of a server that detects duplicates, while a client sends the same messages again after each.

The client knows nothing of what was stored: after each kill it begins at its first message. In the end every message is
there exactly once, whether it was acknowledged in an earlier round, left unknown by a kill, or never sent before.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from busbar.amqp.events import Delivery
from harness.amqp_driver import COMPLETE, ConnectionOver, connect
from harness.serving import Busbar, config_text

SEED = random.randrange(1 << 32)
ROUNDS = 4
MESSAGES = 10_000
BATCH = 10
QUEUE = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "P1D"}
NUMBER = re.compile(rb"\xa1\x0c(\d{12})")


@pytest.mark.req("U21")
def test_what_is_sent_again_after_a_kill_is_there_once(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config_text({"q": QUEUE}))
    acknowledged = []
    for _ in range(ROUNDS):
        server.start()
        acknowledged.append(asyncio.run(send_until_killed(server, chance.uniform(0.15, 0.5))))
    server.start()
    try:
        found = asyncio.run(send_all_and_take(server.port))
    finally:
        assert server.stop() == 0, server.error_text
    assert max(acknowledged) > BATCH, "there was no load"
    assert found == Counter(range(MESSAGES)), f"seed {SEED}"


async def send_until_killed(server: Busbar, after: float) -> int:
    connection = await connect(server.port)
    sender = await connection.sender("q", in_flight=500, batch=BATCH, body=b"x" * 100)
    sending = asyncio.create_task(sender.send(MESSAGES))
    await asyncio.sleep(after)
    await asyncio.to_thread(server.kill)
    await asyncio.wait([sending])
    assert sending.exception() is None or isinstance(sending.exception(), ConnectionOver)
    assert sender.refused == []
    return sender.acknowledged


async def send_all_and_take(port: int) -> Counter[int]:
    found: Counter[int] = Counter()

    def taken(deliveries: list[Delivery]) -> list[tuple[list[int], bytes]]:
        for delivery in deliveries:
            id = NUMBER.search(delivery.payload)
            assert id is not None
            found[int(id.group(1))] += 1
        return [([delivery.id for delivery in deliveries], COMPLETE)]

    connection = await connect(port)
    sender = await connection.sender("q", in_flight=1_000, batch=BATCH, body=b"x" * 100)
    await sender.send(MESSAGES)
    assert (sender.acknowledged, sender.refused) == (MESSAGES, [])
    receiver = await connection.receiver("q", credit=1_000, decide=taken)
    await asyncio.wait_for(receiver.settled(MESSAGES), 30)
    await asyncio.sleep(0.2)  # for one that is there twice
    await connection.close()
    return found
