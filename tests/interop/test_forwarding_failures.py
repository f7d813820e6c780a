"""Messages that their target does not take: each cause with each kind of move, and where the message is then.

test_forwarding.py has the common causes of ForwardTo. All tests run with one process and with two brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from busbar.catalogue.placement import place
from busbar.cli.main import run
from busbar.client import MessagingFactory, OutgoingMessage, encode
from busbar.model.partitioning import FRAGMENTS, index_of_key
from harness.serving import Busbar
from tests.interop.administration import BareHttp
from tests.interop.forwarding import VERSION, Forwarding, bodies, body, description, reason

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    pytest.mark.server(
        {},
        {"transfer_patience": 1_500, "min_size_in_megabytes": 1, "size_increment": 1},
        arguments=("--stores", "4"),
        checked=True,
    ),
]

LARGE = "x" * 3_000
BIG = "x" * 200_000
MOVED_BY = ["ForwardTo", "ForwardDeadLetteredMessagesTo", "via"]


class Move:
    """A message that is to be moved from an entity to another, by each of the three ways."""

    def __init__(self, here: Forwarding, by: str, target: str, source: str = "") -> None:
        """Without a `source`, one is created."""
        self.here = here
        self.by = by
        self.target = target
        self.source = source or here.queue("source", **({} if by == "via" else {by: target}))

    async def start(self, *texts: str, **fields: object) -> None:
        """Move messages with these bodies."""
        here = self.here
        if self.by == "via":
            sender = await here.factory.sender(self.target, via=self.source)
            fields = {"message_id": "m", **fields}
            await sender.send([encode(OutgoingMessage(text.encode(), **fields)) for text in texts])  # type: ignore[arg-type]
            await sender.close()
            return
        await here.send(self.source, *texts, **{"message_id": "m", **fields})
        if self.by == "ForwardDeadLetteredMessagesTo":
            await self.dead_letter(len(texts))

    async def dead_letter(self, count: int, properties: dict[str, object] | None = None) -> None:
        receiver = await self.here.factory.receiver(self.source)
        left = count
        if properties:
            got = await receiver.receive(count, 10)
            await receiver.abandon(got, properties)
        while left:
            got = await receiver.receive(left, 10)
            assert got, f"{left} of {count} messages are missing"
            await receiver.dead_letter(got, "Bad", "It is bad.")
            left -= len(got)
        await receiver.close()

    async def failed(self, count: int = 1) -> str:
        """The reason of messages that are not moved, from where they have to be, after a look at their description."""
        own = self.by == "ForwardTo"
        take = self.here.dead_letters if own else self.here.failed_transfers
        letters = await take(self.source, count)
        assert all(self.target in description(letter) for letter in letters)
        await self.here.until(self.source, "All", 0)
        assert self.here.counts(self.source)["Transfer"] == 0
        (why,) = {reason(letter) for letter in letters}
        return why


@pytest_asyncio.fixture(loop_scope="session")
async def here(server: Busbar) -> AsyncIterator[Forwarding]:
    async with await MessagingFactory.connect(server.connection_string) as factory:
        yield Forwarding(server, factory)


# ---- sizes ----


@pytest.mark.parametrize("by", MOVED_BY[:2])
async def test_a_message_larger_than_its_target_allows(here: Forwarding, by: str) -> None:
    move = Move(here, by, here.queue("target", MaxMessageSizeInKilobytes=2))
    await move.start("small", LARGE, "small too")
    assert await move.failed() == "MessageSizeExceededException"
    assert bodies(await here.take(move.target, 2)) == ["small", "small too"], "it holds up no other"


async def test_a_message_sent_via_another_entity_larger_than_its_target_allows(here: Forwarding) -> None:
    """The limit is lowered between the send and the commit; before, the gateway refuses what is too large."""
    move = Move(here, "via", here.queue("target"))
    sender = await here.factory.sender(move.target)
    tx = here.factory.transaction(via=move.source)
    await tx.begin()
    await sender.send([encode(OutgoingMessage(LARGE.encode()))], transaction=tx)
    here.update(move.target, MaxMessageSizeInKilobytes=2)
    await tx.commit()
    assert await move.failed() == "MessageSizeExceededException"
    await here.until(move.target, "All", 0)


@pytest.mark.parametrize("by", MOVED_BY[:2])
async def test_a_subscription_s_message_larger_than_a_topic_allows(here: Forwarding, by: str) -> None:
    target, topic = here.topic(MaxMessageSizeInKilobytes=2), here.topic()
    end, source = here.subscription(target), here.subscription(topic, **{by: target})
    await here.send(topic, LARGE, message_id="m")
    if by == "ForwardDeadLetteredMessagesTo":
        receiver = await here.factory.receiver(source)
        await receiver.dead_letter(await receiver.receive(1, 10), "Bad", "")
        await receiver.close()
        (letter,) = await here.failed_transfers(source)
    else:
        (letter,) = await here.dead_letters(source)
    assert reason(letter) == "MessageSizeExceededException"
    await here.until(end, "All", 0)


async def test_the_largest_message_moves_however_often(here: Forwarding) -> None:
    """What the broker adds, numbers and reasons, does not make a message too large for an entity with the same limit."""
    last = here.queue("last", MaxMessageSizeInKilobytes=2)
    letters = here.queue("letters", MaxMessageSizeInKilobytes=2, ForwardTo=last)
    second = here.queue("second", MaxMessageSizeInKilobytes=2, ForwardDeadLetteredMessagesTo=letters)
    source = here.queue("first", MaxMessageSizeInKilobytes=2, ForwardTo=second)
    sender = await here.factory.sender(source)
    empty = encode(OutgoingMessage(b"x" * 500))
    made = encode(OutgoingMessage(b"x" * (500 + 2_048 - len(empty))))
    assert len(made) == 2_048
    await sender.send([made])
    await sender.close()
    receiver = await here.factory.receiver(second)
    await receiver.dead_letter(await receiver.receive(1, 10), "R" * 1_000, "D" * 1_000)
    await receiver.close()
    (message,) = await here.take(last, 1)
    assert reason(message) == "R" * 1_000 and message.annotations["x-opt-deadletter-source"] == second


async def test_a_header_that_receivers_have_made_too_large(here: Forwarding) -> None:
    move = Move(here, "ForwardDeadLetteredMessagesTo", here.queue("target"))
    half: dict[str, object] = {"half": "x" * 40_000}
    await here.send(move.source, "small", application_properties=half)
    await move.dead_letter(1, {"other half": "y" * 40_000})
    assert await move.failed() == "HeaderSizeExceeded"
    await here.send(move.source, "again", application_properties=half)
    await move.dead_letter(1, {"half": "y" * 40_000})
    assert bodies(await here.take(move.target, 1)) == ["again"]


# ---- targets that are gone, disabled or full ----


async def test_a_target_that_is_disabled_after_the_send_via_another_entity(here: Forwarding) -> None:
    move = Move(here, "via", here.queue("target"))
    sender = await here.factory.sender(move.target)
    tx = here.factory.transaction(via=move.source)
    await tx.begin()
    await sender.send([encode(OutgoingMessage(b"refused"))], transaction=tx)
    here.update(move.target, Status="SendDisabled")
    await tx.commit()
    assert await move.failed() == "MessagingEntityDisabledException"


async def test_dead_letters_stay_until_a_deleted_target_is_there_again(here: Forwarding) -> None:
    move = Move(here, "ForwardDeadLetteredMessagesTo", here.queue("target"))
    here.delete(move.target)
    await move.start("patient")
    await here.until(move.source, "DeadLetter", 1)
    await asyncio.sleep(0.5)
    assert here.counts(move.source)["DeadLetter"] == 1 and here.counts(move.source)["TransferDeadLetter"] == 0
    here.put(move.target, "Queue", {})
    (letter,) = await here.take(move.target, 1)
    assert body(letter) == "patient" and reason(letter) == "Bad", "the reason is that of its own queue"
    await here.until(move.source, "All", 0)


async def test_dead_letters_wait_for_a_full_target_beyond_the_patience(here: Forwarding) -> None:
    move = Move(here, "ForwardDeadLetteredMessagesTo", here.queue("target", MaxSizeInMegabytes=1))
    await here.send(move.target, *[BIG] * 5, message_id="filler")
    await move.start(BIG)
    await here.until(move.source, "Transfer", 1)
    await asyncio.sleep(3)  # twice the patience
    assert here.counts(move.source) | {"Transfer": 1, "DeadLetter": 0} == here.counts(move.source)
    await here.take_some(move.target, 5)
    assert bodies(await here.take(move.target, 1)) == [BIG]


async def test_what_is_sent_via_another_entity_waits_for_a_full_target_and_fails_then(
    here: Forwarding,
) -> None:
    move = Move(here, "via", here.queue("target", MaxSizeInMegabytes=1))
    await here.send(move.target, *[BIG] * 5, message_id="filler")
    await move.start(BIG)
    await here.until(move.source, "Transfer", 1)
    assert await move.failed() == "QuotaExceededException"
    await here.take_some(move.target, 5)
    await move.start("room")
    assert bodies(await here.take(move.target, 1)) == ["room"]


# ---- messages that the target refuses ----


async def test_a_dead_letter_without_the_session_that_its_target_requires(here: Forwarding) -> None:
    move = Move(here, "ForwardDeadLetteredMessagesTo", here.queue("target", RequiresSession=True))
    await move.start("none")
    assert await move.failed() == "Session ID is null"


async def test_a_dead_letter_whose_keys_contradict_each_other(here: Forwarding) -> None:
    move = Move(here, "ForwardDeadLetteredMessagesTo", here.queue("target", EnablePartitioning=True))
    await move.start("both", session_id="s", partition_key="p")
    assert await move.failed() == "InvalidOperationException"


@pytest.mark.parametrize("by", MOVED_BY)
async def test_a_message_that_no_subscription_of_the_target_selects(here: Forwarding, by: str) -> None:
    topic = here.topic(FilteringMessagesBeforePublishing=True)
    chosen = here.subscription(topic)
    move = Move(here, by, topic)
    await move.start("selected")
    assert bodies(await here.take(chosen, 1)) == ["selected"]
    status, _, text = BareHttp(here.server).request("DELETE", f"/{chosen}/rules/$Default?{VERSION}")
    assert status == 200, text
    await move.start("not selected")
    assert await move.failed() == "NoMatchingSubscriptionException"


# ---- stores that are out ----


def in_store(here: Forwarding, store: str, word: str, **properties: object) -> str:
    """A queue in that store."""
    stores = [f"store-{index}" for index in range(4)]
    while True:
        name = here.name(word)
        if place(name, 1, stores) == (store,):
            return here.put(name, "Queue", properties)


@pytest.fixture
def out(here: Forwarding) -> Iterator[Callable[[str], None]]:
    """Takes store-1 offline, or online; it is online at the end."""

    def change(to: str) -> None:
        assert run(["stores", to, "store-1", "--data", str(here.server.data)]) == 0

    yield change
    change("online")


@pytest.mark.parametrize("target_store", ["store-1", "store-3"])
@pytest.mark.parametrize("by", MOVED_BY)
async def test_messages_wait_for_a_store_that_is_out(
    here: Forwarding, out: Callable[[str], None], by: str, target_store: str
) -> None:
    """With two brokers, source and target are in one of them or in both. The store of the source or of the target is out."""
    source_store = "store-3" if target_store == "store-1" else "store-1"
    target = in_store(here, target_store, "target")
    properties = {} if by == "via" else {by: target}
    move = Move(here, by, target, in_store(here, source_store, "source", **properties))
    if target_store == "store-1":
        await asyncio.to_thread(out, "offline")
        await move.start("first", "second")
        await here.until(move.source, "Transfer", 2)
        await asyncio.sleep(2)  # more than the patience
        assert here.counts(move.source) | {"Transfer": 2, "All": 2} == here.counts(move.source)
    else:
        await move.start("first", "second")
        await asyncio.to_thread(out, "offline")
    await asyncio.to_thread(out, "online")
    assert bodies(await here.take(target, 2)) == ["first", "second"]
    await here.until(move.source, "All", 0)


@pytest.mark.req("P24")
async def test_messages_without_a_key_go_to_the_fragments_that_are_not_out(
    here: Forwarding, out: Callable[[str], None]
) -> None:
    target = here.queue("target", EnablePartitioning=True)
    move = Move(here, "ForwardTo", target, in_store(here, "store-2", "source", ForwardTo=target))
    stores = place(target, FRAGMENTS, [f"store-{index}" for index in range(4)])
    keys = (f"{number}" for number in range(999))
    key = next(key for key in keys if stores[index_of_key(key, FRAGMENTS)] == "store-1")
    await asyncio.to_thread(out, "offline")
    await move.start("keyed", partition_key=key)
    await here.until(move.source, "Transfer", 1)
    for number in range(40):
        await move.start(f"{number}")
    receiver = await here.factory.receiver(target)
    got: set[str] = set()
    while len(got) < 30:  # some may be on their way to the store since before it was known to be out
        more = await receiver.receive(40, 15)
        assert more, f"{len(got)} messages came"
        got |= {*bodies(more)}
        await receiver.complete(more)
    assert "keyed" not in got
    await asyncio.to_thread(out, "online")
    while len(got) < 41:
        more = await receiver.receive(41 - len(got), 15)
        assert more, f"{len(got)} messages came"
        got |= {*bodies(more)}
        await receiver.complete(more)
    assert got == {"keyed", *map(str, range(40))}
    await receiver.close()
    await here.until(move.source, "All", 0)
