"""Messages without a key are stored by the broker process of their connection: they need not cross to another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from busbar.client import MessagingFactory, OutgoingMessage
from harness.serving import Busbar, serving
from tests.durability.test_store_outage import Operator

ROUNDS = 4


@pytest.fixture(scope="module")
def brokers() -> Iterator[Busbar]:
    with serving({"p": {"EnablePartitioning": True}}, arguments=("--brokers", "2")) as server:
        yield server


def messages_by_broker(server: Busbar) -> Counter[str]:
    found: Counter[str] = Counter()
    for fragment in Operator(server).ask("GET", "fragments/p"):
        found[fragment["broker"]] += fragment["active"]
    return +found


async def send(server: Busbar, count: int, key: str | None = None) -> None:
    async with MessagingFactory(server.connection_string) as factory:
        sender = factory.message_sender("p")
        for number in range(count):
            await sender.send_messages(
                OutgoingMessage(b"%d" % number, partition_key=key and f"{key}-{number}")
            )


@pytest.mark.req("P3", "P6")
def test_messages_without_a_key_stay_with_the_broker_of_their_connection(brokers: Busbar) -> None:
    seen = []
    for _ in range(ROUNDS):  # clients are handed to the broker that has fewest
        before = messages_by_broker(brokers)
        asyncio.run(send(brokers, 20))
        seen.append(messages_by_broker(brokers) - before)
    assert [sum(one.values()) for one in seen] == [20] * ROUNDS
    assert {len(one) for one in seen} == {1}, "each client's messages are at one broker"

    before = messages_by_broker(brokers)
    asyncio.run(send(brokers, 40, "key"))
    assert len(messages_by_broker(brokers) - before) == 2, "a key names its fragment, wherever that is"
