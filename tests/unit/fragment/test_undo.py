"""Commits that failed: what was applied after the last durable state is taken back, without losing locks."""

from __future__ import annotations

from busbar.fragment.changes import Changes
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from busbar.model.message import ACTIVE
from tests.unit.fragment.queue import LOCK, NOW, Held, Queue, draft, held, lost, numbers


class Failing(Queue):
    """Gathers; `take` closes a group, and `fail` undoes all that was taken since the last commit."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Changes] = []
        self.unheard: list[e.Effect] = []

    def start(self) -> None:
        self.group = True

    def step(self, command: c.Command) -> list[e.Effect]:
        effects = super().step(command)
        if self.group:
            self.unheard += effects
        return effects

    def take(self) -> None:
        changes = self.machine.take_changes()
        assert changes is not None
        self.groups.append(changes)

    def fail(self) -> list[e.Effect]:
        if self.machine.change_count():
            self.take()
        self.machine.undo(self.groups[::-1], self.unheard, self.stored.head, self.store.next_due(1))
        self.groups, self.unheard = [], []
        self.group = False
        return self.tick() if self.machine.has_work(self.now) else []


def with_locks(number: int) -> tuple[Failing, list[Held]]:
    queue = Failing()
    queue.send_many(number)
    messages = queue.receive(number)
    queue.start()
    return queue, messages


def test_a_send_never_was() -> None:
    queue = Failing()
    queue.start()
    queue.send(draft(), draft(scheduled=NOW + 10))
    queue.fail()
    assert queue.counts() == [0, 0, 0, 0, 0]
    assert queue.machine.wake_at() == 0
    assert queue.receive() == []
    assert queue.send_many(1) == [1]


def test_locks_of_all_outcomes_are_held_again() -> None:
    for outcome in (COMPLETE, ABANDON, DEFER, DEAD_LETTER):
        queue, messages = with_locks(3)
        queue.settle(outcome, *messages)
        queue.fail()
        assert queue.receive(5) == []
        assert [lock.record.deliveries for lock in queue.machine.locks()] == [0, 0, 0]
        assert queue.machine.wake_at() == messages[0].until
        assert lost(queue.settle(COMPLETE, *messages)) == []


def test_an_expiry_is_made_again() -> None:
    queue, messages = with_locks(1)
    queue.pass_time(LOCK)
    queue.fail()
    [again] = queue.receive()
    assert again.record.deliveries == 1
    assert queue.lane(ACTIVE)[1].deliveries == 1
    assert lost(queue.settle(COMPLETE, *messages)) == [0]


def test_a_delivery_that_was_not_made_takes_no_lock_and_no_credit() -> None:
    queue = Failing()
    queue.demand(5, credit=3)
    queue.start()
    queue.send_many(2)
    assert len(queue.machine.locks()) == 2
    assert queue.fail() == []
    assert queue.machine.locks() == []
    assert len(held(queue.run(c.Send(1, 1, 1, [draft()] * 5, False)))) == 3


def test_a_message_received_and_deleted_is_there_again() -> None:
    queue = Failing()
    queue.send_many(2)
    queue.start()
    queue.demand(5, credit=1, delete=True)
    assert numbers(held(queue.fail())) == [1]
    assert queue.counts() == [1, 0, 0, 0, 0]


def test_of_several_locks_on_one_message_the_one_before_the_failure_is_held() -> None:
    queue, [first] = with_locks(1)
    queue.settle(ABANDON, first)
    [second] = queue.receive()
    queue.take()
    queue.settle(ABANDON, second)
    queue.receive()
    queue.fail()
    [lock] = queue.machine.locks()
    assert (lock.nonce, lock.record.deliveries) == (first.nonce, 0)


def test_of_a_message_not_locked_before_no_lock_is_held() -> None:
    queue = Failing()
    queue.send_many(1)
    queue.start()
    queue.send_many(1)
    [first] = queue.receive()
    queue.take()
    queue.settle(ABANDON, first)
    [again] = held(queue.fail())
    assert (again.n, again.record.deliveries) == (1, 0)
    assert [lock.nonce for lock in queue.machine.locks()] == [again.nonce] != [first.nonce]


def test_a_release_stays_a_release() -> None:
    queue, [message] = with_locks(1)
    queue.settle(RELEASE, message)
    queue.send_many(1)
    queue.fail()
    assert numbers(queue.receive(2)) == [1]


def test_a_renewal_stays() -> None:
    queue, [message] = with_locks(1)
    queue.now += 1000
    queue.renew(message)
    queue.send_many(1)
    queue.fail()
    assert queue.machine.wake_at() == message.until + 1000


def test_a_drain_that_was_not_answered_is_answered_later() -> None:
    queue = Failing()
    queue.send_many(1)
    queue.start()
    queue.run(c.Demand(1, 1, 5, ACTIVE, 3, True, True))
    effects = queue.fail()
    assert numbers(held(effects)) == [1]
    assert isinstance(effects[-1], e.Drained)


def test_locks_on_deferred_messages() -> None:
    queue, [message] = with_locks(1)
    queue.settle(DEFER, message)
    queue.commit()
    queue.unheard = []
    queue.send_many(1)
    queue.receive_deferred(1)
    queue.fail()
    assert queue.machine.locks() == []
    assert len(queue.receive_deferred(1)) == 1


def test_forgotten_locks_are_gone() -> None:
    queue = Queue()
    queue.send_many(3)
    queue.receive(3)
    queue.machine.forget_locks([1, 3, 99])
    assert [lock.record.n for lock in queue.machine.locks()] == [2]
