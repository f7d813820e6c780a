"""One suite for every port: fragments in this process, and fragments in another one.

A gateway cannot tell the two apart; what it may rely on stands here.
"""

from __future__ import annotations

import time

import pytest

from busbar.message.compose import compose
from busbar.message.parsing import parse_message
from busbar.model.api import BrokerApi, FragmentApi
from busbar.model.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    Inspect,
    Leave,
    Peek,
    Purge,
    ReceiveDeferred,
    Renew,
    Send,
    Settle,
)
from busbar.model.effects import DeferredReceived, Drained, Peeked, Purged, Refused, Renewed, Settled
from busbar.model.entities import (
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.model.message import ACTIVE, DEAD, Draft
from tests.conformance.gateways import Gateway, queue
from tests.conformance.ports import other_process


async def test_entities_are_found_in_any_case_and_missing_ones_named(port: FragmentApi) -> None:
    view = await port.entity("oRDERS")
    assert view.path == "Orders"
    assert view.description == QueueDescription()
    assert (await port.entity("news")).description == TopicDescription()
    with pytest.raises(EntityNotFound, match=r"^The messaging entity 'nothing' could not be found\.$"):
        await port.entity("nothing")


async def test_send_receive_complete(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    assert await gateway.send(fragment, 3, b"\x00\xffbytes") == [1, 2, 3]
    gateway.want(fragment, 10)
    await gateway.until(lambda: gateway.numbers() == [1, 2, 3])
    record = gateway.delivered()[0].records[0]
    assert (record.content, record.deliveries, record.overlay) == (b"\x00\xffbytes", 0, None)
    assert gateway.delivered()[0].until > int(time.time() * 1000)
    assert (await gateway.settle(gateway.delivered()[0], COMPLETE)).lost == []
    assert (await gateway.settle(gateway.delivered()[0], COMPLETE)).lost == [0, 1, 2], (
        "a lock is settled once"
    )
    assert sum(await gateway.counts(fragment)) == 0


async def test_a_waiting_consumer_gets_what_comes(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    gateway.want(fragment, 2)
    await gateway.send(fragment, 3)
    await gateway.until(lambda: gateway.numbers() == [1, 2])
    gateway.want(fragment, 5, drain=True)
    await gateway.until(lambda: any(isinstance(effect, Drained) for effect in gateway.heard))
    assert gateway.numbers() == [1, 2, 3]


async def test_abandon_defer_and_dead_letter_with_properties(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    await gateway.send(fragment)
    gateway.want(fragment, 1)
    await gateway.until(lambda: len(gateway.delivered()) == 1)
    await gateway.settle(gateway.delivered()[0], ABANDON, {"try": b"\x54\x01"})
    gateway.want(fragment, 1)
    await gateway.until(lambda: len(gateway.delivered()) == 2)
    again = gateway.delivered()[1].records[0]
    assert (again.deliveries, again.overlay) == (1, {"try": b"\x54\x01"})

    await gateway.settle(gateway.delivered()[1], DEFER)
    received = await gateway.ask(
        DeferredReceived,
        lambda request: ReceiveDeferred(fragment, gateway.origin, request, ACTIVE, [1], False),
    )
    assert [record.n for record in received.records] == [1]
    renewed = await gateway.ask(
        Renewed, lambda request: Renew(fragment, gateway.origin, request, [1], [int(received.nonce)])
    )
    assert renewed.until >= received.until

    settled = await gateway.ask(
        Settled,
        lambda request: Settle(
            fragment, gateway.origin, request, DEAD_LETTER, [1], [int(received.nonce)], {"why": b"\x40"}, True
        ),
    )
    assert settled.lost == []
    gateway.want(fragment, 1, consumer=2, sub=DEAD)
    await gateway.until(lambda: len(gateway.delivered()) == 3)
    dead = gateway.delivered()[2]
    assert dead.consumer == 2
    assert dead.records[0].overlay is not None
    assert "why" in dead.records[0].overlay


async def test_peek_and_purge(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    await gateway.send(fragment, 10)
    peeked = await gateway.ask(
        Peeked, lambda request: Peek(fragment, gateway.origin, request, ACTIVE, 4, 3, 1 << 20)
    )
    assert [record.n for record in peeked.records] == [4, 5, 6]
    assert peeked.lanes == [ACTIVE] * 3
    before = int(time.time() * 1000) + 1000
    purged = await gateway.ask(
        Purged, lambda request: Purge(fragment, gateway.origin, request, ACTIVE, before, 4)
    )
    assert purged.count == 4
    assert (await gateway.counts(fragment))[ACTIVE] == 6


async def test_a_lock_that_ends_gives_the_message_to_the_next(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port, "short")
    await gateway.send(fragment)
    gateway.want(fragment, 2)
    await gateway.until(lambda: gateway.numbers() == [1, 1])
    assert (await gateway.settle(gateway.delivered()[0], COMPLETE)).lost == [0]
    assert (await gateway.settle(gateway.delivered()[1], COMPLETE)).lost == []


async def test_errors_come_back_as_refusals(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    unknown = await gateway.ask(Refused, lambda request: Inspect(4_000_000_000, gateway.origin, request))
    assert unknown.condition == "amqp:not-found"
    missing = await gateway.ask(
        Refused, lambda request: ReceiveDeferred(fragment, gateway.origin, request, ACTIVE, [99], False)
    )
    assert missing.condition == "com.microsoft:message-not-found"
    lost = await gateway.ask(Refused, lambda request: Renew(fragment, gateway.origin, request, [1], [1]))
    assert lost.condition == "com.microsoft:message-lock-lost"


async def test_origins_hear_only_their_own_in_batches(port: FragmentApi) -> None:
    one, two = Gateway(port), Gateway(port)
    fragment = await queue(port)
    other = await queue(port, "other")
    one.port.submit([Inspect(fragment, one.origin, request) for request in range(1, 51)])
    two.port.submit([Inspect(other, two.origin, request) for request in range(1, 51)])
    await one.until(lambda: len(one.heard) == 50 and len(two.heard) == 50)
    assert [effect.request for effect in one.heard] == list(range(1, 51))
    assert max(one.calls, two.calls) <= 3


async def test_a_consumer_that_leaves_gets_no_more(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    gateway.want(fragment, 5, consumer=1)
    gateway.want(fragment, 5, consumer=2)
    port.submit([Leave(fragment, gateway.origin, 1)])
    await gateway.send(fragment, 4)
    await gateway.until(lambda: len(gateway.numbers()) == 4)
    assert {delivered.consumer for delivered in gateway.delivered()} == {2}


async def test_disconnecting_releases_what_was_on_its_way(port: FragmentApi) -> None:
    leaver, stayer = Gateway(port), Gateway(port)
    fragment = await queue(port)
    leaver.want(fragment, 100)
    drafts = [Draft(b"", "", None, None, 0, 0)] * 5
    port.submit([Send(fragment, stayer.origin, 1000, drafts, True)])
    port.disconnect(leaver.origin)
    stayer.want(fragment, 100)
    await stayer.until(lambda: len(stayer.numbers()) == 5)
    assert stayer.numbers() == [1, 2, 3, 4, 5]
    assert {record.deliveries for effect in stayer.delivered() for record in effect.records} == {0}
    assert leaver.heard == []
    await stayer.send(fragment)
    await stayer.until(lambda: len(stayer.numbers()) == 6)


async def test_large_batches_cross_whole(port: FragmentApi) -> None:
    gateway = Gateway(port)
    fragment = await queue(port)
    content = bytes(range(256)) * 1000
    await gateway.send(fragment, 12, content)
    gateway.want(fragment, 12)
    await gateway.until(lambda: len(gateway.numbers()) == 12)
    assert all(record.content == content for effect in gateway.delivered() for record in effect.records)


async def test_when_the_fragments_die_every_request_is_refused_as_retryable() -> None:
    async with other_process() as (port, kill):
        gateway = Gateway(port)
        fragment = await queue(port)
        await gateway.send(fragment)
        kill()
        pending = [Inspect(fragment, gateway.origin, request) for request in range(100, 110)]
        port.submit(list(pending))
        await gateway.until(lambda: {effect.request for effect in gateway.heard} >= set(range(100, 110)))
        refused = await gateway.ask(Refused, lambda request: Inspect(fragment, gateway.origin, request))
        assert refused.condition == ServerBusy.condition
        with pytest.raises(ServerBusy):
            await port.runtime("orders")


async def test_a_topic_passes_messages_on_by_the_rules_of_the_moment(port: BrokerApi) -> None:
    gateway = Gateway(port)
    topic = await port.create("tales", TopicDescription())
    everyone = await port.create("tales/Subscriptions/all", SubscriptionDescription())
    red = RuleDescription(SqlFilter("colour = 'red'"))
    chosen = await port.create("tales/Subscriptions/red", SubscriptionDescription(), ("red", red))
    await gateway.send(topic.fragments[0], 1, coloured("red"))
    await gateway.send(topic.fragments[0], 1, coloured("blue"))
    assert (await gateway.counts(everyone.fragments[0]))[ACTIVE] == 2
    assert (await gateway.counts(chosen.fragments[0]))[ACTIVE] == 1
    await port.create("tales/Subscriptions/red/Rules/blue", RuleDescription(SqlFilter("colour = 'blue'")))
    await port.delete("tales/Subscriptions/all")
    await gateway.send(topic.fragments[0], 1, coloured("blue"))
    assert (await gateway.counts(chosen.fragments[0]))[ACTIVE] == 2


def coloured(colour: str) -> bytes:
    raw = compose(b"body", message_id="m", application_properties={"colour": colour})
    return parse_message(raw, 0, len(raw), "fresh", 128).content
