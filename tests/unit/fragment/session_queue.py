"""A queue that requires sessions, driven as its host does, with receivers that accept sessions."""

from __future__ import annotations

from itertools import count

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, Draft
from busbar.model.settings import FragmentSettings
from harness.memory_store import MemoryStore
from tests.unit.fragment.queue import LOCK, Held, Queue, held, vars_of


def session_settings(
    max_deliveries: int = 10,
    dead_letter_on_expiration: bool = False,
    quota_bytes: int = 0,
    can_receive: bool = True,
) -> FragmentSettings:
    return FragmentSettings(
        LOCK, max_deliveries, 0, dead_letter_on_expiration, quota_bytes, True, can_receive, 0, True
    )


def of(session: str | None, content: bytes = b"x", ttl: int = 0, scheduled: int = 0) -> Draft:
    return Draft(content, "", session, None, ttl, scheduled)


class SessionQueue(Queue):
    def __init__(
        self,
        given: FragmentSettings | None = None,
        store: MemoryStore | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        super().__init__(given or session_settings(), store, bounds)
        self._consumers = count(1)

    def send_to(self, *sessions: str) -> list[int]:
        return self.send(*(of(session) for session in sessions))

    def ask(self, session: str | None = None) -> tuple[int, e.Effect]:
        consumer = next(self._consumers)
        return consumer, self.run(c.AcceptSession(1, 1, next(self._requests), consumer, session))[0]

    def accept(self, session: str | None = None) -> Receiver:
        consumer, answer = self.ask(session)
        assert isinstance(answer, e.SessionAccepted), vars_of(answer)
        assert answer.consumer == consumer
        return Receiver(self, consumer, answer.session, answer.until)

    def list(self, updated_after: int = 0, after: str | None = None, top: int = 100) -> list[str]:
        answer = self.run(c.ListSessions(1, 1, 5, updated_after, after, top))[0]
        assert isinstance(answer, e.SessionList)
        return answer.ids


class Receiver:
    """Holds a session."""

    def __init__(self, queue: SessionQueue, consumer: int, session: str, until: int) -> None:
        self.queue = queue
        self.consumer = consumer
        self.session = session
        self.until = until

    def take(self, credit: int = 1, delete: bool = False) -> list[Held]:
        """Ask with drain, so that no credit is left behind."""
        effects = self.queue.run(c.Demand(1, 1, self.consumer, ACTIVE, credit, True, delete))
        assert isinstance(effects[-1], e.Drained), effects
        return held(effects)

    def demand(self, credit: int) -> list[e.Effect]:
        return self.queue.run(c.Demand(1, 1, self.consumer, ACTIVE, credit, False, False))

    def close(self) -> list[e.Effect]:
        return self.queue.run(c.Leave(1, 1, self.consumer))

    def renew(self) -> e.Effect:
        return self.queue.run(c.RenewSession(1, 1, 5, self.consumer))[0]

    def write(self, state: bytes | None) -> e.Effect:
        return self.queue.run(c.SetSessionState(1, 1, 5, self.consumer, state))[0]

    def state(self) -> bytes | None:
        answer = self.queue.run(c.GetSessionState(1, 1, 5, self.consumer))[0]
        assert isinstance(answer, e.SessionState), vars_of(answer)
        return answer.state

    def deferred(self, *numbers: int) -> e.Effect:
        return self.queue.run(c.ReceiveDeferred(1, 1, 5, ACTIVE, list(numbers), False, self.consumer))[0]
