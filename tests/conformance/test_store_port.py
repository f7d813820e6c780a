"""What every port tells operators of stores and fragments, and what they can do."""

from __future__ import annotations

import asyncio

import pytest

from busbar.model.api import BrokerApi
from busbar.model.commands import Send
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.entities import QueueDescription
from busbar.model.errors import ArgumentError, EntityNotFound, InvalidOperation, ServerBusy
from busbar.model.message import Draft


async def sent(port: BrokerApi, fragment: int) -> Effect:
    answer: asyncio.Future[Effect] = asyncio.get_running_loop().create_future()
    origin = port.connect(lambda effects: answer.set_result(effects[0]))
    port.submit([Send(fragment, origin, 1, [Draft(b"x", "id", None, None, 0, 0)], True)])
    effect = await asyncio.wait_for(answer, 5)
    port.disconnect(origin)
    return effect


async def test_fragments_and_stores_are_told(port: BrokerApi) -> None:
    entity = await port.entity("orders")
    assert isinstance(await sent(port, entity.fragments[0]), Sent)
    (fragment,) = await port.fragments("Orders")
    assert (fragment.index, fragment.id, fragment.store) == (0, entity.fragments[0], entity.stores[0])
    assert (fragment.state, fragment.active, fragment.size > 0, fragment.oldest > 0) == (
        "open",
        1,
        True,
        True,
    )
    (store,) = await port.stores()
    assert (store.name, store.state, store.reason) == (fragment.store, "open", "")
    assert store.fragments >= 3 and store.since > 0
    with pytest.raises(EntityNotFound):
        await port.fragments("nobody")


async def test_who_looks_at_an_entity_does_not_use_it(port: BrokerApi) -> None:
    await port.fragments("other")
    assert (await port.runtime("other")).accessed == 0
    assert isinstance(await sent(port, (await port.entity("other")).fragments[0]), Sent)
    used = (await port.runtime("other")).accessed
    await asyncio.sleep(0.01)
    await port.fragments("other")
    assert (await port.runtime("other")).accessed == used > 0


async def test_a_store_is_taken_offline_and_brought_back(port: BrokerApi) -> None:
    (store,) = await port.stores()
    entity = await port.entity("other")
    shown = await port.change_store(store.name, "offline")
    assert (shown.state, shown.reason) == ("unavailable", "taken offline by an operator")
    refused = await sent(port, entity.fragments[0])
    assert isinstance(refused, Refused)
    assert refused.condition == ServerBusy.condition and refused.certain
    assert (await port.fragments("other"))[0].state == "unavailable"
    assert not (await port.runtime("other")).available
    assert (await port.entity("other")).path == "other", "it is there all the same"
    with pytest.raises(ServerBusy):
        await port.create("new", QueueDescription())
    await port.update("other", QueueDescription(max_delivery_count=3))
    await port.delete("short")
    with pytest.raises(EntityNotFound):
        await port.entity("short")
    assert (await port.change_store(store.name, "online")).state == "open"
    assert isinstance(await sent(port, entity.fragments[0]), Sent)
    assert (await port.runtime("other")).available


async def test_what_cannot_be_done_with_a_store(port: BrokerApi) -> None:
    (store,) = await port.stores()
    with pytest.raises(ArgumentError):
        await port.change_store("nowhere", "offline")
    with pytest.raises(ArgumentError):
        await port.change_store(store.name, "sideways")
    with pytest.raises(InvalidOperation):
        await port.change_store(store.name, "reset")
