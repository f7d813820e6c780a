"""First in, first out for a client that lowers and raises its credit, while commands and effects are on their way.

A real host has the messages. The test holds up what passes between it and the receiver, and decides by a seed what goes on
next: so all that can cross does cross.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.model.api import EntityView
from busbar.model.commands import Command
from busbar.model.effects import Delivered, Drained, Effect
from busbar.model.entities import QueueDescription
from busbar.model.message import ACTIVE, Record
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import DeliveryHandler, EffectHandler, Wakeable
from busbar.partitions.receiver import receiver_of
from tests.unit.broker.hosting import Hosting, hosting, send

MESSAGES = 120
SEEDS = range(2_000 if os.environ.get("BUSBAR_DEEP") == "1" else 25)


class Client:
    """A receiver, and the connection it has."""

    def __init__(self, here: Hosting) -> None:
        self.here = here
        self.origin = 7
        self.granted = 0
        self.got: list[int] = []
        self.commands: deque[Command] = deque()
        self.effects: deque[Effect] = deque()
        self._seen = 0
        self._consumer: DeliveryHandler | None = None
        entity = EntityView("q", QueueDescription(), (1,), stores=("test",))
        self.receiver = receiver_of(self, self, entity, ACTIVE, False)

    # Receiver

    def credit(self) -> int:
        return self.granted

    def capacity(self) -> int:
        return self.granted

    def wanted(self, most: int) -> int:
        return min(self.granted, most)

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        self.got += [record.n for record in records]
        self.granted -= len(records)
        assert self.granted >= 0, "more than it asked for"

    def drained(self) -> None:
        self.granted = 0

    # Origin

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def expect(self, who: EffectHandler) -> int:
        raise AssertionError("nothing is asked for with an answer")

    def consumer(self, who: DeliveryHandler) -> int:
        self._consumer = who
        return 1

    def forget_consumer(self, number: int) -> None:
        self._consumer = None

    def wake_at(self, who: Wakeable, at: int) -> None:
        assert not at, "there is nothing to do later without a drain"

    def flush(self) -> None:
        pass

    # What goes on

    def grant(self, credit: int) -> None:
        self.granted = credit
        self.receiver.replenish(0)

    async def pass_commands(self, count: int) -> None:
        passed = [self.commands.popleft() for _ in range(min(count, len(self.commands)))]
        self.here.host.submit(passed)
        assert await self.here.host.drain(5)
        said = self.here.said[self._seen :]
        self._seen = len(self.here.said)
        self.effects += [effect for effect in said if effect.origin == self.origin]

    def pass_effects(self, count: int) -> None:
        for _ in range(min(count, len(self.effects))):
            effect = self.effects.popleft()
            assert self._consumer is not None
            if isinstance(effect, Delivered):
                self._consumer.delivered(effect, 0)
            elif isinstance(effect, Drained):
                self._consumer.drained(0)

    async def settle_down(self) -> None:
        while self.commands or self.effects:
            await self.pass_commands(100)
            self.pass_effects(100)


@asynccontextmanager
async def client(messages: int) -> AsyncIterator[Client]:
    async with hosting(fragments=(1,)) as here:
        here.host.submit([send(1, 1, messages)])
        await here.sent(1)
        yield Client(here)


async def test_what_goes_back_is_not_overtaken_by_what_was_on_its_way() -> None:
    async with client(12) as one:
        one.grant(4)
        await one.pass_commands(1)
        one.grant(8)
        await one.pass_commands(1)
        assert [len(effect.records) for effect in one.effects if isinstance(effect, Delivered)] == [4, 4]
        one.grant(0)
        one.pass_effects(1)  # too late: the first four go back
        one.grant(8)
        one.pass_effects(1)
        await one.settle_down()
        assert one.got == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("seed", SEEDS)
async def test_order_is_kept_however_credit_and_messages_cross(seed: int) -> None:
    chance = random.Random(seed)
    async with client(MESSAGES) as one:
        while len(one.got) < MESSAGES:
            step = chance.randrange(4)
            if step == 0:
                one.grant(chance.choice((0, 0, 1, 2, 5, 10, 30)))
            elif step == 1:
                await one.pass_commands(chance.randint(1, 3))
            elif step == 2:
                one.pass_effects(chance.randint(1, 2))
            elif not one.granted and not one.commands and not one.effects:
                one.grant(chance.randint(1, 20))
            assert one.got == [*range(1, len(one.got) + 1)], f"seed {seed}"
