"""Lives of express entities from a seed: a queue, one that requires sessions, a topic; what clients do, and what fails.

A durable queue is beside each, so that commits are shared. Clients go by what they were told (express_book.py). At the end
all faults are over, and the process stops cleanly: the store then has every message exactly where clients were told.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, Draft
from busbar.model.settings import FragmentSettings
from tests.simulation.express_book import ExpressBook, HeldLock, Place, Told
from tests.simulation.express_world import ExpressWorld
from tests.simulation.life import Kinds, Life

DELAY = 500
LOCK = 2_000
BESIDE, QUEUE = 9, 1
LOCKING, DELETING, OF_DEAD = 1, 2, 3
"""The last digit of a consumer: how it receives, and from where."""
SESSION_CONSUMERS = 1_000
OUTCOMES = {
    Place.ACTIVE: [c.COMPLETE, c.COMPLETE, c.COMPLETE, c.ABANDON, c.RELEASE, c.DEFER, c.DEAD_LETTER],
    Place.DEFERRED: [c.COMPLETE, c.ABANDON, c.DEAD_LETTER],
    Place.DEAD: [c.COMPLETE, c.ABANDON],
}
Locked = list[tuple[Told, HeldLock]]


class ExpressLife(Life[ExpressWorld]):
    """An express queue."""

    topic = 0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        r = self.random
        self.is_express = True
        self.changes = 0
        self.tags = count(1)
        self.books = {book.fragment: book for book in (ExpressBook(BESIDE), *self.make_books())}
        self.may_delete = r.random() < 0.25
        for book in self.books.values():
            book.may_vanish = self.may_delete
        self.world = ExpressWorld(seed, self._settings(), self.books, self.topic, self._on_effect)
        faults = self.fault_kinds(r.choice([0, 0.3, 1, 1, 3]))
        self.add_kinds([*self.client_kinds(), *self.store_kinds(), *faults], r)

    def make_books(self) -> list[ExpressBook]:
        return [ExpressBook(QUEUE)]

    def _settings(self) -> dict[int, FragmentSettings]:
        found = {fragment: self._of(book.requires_session) for fragment, book in self.books.items()}
        found[BESIDE].express_ms = 0
        return found

    def _of(self, requires_session: bool) -> FragmentSettings:
        express = DELAY if self.is_express else 0
        return FragmentSettings(
            LOCK, 1_000, 0, False, 0, True, True, requires_session=requires_session, express_ms=express
        )

    def client_kinds(self) -> Kinds:
        return [
            (self.send, 10),
            (self.send_beside, 2),
            (self.demand, 8),
            (self.settle, 12),
            (self.receive_deferred, 2),
            (self.peek, 0.5),
            (self.transact, 1),
            (self.change, 0.3),
        ]

    def store_kinds(self) -> Kinds:
        return [(self.time_passes, 5), (self.turn, 6), (self.work, 8), (self.crash, 0.3), (self.restart, 0.3)]

    def fault_kinds(self, often: float) -> Kinds:
        return [(self.fail, 1 * often), (self.hang, 0.2 * often), (self.take_offline, 0.2 * often)]

    # ---- living ----

    def recover(self) -> None:
        if self.random.random() >= 0.2:
            self.go_on()
        elif self.world.host.lifecycle.is_offline:
            self.world.bring_online()

    def end(self) -> None:
        world = self.world
        world.rest()
        world.pass_time(DELAY + 1)
        world.rest()
        before = world.restarts
        world.restart()
        assert world.restarts == before + 1
        self.empty()
        for book in self.books.values():
            left = [told.tag for told in book.told.values() if told.place is Place.ACTIVE]
            assert not left, f"of fragment {book.fragment}, {left[:5]} never came"

    def empty(self) -> None:
        """Receive all that is active."""
        self.world.pass_time(LOCK + 1)
        for book in self.books.values():
            seen = -1
            while seen != book.deliveries:
                seen = book.deliveries
                self.demand_all(book)
                self.world.rest()

    def demand_all(self, book: ExpressBook) -> None:
        self.world.submit(c.Demand(book.fragment, 1, self._consumer(book, DELETING), ACTIVE, 50, False, True))

    # ---- senders ----

    def send(self) -> None:
        self._send(self.books[QUEUE])

    def send_beside(self) -> None:
        self._send(self.books[BESIDE])

    def _send(self, book: ExpressBook) -> None:
        forced = self.random.random() < 0.1
        drafts = self._drafts(forced)
        tags = self._expect(book, drafts, forced)
        changes, express = self.changes, self._is_express(book)

        def answered(effect: e.Effect | None) -> None:
            self._send_answered(book, tags, effect)
            if isinstance(effect, e.Sent):
                for tag, draft, number in zip(tags, drafts, effect.numbers, strict=True):
                    if not draft.scheduled:
                        book.give_number(tag, int(number))
                if changes == self.changes and not express:
                    for tag in tags:
                        book.told[tag].is_durable = True

        atomic = self.random.random() < 0.5
        self.world.ask(lambda request: c.Send(book.fragment, 1, request, drafts, atomic), answered)

    def _is_express(self, book: ExpressBook) -> bool:
        return self.is_express and book.fragment != BESIDE

    def _drafts(self, forced: bool) -> list[Draft]:
        r = self.random
        return [self._draft(r, forced) for _ in range(r.choice([1, 1, 2, 5]))]

    def _draft(self, r: Random, forced: bool) -> Draft:
        content = b"tag-%06d" % next(self.tags) + b"x" * r.choice([1, 40])
        due = self.world.now + r.randint(1, 300) if r.random() < 0.04 else 0
        return Draft(content, "id", r.choice("abc"), None, 0, due, forced=forced)

    def _expect(self, book: ExpressBook, drafts: list[Draft], is_durable: bool) -> list[int]:
        tags = [int(draft.content[4:10]) for draft in drafts]
        for tag, draft in zip(tags, drafts, strict=True):
            due = int(draft.scheduled)
            book.expect(tag, is_durable=is_durable, session=draft.session_id, scheduled=due)
        return tags

    def _send_answered(self, book: ExpressBook, tags: list[int], effect: e.Effect | None) -> None:
        for tag in tags:
            if isinstance(effect, e.Sent | e.Done):
                book.acknowledged(tag, self.world.now)
            elif isinstance(effect, e.Refused) and effect.certain:
                book.refused(tag)

    # ---- receivers ----

    def _consumer(self, book: ExpressBook, kind: int) -> int:
        return book.fragment * 10 + kind

    def _on_effect(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Delivered):
            place = Place.DEAD if effect.consumer % 10 == OF_DEAD else Place.ACTIVE
            if effect.consumer >= SESSION_CONSUMERS:
                place = Place.ACTIVE
            self.books[int(effect.fragment)].delivered(effect, int(effect.consumer), place, self.world.now)

    def demand(self) -> None:
        r = self.random
        book = r.choice(list(self.books.values()))
        kind = OF_DEAD if book.requires_session else r.choice([LOCKING, LOCKING, LOCKING, OF_DEAD])
        if kind == LOCKING and self.may_delete and r.random() < 0.2:
            kind = DELETING
        sub = DEAD if kind == OF_DEAD else ACTIVE
        consumer = self._consumer(book, kind)
        credit = r.choice([1, 3, 10])
        self.world.submit(c.Demand(book.fragment, 1, consumer, sub, credit, False, kind == DELETING))

    def _held(self, book: ExpressBook) -> Locked:
        now = self.world.now
        return [
            (told, told.lock)
            for told in book.told.values()
            if told.lock is not None and told.lock.until > now and told.settling is None
        ]

    def settle(self) -> None:
        r = self.random
        books = [book for book in self.books.values() if self._held(book)]
        if not books:
            return
        book = r.choice(books)
        held = self._held(book)
        place = r.choice(held)[1].place
        pool = [one for one in held if one[1].place is place]
        some = r.sample(pool, min(len(pool), r.choice([1, 1, 2, 4])))
        outcome = r.choice(OUTCOMES[place])
        self.world.ask(*self._settlement(book, some, outcome))

    def _settlement(
        self, book: ExpressBook, some: Locked, outcome: int
    ) -> tuple[Callable[[int], c.Settle], Callable[[e.Effect | None], None]]:
        """The command, and what follows from its answer."""
        for told, _ in some:
            book.settling(told, outcome)

        def answered(effect: e.Effect | None) -> None:
            for index, (told, lock) in enumerate(some):
                if isinstance(effect, e.Settled | e.Done):
                    is_lost = isinstance(effect, e.Settled) and index in effect.lost
                    book.settled(told, lock, outcome, is_lost, self.world.now)
                elif isinstance(effect, e.Refused):
                    book.settlement_refused(told, lock, outcome, effect.certain)

        numbers, nonces = [lock.number for _, lock in some], [lock.nonce for _, lock in some]
        return lambda request: c.Settle(
            book.fragment, 1, request, outcome, numbers, nonces, None, False
        ), answered

    def receive_deferred(self) -> None:
        r = self.random
        book = r.choice(list(self.books.values()))
        pool = [told for told in book.told.values() if told.place is Place.DEFERRED and told.lock is None]
        if pool:
            told = r.choice(pool)
            consumer = self._holder_of(book, told.session)

            def answered(effect: e.Effect | None) -> None:
                if isinstance(effect, e.DeferredReceived):
                    book.delivered(effect, consumer, Place.DEFERRED, self.world.now)

            self.world.ask(
                lambda request: c.ReceiveDeferred(
                    book.fragment, 1, request, ACTIVE, [told.number], False, consumer
                ),
                answered,
            )

    def _holder_of(self, book: ExpressBook, session: str | None) -> int:
        return 0

    def peek(self) -> None:
        book = self.random.choice(list(self.books.values()))
        self.world.ask(
            lambda request: c.Peek(book.fragment, 1, request, 0, 1, 10, 10_000), lambda effect: None
        )

    def transact(self) -> None:
        """Send, and complete what was received, in one transaction: both or none."""
        self._transact(self.books[QUEUE], self.books[QUEUE])

    def _transact(self, to: ExpressBook, of: ExpressBook) -> None:
        drafts = self._drafts(False)
        tags = self._expect(to, drafts, True)
        some = self._held(of)[:1]
        settle, settled = self._settlement(of, some, c.COMPLETE)

        def answered(effect: e.Effect | None) -> None:
            self._send_answered(to, tags, effect)
            settled(effect)

        self._ask_transaction(to.fragment, drafts, [settle(0)] if some else [], answered)

    def _ask_transaction(
        self,
        fragment: int,
        drafts: list[Draft],
        settlements: list[c.Settle],
        answered: Callable[[e.Effect | None], None],
    ) -> None:
        send = c.Send(fragment, 1, 0, drafts, True)
        self.world.ask(lambda request: c.Transact(fragment, 1, request, [send, *settlements]), answered)

    # ---- what happens beside them ----

    def change(self) -> None:
        """EnableExpress is switched off, or on."""
        self.is_express = not self.is_express
        self.changes += 1
        self.world.change(self._settings())

    def time_passes(self) -> None:
        self.world.pass_time(self.random.choice([1, 20, 100, 700]))

    def work(self) -> None:
        self.world.turn()
        self.world.work()
