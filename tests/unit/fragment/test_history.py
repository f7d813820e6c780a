"""The steps that a fragment notes of its messages: which, by whom, and none that is not durable."""

from __future__ import annotations

from busbar.fragment.history import HistorySwitch
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, VIA
from busbar.model.settings import FragmentSettings
from tests.unit.fragment.queue import LOCK, Held, Queue, draft, held, settings
from tests.unit.fragment.session_queue import SessionQueue, session_settings


class Recorded(Queue):
    """A queue with the path `q` whose history is recorded."""

    def __init__(self, given: FragmentSettings | None = None, keys: tuple[str, ...] = ("q",)) -> None:
        given = given or settings()
        given.path = "Q"
        super().__init__(given)
        self.switch = self.machine.history = HistorySwitch()
        self.switch.set(False, set(keys))
        self.steps: list[e.MessageStep] = []

    def step(self, command: c.Command) -> list[e.Effect]:
        effects = super().step(command)
        for effect in effects:
            if isinstance(effect, e.Happened):
                assert (effect.origin, effect.fragment, effect.path) == (e.HISTORY_ORIGIN, 1, "Q")
                self.steps += effect.steps
        return [effect for effect in effects if not isinstance(effect, e.Happened)]

    def taken(self) -> list[tuple[int, int, int]]:
        """The steps since this was last called: number, what, by whom."""
        steps, self.steps = self.steps, []
        return [(step.n, step.what, step.by) for step in steps]

    def one(self) -> Held:
        (message,) = self.receive()
        return message


def test_a_message_from_its_send_to_its_completion() -> None:
    queue = Recorded()
    queue.send(draft(b"a"), draft(b"b"))
    assert queue.taken() == [(1, e.SENT, 1), (2, e.SENT, 1)]
    message = queue.one()
    assert [(step.n, step.what, step.by, step.consumer) for step in queue.steps] == [(1, e.DELIVERED, 1, 900)]
    queue.taken()
    queue.settle(c.COMPLETE, message)
    assert queue.taken() == [(1, e.COMPLETED, 1)]
    assert queue.receive(delete=True)
    assert queue.taken() == [(2, e.RECEIVED_AND_DELETED, 1)]


def test_settlements() -> None:
    queue = Recorded(settings(max_deliveries=2))
    queue.send_many(4)
    queue.settle(c.ABANDON, queue.one())
    queue.settle(c.ABANDON, queue.one())
    queue.settle(c.DEFER, queue.one())
    queue.settle(c.RELEASE, queue.one())
    queue.settle(c.DEAD_LETTER, queue.one(), overlay={"DeadLetterReason": b"\xa1\x03bad"})
    last = queue.one()
    queue.settle(c.COMPLETE, last)
    queue.settle(c.COMPLETE, last)
    steps = [step for step in queue.steps if step.what not in (e.SENT, e.DELIVERED)]
    assert [(step.n, step.what, step.by, step.deliveries) for step in steps] == [
        (1, e.ABANDONED, 1, 1),
        (1, e.ABANDONED, 1, 2),
        (1, e.DEAD_LETTERED, 1, 2),
        (2, e.DEFERRED_BY_RECEIVER, 1, 0),
        (3, e.RELEASED, 1, 0),
        (3, e.DEAD_LETTERED, 1, 0),
        (4, e.COMPLETED, 1, 0),
        (4, e.LOCK_LOST, 1, 0),
    ]
    assert [step.reason for step in steps if step.what == e.DEAD_LETTERED] == [
        "MaxDeliveryCountExceeded",
        "bad",
    ]
    queue.taken()
    for forged in (0, -1, 5, 1 << 80):
        queue.run(c.Settle(1, 1, 9, c.COMPLETE, [forged], [7], None, False))
    assert queue.taken() == []
    (deferred,) = queue.receive_deferred(2)
    assert queue.taken() == [(2, e.DELIVERED, 1)]
    queue.settle(c.COMPLETE, deferred)
    assert queue.taken() == [(2, e.COMPLETED, 1)]
    assert queue.receive(2, sub=DEAD)
    assert [step[:2] for step in queue.taken()] == [(1, e.DELIVERED), (3, e.DELIVERED)]


def test_what_time_does_is_by_nobody() -> None:
    queue = Recorded(settings(ttl_ms=4 * LOCK))
    queue.send(draft(b"lock"), draft(b"other"))
    queue.one()
    queue.taken()
    queue.now += LOCK
    queue.send(draft(b"new"))  # the command in whose turn the lock ends
    assert queue.taken() == [(1, e.LOCK_EXPIRED, 0), (3, e.SENT, 1)]
    queue.now += 4 * LOCK
    assert queue.receive(5) == []
    assert sorted(queue.taken()) == [(1, e.EXPIRED, 0), (2, e.EXPIRED, 0), (3, e.EXPIRED, 0)]


