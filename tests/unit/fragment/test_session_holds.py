"""Session locks that outlive the process that granted them: who gets a session after its fragment was loaded again."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import SessionHold
from busbar.fragment.machine import Fragment
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model import hold_commands as h
from busbar.model.errors import SessionCannotBeLocked
from busbar.model.message import ACTIVE
from tests.unit.fragment.queue import LOCK, NOW, held, refusal
from tests.unit.fragment.session_queue import SessionQueue, session_settings

GATEWAY = "broker-1.a"
HOLDER = f"{GATEWAY} 5 6"


class HeldQueue(SessionQueue):
    """A queue whose clients are at the gateway of another process."""

    def accept_as(self, holder: str, session: str | None, consumer: int = 6) -> e.Effect:
        return self.run(c.AcceptSession(1, 1, next(self._requests), consumer, session, holder))[0]

    def holds(self) -> dict[str, tuple[str, int]]:
        return self.stored.holds

    def load_again(self) -> None:
        """The owner has died, and another one has loaded the fragment."""
        self.store = self.store.crash()
        self.store.claim()
        self.machine = Fragment(
            1,
            session_settings(),
            self.store.heads()[0],
            self.store.next_due(1),
            [],
            self.bounds,
            holds=self.store.holds(1),
        )

    def resume(self, holder: str = HOLDER, locks: dict[int, int] | None = None) -> list[e.Effect]:
        """`locks` are nonces, by number."""
        mine = locks or {}
        return self.run(h.ResumeSession(1, 3, 9, "a", [*mine], [*mine.values()], holder))

    def want(self, origin: int, consumer: int, credit: int) -> list[e.Effect]:
        return self.run(c.Demand(1, origin, consumer, ACTIVE, credit, False, False))


def accepted() -> HeldQueue:
    """A queue with three messages of a session that is held elsewhere."""
    queue = HeldQueue()
    queue.send_to("a", "a", "a")
    assert isinstance(queue.accept_as(HOLDER, "a"), e.SessionAccepted)
    return queue


def test_only_locks_of_holders_at_another_gateway_are_written() -> None:
    queue = HeldQueue()
    queue.accept("mine")
    assert queue.holds() == {}
    queue.accept_as(HOLDER, "a")
    assert queue.holds() == {"a": (HOLDER, NOW + LOCK)}
    queue.pass_time(1_000)
    queue.run(c.RenewSession(1, 1, 5, 6))
    assert queue.holds() == {"a": (HOLDER, NOW + LOCK + 1_000)}, "a renewal is durable when it is answered"
    queue.run(c.Leave(1, 1, 6))
    assert queue.holds() == {}


def test_a_lock_that_ended_by_time_is_not_kept() -> None:
    queue = accepted()
    queue.pass_time(LOCK)
    assert queue.holds() == {}
    assert queue.accept("a").session == "a"


def test_after_a_load_nobody_else_gets_the_session_and_it_is_not_offered() -> None:
    queue = accepted()
    queue.load_again()
    assert queue.machine.has_absent_holders()
    _, answer = queue.ask("a")
    assert refusal(answer) == SessionCannotBeLocked.condition
    assert isinstance(queue.ask(None)[1], e.Refused), "it is the only one with messages"
    assert queue.run(c.AwaitSession(1, 1, 99)) == []
    queue.send_to("b")
    assert queue.accept(None).session == "b", "other sessions are served"


def test_the_holder_resumes_with_its_messages_locked_and_gets_the_next_ones() -> None:
    queue = accepted()
    effects = queue.want(1, 6, 2)
    first, second = held(effects)
    queue.load_again()
    assert queue.resume(locks={first.n: first.nonce}) == []
    assert not queue.machine.has_absent_holders()
    delivered = held(queue.want(3, 9, 5))
    assert [one.n for one in delivered] == [second.n, second.n + 1], "in order, without what it has"
    answer = queue.settle(c.COMPLETE, first)
    assert isinstance(answer, e.Settled) and not answer.lost
    assert queue.counts()[ACTIVE] == 2
    renewed = queue.run(c.RenewSession(1, 3, 7, 9))[0]
    assert isinstance(renewed, e.Renewed)


def test_over_another_channel_to_the_same_owner_what_the_holder_did_not_get_comes_again() -> None:
    queue = accepted()
    first, second = held(queue.want(1, 6, 2))
    assert queue.resume(locks={first.n: first.nonce}) == []
    assert queue.run(c.Leave(1, 1, 0)) == [], "the consumer before it is none any more"
    delivered = held(queue.want(3, 9, 5))
    assert [one.n for one in delivered] == [second.n, second.n + 1]
    lost = queue.settle(c.COMPLETE, second)
    assert isinstance(lost, e.Settled) and lost.lost, "the lock that never arrived has ended"


def test_deferred_messages_stay_locked() -> None:
    queue = accepted()
    (one,) = held(queue.want(1, 6, 1))
    queue.settle(c.DEFER, one)
    received = queue.run(c.ReceiveDeferred(1, 1, 5, ACTIVE, [one.n], False, 6))[0]
    assert isinstance(received, e.DeferredReceived)
    queue.load_again()
    queue.resume(locks={one.n: received.nonce})
    answer = queue.run(c.Settle(1, 3, 8, c.COMPLETE, [one.n], [received.nonce], None, False))[0]
    assert isinstance(answer, e.Settled) and not answer.lost


@pytest.mark.parametrize("holder", ["", "broker-1.a 5 7", "broker-1.b 5 6"])
def test_who_does_not_hold_it_is_told_that_it_is_lost(holder: str) -> None:
    queue = accepted()
    queue.load_again()
    (lost,) = queue.resume(holder)
    assert isinstance(lost, e.SessionLost) and (lost.origin, lost.consumer) == (3, 9)
    assert queue.want(3, 9, 5) == [], "it is told once"
    assert queue.machine.has_absent_holders(), "the holder may still come"


def test_a_holder_that_comes_after_the_end_of_its_lock_has_lost_it() -> None:
    queue = accepted()
    queue.load_again()
    assert queue.pass_time(LOCK) == [], "nobody is there who could be told"
    assert queue.holds() == {}
    (lost,) = queue.resume()
    assert isinstance(lost, e.SessionLost)
    assert queue.accept("a").session == "a"


def test_holders_that_have_left_release_their_sessions_uncounted() -> None:
    queue = accepted()
    queue.want(1, 6, 1)
    queue.accept_as("broker-2.c 1 1", "b", 7)
    queue.load_again()
    queue.run(c.AwaitSession(1, 4, 99))
    offered = queue.run(h.ReleaseHolds(1, GATEWAY))
    assert [type(effect) for effect in offered] == [e.SessionOffered]
    assert [*queue.holds()] == ["b"], "another gateway's stay"
    receiver = queue.accept("a")
    assert [one.record.deliveries for one in receiver.take(3)] == [0, 0, 0]


def test_a_release_concerns_only_what_was_not_resumed() -> None:
    queue = accepted()
    queue.load_again()
    queue.resume()
    queue.run(h.ReleaseHolds(1, GATEWAY))
    assert [*queue.holds()] == ["a"]
    assert len(held(queue.want(3, 9, 5))) == 3


def undo(queue: HeldQueue, effects: list[e.Effect]) -> None:
    changes = queue.machine.take_changes()
    queue.machine.undo(
        [changes] if changes is not None else [],
        effects,
        queue.stored.head,
        queue.store.next_due(1),
        holds=queue.store.holds(1),
    )
    queue.group = False


def test_undo_an_accept_of_which_the_store_knows_is_deleted_there() -> None:
    queue = HeldQueue()
    queue.group = True
    effects = [queue.accept_as(HOLDER, "a")]
    changes = queue.commit()  # it was made, and nobody knows it
    assert changes is not None and [*queue.holds()] == ["a"]
    undo(queue, effects)
    queue.tick()
    assert queue.holds() == {}


def test_undo_the_end_of_a_hold_and_a_renewal_are_written_again() -> None:
    queue = accepted()
    queue.accept_as("broker-2.c 1 1", "b", 7)
    queue.now += 1_000
    queue.group = True
    effects = queue.run(c.Leave(1, 1, 6))
    effects += queue.run(c.RenewSession(1, 1, 5, 7))
    undo(queue, effects)
    assert [*queue.holds()] == ["a", "b"]
    queue.tick()
    assert queue.holds() == {"b": ("broker-2.c 1 1", NOW + LOCK + 1_000)}


def test_undo_tells_again_that_a_session_could_not_be_resumed() -> None:
    queue = accepted()
    queue.load_again()
    queue.group = True
    effects = queue.run(c.Send(1, 1, 1, [], False)) + queue.resume("other 1 1")
    undo(queue, effects)
    (lost,) = queue.tick()
    assert isinstance(lost, e.SessionLost)
    queue.run(c.Leave(1, 3, 0))
    undo(queue, [lost])
    assert queue.tick() == [], "it has left"


def test_a_hold_names_its_gateway() -> None:
    assert SessionHold("a", HOLDER, 1).gateway() == GATEWAY
