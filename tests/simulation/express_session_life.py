"""The life of an express queue that requires sessions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE
from tests.simulation.express_book import ExpressBook
from tests.simulation.express_life import QUEUE, SESSION_CONSUMERS, ExpressLife
from tests.simulation.life import Kinds

SESSIONS = ("a", "b", "c")


@dataclass
class HeldSession:
    fragment: int
    session: str
    until: int


class ExpressSessionLife(ExpressLife):
    def __init__(self, seed: int) -> None:
        self.held: dict[int, HeldSession] = {}
        self.states: dict[tuple[int, str], set[bytes | None]] = {}
        """By fragment and session: what its state can be."""
        self.consumers = count(SESSION_CONSUMERS)
        self.accepted = 0
        super().__init__(seed)

    def make_books(self) -> list[ExpressBook]:
        return [ExpressBook(QUEUE, requires_session=True)]

    @property
    def with_sessions(self) -> list[ExpressBook]:
        return [book for book in self.books.values() if book.requires_session]

    def client_kinds(self) -> Kinds:
        return [
            *super().client_kinds(),
            (self.accept, 6),
            (self.demand_session, 8),
            (self.leave, 1),
            (self.renew_session, 1),
            (self.write_state, 1),
            (self.read_state, 1),
        ]

    # ---- holding a session ----

    def _on_effect(self, effect: e.Effect) -> None:
        if isinstance(effect, e.SessionLost):
            held = self.held.pop(int(effect.consumer), None)
            if held is not None:
                self.books[held.fragment].consumer_left(int(effect.consumer))
        else:
            super()._on_effect(effect)

    def accept(self) -> None:
        r = self.random
        self._accept(r.choice(self.with_sessions), r.choice([None, *SESSIONS]))

    def _accept(self, book: ExpressBook, named: str | None) -> None:
        consumer = next(self.consumers)

        def answered(effect: e.Effect | None) -> None:
            if isinstance(effect, e.SessionAccepted):
                self._accepted(book, consumer, effect)

        self.world.ask(lambda request: c.AcceptSession(book.fragment, 1, request, consumer, named), answered)

    def _accepted(self, book: ExpressBook, consumer: int, effect: e.SessionAccepted) -> None:
        self.accepted += 1
        for other, held in list(self.held.items()):
            if (held.fragment, held.session) == (book.fragment, effect.session):
                assert held.until <= self.world.now, f"the session {effect.session} is held by {other}"
                del self.held[other]
        book.session_accepted(effect.session)
        self.held[consumer] = HeldSession(book.fragment, effect.session, int(effect.until))

    def _holder(self) -> int:
        return self.random.choice(list(self.held)) if self.held else 0

    def _holder_of(self, book: ExpressBook, session: str | None) -> int:
        if session is None:
            return 0
        found = [
            at for at, held in self.held.items() if (held.fragment, held.session) == (book.fragment, session)
        ]
        return found[0] if found else 0

    def demand_session(self) -> None:
        consumer = self._holder()
        if consumer:
            delete = self.may_delete and self.random.random() < 0.2
            credit = self.random.choice([1, 2, 5])
            self.world.submit(
                c.Demand(self.held[consumer].fragment, 1, consumer, ACTIVE, credit, False, delete)
            )

    def leave(self) -> None:
        consumer = self._holder()
        if consumer:
            held = self.held.pop(consumer)
            self.world.submit(c.Leave(held.fragment, 1, consumer))
            self.books[held.fragment].consumer_left(consumer)

    def renew_session(self) -> None:
        consumer = self._holder()
        if consumer:

            def answered(effect: e.Effect | None) -> None:
                if isinstance(effect, e.Renewed) and consumer in self.held:
                    self.held[consumer].until = int(effect.until)

            fragment = self.held[consumer].fragment
            self.world.ask(lambda request: c.RenewSession(fragment, 1, request, consumer), answered)

    # ---- its state ----

    def write_state(self) -> None:
        consumer = self._holder()
        if consumer:
            held = self.held[consumer]
            state = self.random.choice([None, b"one", b"two", b"three"])
            known = self.states.setdefault((held.fragment, held.session), {None})

            def answered(effect: e.Effect | None) -> None:
                if isinstance(effect, e.Done):
                    known.clear()
                if not (isinstance(effect, e.Refused) and effect.certain):
                    known.add(state)

            self.world.ask(
                lambda request: c.SetSessionState(held.fragment, 1, request, consumer, state), answered
            )

    def read_state(self) -> None:
        consumer = self._holder()
        if consumer:
            held = self.held[consumer]
            known = self.states.setdefault((held.fragment, held.session), {None})

            def answered(effect: e.Effect | None) -> None:
                if isinstance(effect, e.SessionState):
                    assert effect.state in known, f"the state of {held.session} is {effect.state!r}"
                    known.clear()
                    known.add(effect.state)

            self.world.ask(lambda request: c.GetSessionState(held.fragment, 1, request, consumer), answered)

    # ---- when the process ends ----

    def crash(self) -> None:
        super().crash()
        self.held = {}

    def restart(self) -> None:
        restarts = self.world.restarts
        super().restart()
        if self.world.restarts > restarts:
            self.held = {}

    def demand_all(self, book: ExpressBook) -> None:
        if not book.requires_session:
            super().demand_all(book)
            return
        for session in SESSIONS:
            self._accept(book, session)
            self.world.rest()
            consumer = self._holder_of(book, session)
            assert consumer, f"the session {session} cannot be accepted"
            self.world.submit(c.Demand(book.fragment, 1, consumer, ACTIVE, 50, False, True))
            self.world.rest()
            self.held.pop(consumer)
            self.world.submit(c.Leave(book.fragment, 1, consumer))
