"""Accepts over real fragments that are slow, fail and race with each other: nobody ever holds two sessions, even in passing,
and nothing remains of who has gone."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Coroutine
from itertools import count
from typing import Any, cast

import pytest

from busbar.clock import wall_clock
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.session_accepting import accept_next
from busbar.gateway.wake_timer import WakeTimer
from busbar.model.commands import Command, Leave, Tick
from busbar.model.effects import Effect, Refused, SessionAccepted
from busbar.model.errors import BusbarError, ServerBusy
from busbar.partitions import session_accept
from busbar.partitions.origin import EffectHandler, Wakeable
from busbar.partitions.session_rotation import FragmentRotation
from tests.unit.fragment.session_queue import SessionQueue

FRAGMENTS = 4
CLIENTS = 6
ACCEPTS = 8
TICK = 0.05
"""Seconds after which an idle fragment looks at its clock: offers that nobody used go to others."""


class Place:
    """A fragment whose store takes its time: commands are applied in order, effects come out in order, both late."""

    failures = 0.1

    def __init__(self, chance: random.Random, port: Port) -> None:
        self.queue = SessionQueue()
        self._chance = chance
        self._port = port
        self._inbox: asyncio.Queue[Command] = asyncio.Queue()
        self._outbox: asyncio.Queue[Effect] = asyncio.Queue()
        self.holding: dict[int, str] = {}

    def submit(self, command: Command) -> None:
        if command.request and self._chance.random() < self.failures:
            self._outbox.put_nowait(
                Refused(command.origin, command.request, ServerBusy.condition, "unavailable")
            )
        else:
            self._inbox.put_nowait(command)

    async def apply(self) -> None:
        loop = asyncio.get_running_loop()
        began = self.queue.now - round(loop.time() * 1000)
        while True:
            try:
                command = await asyncio.wait_for(self._inbox.get(), TICK)
                await asyncio.sleep(self._delay())
            except TimeoutError:
                command = Tick(1)
            self.queue.now = began + round(loop.time() * 1000)
            if isinstance(command, Leave):
                self.holding.pop(command.consumer, None)
            for effect in self.queue.run(command):
                if isinstance(effect, SessionAccepted):
                    self.holding[effect.consumer] = effect.session
                    self._port.check(effect.consumer)
                self._outbox.put_nowait(effect)

    async def speak(self) -> None:
        while True:
            effect = await self._outbox.get()
            await asyncio.sleep(self._delay())
            self._port.answer(effect)

    def _delay(self) -> float:
        """Mostly none; sometimes so long that an accept has long begun to ask others."""
        return self._chance.choice((0, 0, 0, 0, 0.001, 0.03))


class Port:
    """The connection of all clients, over all fragments."""

    origin = 1

    def __init__(self, chance: random.Random) -> None:
        self.places = [Place(chance, self) for _ in range(FRAGMENTS)]
        self.faults: list[str] = []
        self._waiting: dict[int, EffectHandler] = {}
        self._requests = count(1)
        self._timer = WakeTimer(self.flush)

    def expect(self, who: EffectHandler) -> int:
        number = next(self._requests)
        self._waiting[number] = who
        return number

    def forget_request(self, number: int) -> None:
        self._waiting.pop(number, None)

    def command(self, command: Command) -> None:
        self.places[command.fragment].submit(command)

    def wake_at(self, who: Wakeable, at: int) -> None:
        self._timer.wake_at(who, at)

    def flush(self) -> None:
        pass

    def answer(self, effect: Effect) -> None:
        who = self._waiting.pop(effect.request, None) if effect.request else None
        if who is not None:
            who.answered(effect, wall_clock())

    def check(self, consumer: int) -> None:
        held = [place.holding[consumer] for place in self.places if consumer in place.holding]
        if len(held) > 1:
            self.faults.append(f"{consumer} holds {held}")


async def client(
    port: Port, chance: random.Random, turns: FragmentRotation, consumers: count[int], served: dict[str, int]
) -> None:
    for _ in range(ACCEPTS):
        consumer = next(consumers)
        accepting = asyncio.ensure_future(
            accept_next(
                cast(LinkConnection, port), range(FRAGMENTS), consumer, turns, chance.choice((0.02, 1, 5))
            )
        )
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice((0, 0.001, 0.03)))
            accepting.cancel()
        try:
            index, accepted = await accepting
        except (BusbarError, asyncio.CancelledError):
            continue
        served[accepted.session] += 1
        await asyncio.sleep(0)
        port.command(Leave(index, port.origin, consumer))


@pytest.mark.parametrize("seed", range(3))
async def test_no_accept_ever_holds_two_sessions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_accept, "RETRY_MS", 10)
    monkeypatch.setattr(session_accept, "LEAST_WAIT_MS", 20)
    chance = random.Random(seed)
    port = Port(chance)
    for index, place in enumerate(port.places):
        place.queue.send_to(*(f"{index}-{n}" for n in range(3)))
    served: dict[str, int] = defaultdict(int)
    turns, consumers = FragmentRotation(FRAGMENTS), count(1)
    work: list[Coroutine[Any, Any, None]] = []
    for place in port.places:
        work += [place.apply(), place.speak()]
    running = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*[client(port, chance, turns, consumers, served) for _ in range(CLIENTS)])
        await asyncio.sleep(0.3)  # what is on its way arrives
        assert not port.faults
        assert served
        assert [place.holding for place in port.places] == [{}] * FRAGMENTS, "no lock remains"
        monkeypatch.setattr(Place, "failures", 0.0)
        for consumer in range(1_000, 1_012):
            await accept_next(cast(LinkConnection, port), range(FRAGMENTS), consumer, turns, 5)
        assert not port.faults
        assert sum(len(place.holding) for place in port.places) == 12, "every session can be had"
    finally:
        for task in running:
            task.cancel()
