"""A host on a store in memory whose commits can be held up, and short words for its commands."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

from busbar.broker.host_api import StoreState
from busbar.broker.store_host import LocalStoreHost
from busbar.broker.store_thread import PATIENCE
from busbar.fragment.changes import Changes
from busbar.fragment.reads import Read
from busbar.model.commands import COMPLETE, Demand, Send, Settle
from busbar.model.effects import Delivered, Effect, Refused, Sent
from busbar.model.entities import QueueDescription, RuleDescription, TopicDescription
from busbar.model.message import Draft, SubscriptionCopy
from busbar.model.settings import FragmentSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings
from busbar.rules.selection import RuleCompiler, TopicSelector
from harness.memory_store import Disk, MemoryStore
from harness.waiting import until

E = TypeVar("E", bound=Effect)

PLAIN = QueueDescription().fragment_settings()


def clock() -> int:
    return time.time_ns() // 1_000_000


def settings(lock_ms: int = 60_000) -> FragmentSettings:
    return FragmentSettings(lock_ms, 10, 0, False, 1 << 30, True, True)


class ToAll(TopicSelector):
    """All subscriptions take everything, as it is."""

    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        return [SubscriptionCopy(fragment, content) for fragment in self.fragments]


class ToAllCompiler(RuleCompiler):
    """Contents of these tests are no AMQP: nothing is to be read of them or written into them."""

    kind = ToAll

    def selector(self, topic: TopicSettings, before: TopicSelector | None = None) -> TopicSelector:
        made = super().selector(topic, before)
        return self.kind(made.index, made.subscribers)


def topic(subscriptions: list[int], duplicates: bool = False) -> FragmentSettings:
    """A topic's settings; all of its subscriptions take everything."""
    described = TopicDescription(requires_duplicate_detection=duplicates).fragment_settings()
    rules = TopicRules(tuple([RuleSet((("$Default", RuleDescription()),), False) for _ in subscriptions]))
    described.topic = TopicSettings(0, tuple(subscriptions), rules)
    return described


class GatedStore(MemoryStore):
    """Commits wait while the gate is shut; what was committed together and what was read is written down."""

    def __init__(self, disk: Disk, gate: threading.Event) -> None:
        super().__init__(disk)
        self._gate = gate
        self.groups: list[list[Changes]] = []
        self.log: list[str] = []

    def commit(self, batches: Sequence[Changes]) -> None:
        assert self._gate.wait(10)
        super().commit(batches)
        self.groups.append(list(batches))
        self.log.append("commit " + ",".join(str(changes.fragment) for changes in batches))

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        super().read(fragment, reads)
        self.log.append(f"read {fragment}")


class Hosting:
    """A host, its stores (one for each time it opened one), and what it said."""

    def __init__(
        self, disk: Disk | None = None, patience: float = PATIENCE, inline_messages: int = 0
    ) -> None:
        self.disk = disk or Disk()
        self.gate = threading.Event()
        self.gate.set()
        self.stores: list[GatedStore] = []
        self.said: list[Effect] = []
        self.batches: list[list[Effect]] = []
        self.refuse_to_open: Exception | None = None
        self.fenced = 0
        self.rules = ToAllCompiler(uuid4)
        self._nonce = 0
        self.host = LocalStoreHost(
            "test",
            self._open,
            asyncio.get_running_loop(),
            clock,
            self._next_nonce,
            self._hear,
            self._on_fenced,
            patience=patience,
            rules=self.rules,
            inline_messages=inline_messages,
        )

    def _open(self) -> GatedStore:
        if self.refuse_to_open is not None:
            raise self.refuse_to_open
        self.stores.append(GatedStore(self.disk, self.gate))
        return self.stores[-1]

    def _next_nonce(self) -> int:
        self._nonce += 1
        return self._nonce

    def _hear(self, effects: list[Effect]) -> None:
        self.said += effects
        self.batches.append(effects)

    def _on_fenced(self) -> None:
        self.fenced += 1

    @property
    def store(self) -> GatedStore:
        return self.stores[-1]

    async def until(self, true: Callable[[], bool], seconds: float = 5.0) -> None:
        await until(true, lambda: [type(effect).__name__ for effect in self.said], seconds=seconds)

    async def answer(self, request: int) -> Effect:
        await self.until(lambda: any(effect.request == request for effect in self.said))
        answers = [effect for effect in self.said if effect.request == request]
        assert len(answers) == 1, f"request {request} was answered {len(answers)} times"
        return answers[0]

    async def serving(self) -> None:
        """The store is open, and takes messages: it was not full a moment ago."""
        loop = self.host.commit_loop
        await self.until(lambda: self.host.state is StoreState.OPEN and loop._sends_refused is None)

    def all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.said if isinstance(effect, kind)]

    def delivered(self) -> list[int]:
        return [record.n for effect in self.all(Delivered) for record in effect.records]

    async def sent(self, request: int) -> Sent:
        answer = await self.answer(request)
        assert isinstance(answer, Sent), answer
        return answer

    async def refused(self, request: int) -> Refused:
        answer = await self.answer(request)
        assert isinstance(answer, Refused), answer
        return answer


@asynccontextmanager
async def hosting(
    disk: Disk | None = None, fragments: tuple[int, ...] = (1, 2), of: FragmentSettings = PLAIN
) -> AsyncIterator[Hosting]:
    here = Hosting(disk)
    await here.host.open()
    await here.host.add_fragments(dict.fromkeys(fragments, of))
    here.disk.commits = 0  # from here on
    here.store.groups, here.store.log = [], []
    try:
        yield here
    finally:
        here.gate.set()
        await here.host.drain(5)
        await here.host.close()


def draft(content: bytes = b"x", scheduled: int = 0) -> Draft:
    return Draft(content, "id", None, None, 0, scheduled)


def send(fragment: int, request: int, count: int = 1, size: int = 1, scheduled: int = 0) -> Send:
    return Send(fragment, 1, request, [draft(b"x" * size, scheduled)] * count, True)


def demand(fragment: int, credit: int, consumer: int = 1, drain: bool = False) -> Demand:
    return Demand(fragment, 1, consumer, 0, credit, drain, False)


def complete(delivered: Delivered, request: int) -> Settle:
    numbers = [record.n for record in delivered.records]
    nonces = [int(delivered.nonce)] * len(numbers)
    return Settle(delivered.fragment, 1, request, COMPLETE, numbers, nonces, None, False)
