"""A topic with as many forwarding subscriptions as a topic may have: every copy arrives at the one queue, once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest

from busbar.client import MessagingFactory, OutgoingMessage, encode
from harness.serving import config_text, serving

SUBSCRIPTIONS = 2_000
MESSAGES = 20 if os.environ.get("BUSBAR_DEEP") == "1" else 5


def config(count: int) -> str:
    subscriptions = [{"Name": f"s{number}", "Properties": {"ForwardTo": "all"}} for number in range(count)]
    return config_text({"all": {}}, topics=[{"Name": "t", "Properties": {}, "Subscriptions": subscriptions}])


@pytest.mark.req("B13")
@pytest.mark.timeout(600)
async def test_many_subscriptions_forward_to_one_queue() -> None:
    count, messages = SUBSCRIPTIONS, MESSAGES
    with serving(config=config(count), checked=True) as server:
        async with await MessagingFactory.connect(server.connection_string) as factory:
            sender = await factory.sender("t")
            for number in range(messages):
                text = f"m{number}"
                await sender.send([encode(OutgoingMessage(text.encode(), message_id=text))])
            receiver = await factory.receiver("all")
            found: Counter[str] = Counter()
            while sum(found.values()) < messages * count:
                got = await receiver.receive(1_000, 60)
                assert got, f"{sum(found.values())} of {messages * count} came"
                found.update(str(message.decode().message_id) for message in got)
                await receiver.complete(got)
            await asyncio.sleep(0.5)
            assert await receiver.receive(1, 0.5) == []
    assert set(found.values()) == {count} and len(found) == messages
