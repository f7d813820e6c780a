"""A queue of one fragment, driven as its host does, with a clock and a store that a test holds in its hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import cast

from busbar.broker.topic_selection import select
from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes, Lock
from busbar.fragment.machine import Fragment
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, KEPT, Draft, Overlay, Record
from busbar.model.settings import FragmentSettings, TapSettings
from busbar.rules.selection import TopicSelector
from harness.checked_fragment import CheckedFragment
from harness.memory_store import Disk, MemoryStore

NOW = 1_000_000
LOCK = 60_000


def settings(
    lock_ms: int = LOCK,
    max_deliveries: int = 10,
    ttl_ms: int = 0,
    dead_letter_on_expiration: bool = False,
    quota_bytes: int = 0,
    can_send: bool = True,
    can_receive: bool = True,
    duplicate_window_ms: int = 0,
    taps: list[TapSettings] | None = None,
) -> FragmentSettings:
    return FragmentSettings(
        lock_ms,
        max_deliveries,
        ttl_ms,
        dead_letter_on_expiration,
        quota_bytes,
        can_send,
        can_receive,
        duplicate_window_ms,
        taps=taps,
    )


def draft(content: bytes = b"x", ttl: int = 0, scheduled: int = 0) -> Draft:
    return Draft(content, "", None, None, ttl, scheduled)


def draft_of(content: bytes) -> Draft:
    """The keys that a test writes into a content: session id, partition key and message id, each behind a bar."""
    session, key, message_id = (*content.decode("latin-1").split("|")[1:], "", "", "")[:3]
    return Draft(content, message_id, session or None, key or None, 0, 0)


def sizes_of(content: bytes) -> tuple[int, int]:
    """The size of a content up to a bracket, behind which the broker has written, and that of all before the first bar."""
    sent = content.partition(b"[")[0]
    return len(sent), len(sent.partition(b"|")[0])


def checked_store() -> MemoryStore:
    """A store with an owner that checks each commit."""
    store = MemoryStore(Disk(fragment_class=CheckedFragment))
    store.claim()
    return store


@dataclass(frozen=True)
class Held:
    """A message as a receiver has it."""

    record: Record
    nonce: int
    until: int

    @property
    def n(self) -> int:
        return self.record.n


class Queue:
    """Commits after each command, unless `group` is set: then the test says when."""

    def __init__(
        self,
        given: FragmentSettings | None = None,
        store: MemoryStore | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.now = NOW
        self.bounds = bounds
        self.store = store or checked_store()
        self.group = False
        self.selector: TopicSelector | None = None  # of a topic
        self.machine = self._start(given or settings(), [])
        self.effects: list[e.Effect] = []
        self.reads = 0
        self.read_ms = 0  # how long the next read takes
        self._nonces = count(7)
        self._requests = count(1)

    @property
    def stored(self) -> CheckedFragment:
        """What is durable."""
        return cast(CheckedFragment, self.store.disk.fragment(1))

    def lane(self, lane: int) -> dict[int, Record]:
        """What is durable of one lane, by number."""
        return self.stored.lanes[lane].records

    # ---- as a host ----

    def run(self, command: c.Command) -> list[e.Effect]:
        """Apply a command and all the ticks that it leads to; the effects, in order."""
        effects = self.step(command)
        while self.machine.has_work(self.now):
            effects += self.step(c.Tick(1))
        return effects

    def step(self, command: c.Command) -> list[e.Effect]:
        reads = self.machine.needs(command, self.now)
        if reads:
            self.commit()
            self.store.read(1, reads)
            self.now, self.read_ms = self.now + self.read_ms, 0
            self.machine.supply(reads)
            self.reads += 1
        if self.selector is not None:
            select(self.machine, self.selector, command, self.now)
        self.machine.apply(command, self.now, next(self._nonces))
        if not self.group:
            self.commit()
        return self.machine.take_effects()

    def commit(self) -> Changes | None:
        changes = self.machine.take_changes()
        if changes is not None:
            assert changes.weight > 0
            self.store.commit([changes])
        return changes

    def tick(self) -> list[e.Effect]:
        return self.run(c.Tick(1))

    def pass_time(self, ms: int) -> list[e.Effect]:
        self.now += ms
        return self.tick()

    def restart(self, clean: bool) -> None:
        if clean:
            self.store.save_locks(1, self.machine.locks())
        self.machine = self._start(self.machine.settings, self.store.take_locks(1))

    def _start(self, given: FragmentSettings, kept: list[Lock]) -> Fragment:
        store = self.store
        return Fragment(
            1,
            given,
            self.stored.head,
            store.next_due(1),
            kept,
            self.bounds,
            store.id_segments(1),
            store.taps(1),
            store.writers(1),
            store.outbox(1),
            draft_of,
            sizes_of,
        )

    # ---- as a client ----

    def send(self, *drafts: Draft, atomic: bool = False) -> list[int]:
        answer = self.run(c.Send(1, 1, next(self._requests), list(drafts), atomic))[0]
        assert isinstance(answer, e.Sent), vars_of(answer)
        return answer.numbers

    def send_many(self, number: int, content: bytes = b"x") -> list[int]:
        return self.send(*(draft(content) for _ in range(number)))

    def receive(self, credit: int = 1, sub: int = ACTIVE, delete: bool = False) -> list[Held]:
        """Ask with drain, so that no credit is left behind."""
        effects = self.run(c.Demand(1, 1, 900, sub, credit, True, delete))
        assert isinstance(effects[-1], e.Drained)
        return held(effects)

    def demand(self, consumer: int, credit: int, sub: int = ACTIVE, delete: bool = False) -> list[e.Effect]:
        return self.run(c.Demand(1, 1, consumer, sub, credit, False, delete))

    def settle(
        self, outcome: int, *messages: Held, overlay: Overlay | None = None, atomic: bool = False
    ) -> e.Effect:
        numbers = [message.n for message in messages]
        nonces = [message.nonce for message in messages]
        return self.run(c.Settle(1, 1, next(self._requests), outcome, numbers, nonces, overlay, atomic))[0]

    def renew(self, *messages: Held) -> e.Effect:
        numbers = [message.n for message in messages]
        return self.run(c.Renew(1, 1, 5, numbers, [message.nonce for message in messages]))[0]

    def receive_deferred(self, *numbers: int, sub: int = ACTIVE, delete: bool = False) -> list[Held]:
        answer = self.ask_deferred(*numbers, sub=sub, delete=delete)
        assert isinstance(answer, e.DeferredReceived), vars_of(answer)
        return [Held(record, answer.nonce, answer.until) for record in answer.records]

    def ask_deferred(self, *numbers: int, sub: int = ACTIVE, delete: bool = False) -> e.Effect:
        return self.run(c.ReceiveDeferred(1, 1, 5, sub, list(numbers), delete))[0]

    def peek(
        self, start: int = 0, number: int = 250, sub: int = ACTIVE, max_bytes: int = 256 * 1024
    ) -> e.Peeked:
        answer = self.run(c.Peek(1, 1, 5, sub, start, number, max_bytes))[0]
        assert isinstance(answer, e.Peeked)
        return answer

    def peeked(self, sub: int = ACTIVE) -> list[int]:
        return [record.n for record in self.peek(sub=sub).records]

    def purge(self, number: int = 1000, sub: int = ACTIVE, before: int = 1 << 60) -> int:
        answer = self.run(c.Purge(1, 1, 5, sub, before, number))[0]
        assert isinstance(answer, e.Purged)
        return answer.count

    def counts(self) -> list[int]:
        """Of the lanes that receivers know."""
        answer = self.run(c.Inspect(1, 1, 5))[0]
        assert isinstance(answer, e.Inspected)
        return answer.counts[:KEPT]

    def dead_letters(self) -> list[Record]:
        return self.peek(sub=DEAD).records


def held(effects: list[e.Effect]) -> list[Held]:
    return [
        Held(record, effect.nonce, effect.until)
        for effect in effects
        if isinstance(effect, e.Delivered)
        for record in effect.records
    ]


def refusal(effect: e.Effect) -> str:
    assert isinstance(effect, e.Refused), vars_of(effect)
    return effect.condition


def lost(effect: e.Effect) -> list[int]:
    assert isinstance(effect, e.Settled), vars_of(effect)
    return effect.lost


def numbers(messages: list[Held]) -> list[int]:
    return [message.n for message in messages]


def vars_of(effect: e.Effect) -> str:
    return f"{type(effect).__name__}: {getattr(effect, 'text', '')}"