def test_schedules_and_purges() -> None:
    queue = Recorded()
    queue.send(draft(scheduled=queue.now + 10), draft(scheduled=queue.now + 20))
    assert queue.taken() == [(1, e.SCHEDULED_FOR_LATER, 1), (2, e.SCHEDULED_FOR_LATER, 1)]
    queue.run(c.CancelScheduled(1, 1, 5, [2]))
    assert queue.taken() == [(2, e.CANCELLED, 1)]
    queue.pass_time(10)
    assert queue.taken() == [(3, e.ACTIVATED, 0)]
    assert queue.purge() == 1
    assert queue.taken() == [(3, e.PURGED, 1)]


def test_duplicates() -> None:
    queue = Recorded(settings(duplicate_window_ms=60_000))
    one = draft(b"first")
    one.message_id = "m"
    queue.send(one)
    two = draft(b"second")
    two.message_id = "m"
    queue.send(two)
    assert [(step.n, step.what, step.content) for step in queue.steps] == [
        (1, e.SENT, b"first"),
        (1, e.DUPLICATE_DROPPED, b"second"),
    ]


def test_sessions() -> None:
    given = session_settings(max_deliveries=2)
    given.path = "q"
    queue = SessionQueue(given)
    queue.machine.history.set(True, set())
    steps: list[e.MessageStep] = []

    def taken() -> list[tuple[int, int, int]]:
        found, steps[:] = [(step.n, step.what, step.by) for step in steps], []
        return found

    def step(command: c.Command) -> list[e.Effect]:
        effects = Queue.step(queue, command)
        for effect in effects:
            if isinstance(effect, e.Happened):
                steps.extend(effect.steps)
        return [effect for effect in effects if not isinstance(effect, e.Happened)]

    queue.step = step  # type: ignore[method-assign]
    queue.send_to("s")
    receiver = queue.accept("s")
    assert len(receiver.take()) == 1
    receiver.close()
    assert taken() == [(1, e.SENT, 1), (1, e.DELIVERED, 1), (1, e.RELEASED, 1)]
    receiver = queue.accept("s")
    assert len(receiver.take()) == 1
    queue.pass_time(LOCK)
    assert taken() == [(1, e.DELIVERED, 1), (1, e.LOCK_EXPIRED, 0)]


def test_the_switch_is_looked_at_in_every_turn() -> None:
    queue = Recorded(keys=("other",))
    queue.send(draft())
    assert queue.taken() == []
    queue.switch.set(True, set())
    queue.send(draft())
    assert queue.taken() == [(2, e.SENT, 1)]
    queue.switch.set(False, set())
    queue.settle(c.COMPLETE, queue.one())
    assert queue.taken() == []
    queue.send(draft())
    assert queue.taken() == [] and queue.machine.head().counts[ACTIVE] == 2


def test_a_topic_covers_its_subscriptions() -> None:
    switch = HistorySwitch()
    assert not switch.is_on
    switch.set(False, {"news", "orders"})
    assert switch.is_on and switch.covers("News") and switch.covers("news/Subscriptions/eu")
    assert not switch.covers("new") and not switch.covers("old/subscriptions/news")
    switch.set(False, {"news/subscriptions/eu"})
    assert switch.covers("News/Subscriptions/EU") and not switch.covers("news")


def test_steps_come_behind_the_effects_that_they_are_of() -> None:
    """They are an effect of the same turn, so a commit that fails drops them together."""
    queue = Recorded()
    queue.demand(7, 1)
    effects = Queue.step(queue, c.Send(1, 1, 3, [draft()], False))
    assert [type(effect) for effect in effects] == [e.Sent, e.Delivered, e.Happened]
    assert len(held(effects)) == 1


def test_a_transaction() -> None:
    """Its settlements and sends are by its client, and what it sends to another entity is on its way there."""
    queue = Recorded()
    queue.send(draft(b"a"))
    message = queue.one()
    queue.taken()
    other = draft(b"via")
    other.kind, other.target, other.path = VIA, 9, "other"
    settled = c.Settle(1, 1, 0, c.COMPLETE, [message.n], [message.nonce], None, True)
    queue.run(c.Transact(1, 1, 5, [settled, c.Send(1, 1, 0, [draft(b"b"), other], True)]))
    assert queue.taken() == [(1, e.COMPLETED, 1), (2, e.SENT, 1), (3, e.SENT_VIA, 1)]
