"""The movers of a cluster: messages between stores of one broker process, and between those of two."""

from __future__ import annotations

import asyncio

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described
from busbar.broker import mover
from busbar.catalogue.placement import place
from busbar.message.parsing import parse_message
from busbar.model.commands import Send
from busbar.model.effects import Effect, Sent
from busbar.model.entities import QueueDescription
from busbar.model.message import Draft
from harness.waiting import until
from tests.unit.cluster.several_brokers import FOUR, Cluster, cluster

HOUR = 3_600_000


def name_in(store: str, word: str) -> str:
    return next(
        name for name in map(f"{word}{{}}".format, range(999)) if place(name, 1, sorted(FOUR)) == (store,)
    )


def draft() -> Draft:
    raw = encode_value(Described(0x75, b"body"))
    return parse_message(raw, 0, len(raw), "id", 128)


async def send(here: Cluster, path: str) -> None:
    heard: list[Effect] = []
    port = here.brokers["broker-0"].port
    origin = port.connect(heard.extend)
    (fragment,) = here.catalogue.find(path).fragments
    port.submit([Send(fragment, origin, 1, [draft()], True)])
    await until(lambda: heard)
    assert isinstance(heard[0], Sent)
    port.disconnect(origin)


@pytest.mark.parametrize("target_store", ["store-2", "store-1"], ids=["same-process", "other-process"])
async def test_a_move_goes_on_as_soon_as_the_store_of_its_target_is_open(
    monkeypatch: pytest.MonkeyPatch, target_store: str
) -> None:
    """It does not wait for the end of its pause, which can be long by then."""
    monkeypatch.setattr(mover, "MIN_PAUSE_MS", HOUR)
    monkeypatch.setattr(mover, "MAX_PAUSE_MS", HOUR)
    source, target = name_in("store-0", "source"), name_in(target_store, "target")
    async with cluster() as here:
        movers = [broker.node._moves for broker in here.brokers.values()]
        for moves in movers:
            moves.start(HOUR)
        await here.catalogue.create(target, QueueDescription())
        await here.catalogue.create(source, QueueDescription(forward_to=target))
        await here.controller.change_store(target_store, "offline")
        await send(here, source)
        await until(lambda: any(pair.is_held for moves in movers for pair in moves._mover.status()))
        await here.controller.change_store(target_store, "online")
        await here.until_open()
        async with asyncio.timeout(10):
            while (await here.controller.runtime(target)).active == 0:
                await asyncio.sleep(0.01)
        for moves in movers:
            await moves.stop()
