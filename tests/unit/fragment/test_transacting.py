"""Transactions in a fragment: everything or nothing, in one commit."""

from __future__ import annotations

from itertools import count

import pytest

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityDisabled,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    NotImplementedHere,
    QuotaExceeded,
    SessionLockLost,
)
from busbar.model.message import ACTIVE, DEAD, DEFERRED, OUTBOX, SCHEDULED, Draft
from tests.unit.fragment.moving_queue import MovingQueue, forwarding, ready, via
from tests.unit.fragment.queue import LOCK, NOW, Held, draft, refusal

_requests = count(100)


def send(*drafts: Draft) -> c.Send:
    return c.Send(1, 1, 0, list(drafts), True)


def settle(outcome: int, *held: Held, nonce: int = 0) -> c.Settle:
    nonces = [nonce or one.nonce for one in held]
    return c.Settle(1, 1, 0, outcome, [one.n for one in held], nonces, None, True)


def cancel(*numbers: int) -> c.CancelScheduled:
    return c.CancelScheduled(1, 1, 0, list(numbers))


def state(value: bytes | None, consumer: int = 7) -> c.SetSessionState:
    return c.SetSessionState(1, 1, 0, consumer, value)


def transact(queue: MovingQueue, *parts: c.TransactionPart) -> e.Effect:
    request = next(_requests)
    (answer,) = [x for x in queue.run(c.Transact(1, 1, request, list(parts))) if x.request == request]
    return answer


def committed(queue: MovingQueue, *parts: c.TransactionPart) -> bool:
    return isinstance(transact(queue, *parts), e.Done)


def probe(queue: MovingQueue, *parts: c.TransactionPart) -> e.Effect:
    (answer,) = queue.run(c.Probe(1, 1, 5, list(parts)))
    return answer


def everything(queue: MovingQueue) -> object:
    head = queue.store.head
    lanes = [[(r.n, r.content, r.deliveries) for r in queue.in_lane(lane)] for lane in range(10)]
    return lanes, head.counts, head.size, head.last, dict(queue.store.ids), len(queue.machine.locks())


def test_all_parts_are_one_commit_and_have_one_answer() -> None:
    queue = MovingQueue()
    queue.send(*(draft(bytes([n])) for n in range(5)), draft(b"later", scheduled=NOW + 9))
    one, two, three, four, five = queue.receive(5)
    queue.group = True
    effects = queue.run(
        c.Transact(
            1,
            1,
            9,
            [
                settle(COMPLETE, one),
                settle(DEFER, two),
                settle(DEAD_LETTER, three),
                settle(ABANDON, four),
                settle(RELEASE, five),
                cancel(6),
                send(draft(b"new"), via(b"away"), draft(b"due", scheduled=NOW + 5)),
            ],
        )
    )
    assert [type(effect) for effect in effects] == [e.Done, e.OutboxReady] and effects[0].request == 9
    queue.commit()
    queue.group = False
    assert queue.contents(ACTIVE) == [b"\x03", b"\x04", b"new"] and queue.contents(DEFERRED) == [b"\x01"]
    assert queue.contents(DEAD) == [b"\x02"] and queue.contents(SCHEDULED) == [b"due"]
    assert queue.waiting() == [b"away"]
    assert [held.record.deliveries for held in queue.receive(9)] == [1, 0, 0]


@pytest.mark.parametrize("bad", ["lock", "twice", "cancel", "cancel twice", "state", "session", "outcome"])
def test_one_part_that_cannot_be_done_leaves_everything_as_it_was(bad: str) -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"), draft(b"b"), draft(b"later", scheduled=NOW + 9))
    one, two = queue.receive(2)
    wrongs: dict[str, list[c.TransactionPart]] = {
        "lock": [settle(COMPLETE, two, nonce=12345)],
        "twice": [settle(DEFER, one)],
        "cancel": [cancel(3, 99)],
        "cancel twice": [cancel(3), cancel(3)],
        "state": [state(b"x")],
        "session": [c.Settle(1, 1, 0, COMPLETE, [two.n], [], None, True)],
        "outcome": [c.Settle(1, 1, 0, 77, [two.n], [two.nonce], None, True)],
    }
    conditions = {
        "lock": MessageLockLost,
        "twice": MessageLockLost,
        "cancel": MessageNotFound,
        "cancel twice": MessageNotFound,
        "state": NotImplementedHere,
        "session": ArgumentError,
        "outcome": ArgumentError,
    }
    before = everything(queue)
    parts: list[c.TransactionPart] = [send(draft(b"new"), via()), settle(COMPLETE, one), *wrongs[bad]]
    assert refusal(transact(queue, *parts)) == conditions[bad].condition
    assert refusal(probe(queue, *parts)) == conditions[bad].condition
    assert everything(queue) == before and queue.machine.take_changes() is None
    assert committed(queue, settle(COMPLETE, one, two), cancel(3))


def test_an_outcome_that_is_not_allowed_refuses_the_whole() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"))
    queue.settle(DEAD_LETTER, *queue.receive())
    (dead,) = queue.receive(1, sub=DEAD)
    before = everything(queue)
    assert refusal(transact(queue, settle(DEAD_LETTER, dead), send(draft()))) == InvalidOperation.condition
    assert everything(queue) == before


def test_a_lock_that_ends_before_the_commit_refuses_it() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"))
    held = queue.receive()
    assert isinstance(probe(queue, settle(COMPLETE, *held)), e.Done)
    queue.now += LOCK
    assert refusal(transact(queue, settle(COMPLETE, *held), send(draft()))) == MessageLockLost.condition
    assert queue.contents(ACTIVE) == [b"a"] and queue.in_lane(ACTIVE)[0].deliveries == 1


def test_of_two_transactions_with_one_lock_the_first_wins() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"))
    held = queue.receive()
    assert committed(queue, settle(COMPLETE, *held), send(draft(b"first")))
    assert (
        refusal(transact(queue, settle(COMPLETE, *held), send(draft(b"second")))) == MessageLockLost.condition
    )
    assert queue.contents(ACTIVE) == [b"first"]


def test_nothing_is_seen_of_a_probe() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"), draft(b"later", scheduled=NOW + 9))
    held = queue.receive()
    before = everything(queue)
    assert isinstance(probe(queue, settle(COMPLETE, *held), cancel(2), send(draft(b"x"))), e.Done)
    assert everything(queue) == before


def test_room_counts_what_the_transaction_frees() -> None:
    queue = MovingQueue(forwarding(quota_bytes=230))
    queue.send(draft(b"x" * 50), draft(b"x" * 50))
    one, two = queue.receive(2)
    assert refusal(transact(queue, send(draft(b"y" * 50)))) == QuotaExceeded.condition
    assert refusal(transact(queue, settle(DEFER, one), send(draft(b"y" * 50)))) == QuotaExceeded.condition
    assert committed(queue, settle(COMPLETE, one), send(draft(b"y" * 50)))
    assert queue.store.head.size == 228
    assert refusal(transact(queue, settle(COMPLETE, two), send(via(b"y" * 60)))) == QuotaExceeded.condition
    assert isinstance(probe(queue, settle(COMPLETE, two), send(via(b"y" * 900))), e.Done), (
        "no quota in a probe"
    )
    queue.send_many(0)
    assert committed(queue, settle(COMPLETE, two), send(via(b"y" * 50)))


def test_a_disabled_entity_still_commits_settlements() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"), draft(b"b"))
    one, two = queue.receive(2)
    queue.change(forwarding(can_send=False))
    assert refusal(transact(queue, settle(COMPLETE, one), send(draft()))) == EntityDisabled.condition
    assert committed(queue, settle(COMPLETE, one, two))


def test_duplicates_are_dropped_also_within_the_transaction() -> None:
    queue = MovingQueue(forwarding(duplicate_window_ms=60_000))
    known, new = Draft(b"k", "known", None, None, 0, 0), Draft(b"n", "new", None, None, 0, 0)
    queue.send(known)
    assert committed(queue, send(known, new), send(new))
    assert queue.contents(ACTIVE) == [b"k", b"n"] and queue.store.head.ids == 2
    (report,) = queue.run(c.InspectDuplicates(1, 1, 5))
    assert isinstance(report, e.DuplicateReport) and report.dropped == 2


def test_an_undone_transaction_never_was() -> None:
    queue = MovingQueue(forwarding(duplicate_window_ms=60_000))
    queue.send(Draft(b"k", "known", None, None, 0, 0), Draft(b"later", "l", None, None, 0, NOW + 9))
    (held,) = queue.receive()
    before = everything(queue)
    queue.group = True
    parts: list[c.TransactionPart] = [
        settle(COMPLETE, held),
        cancel(2),
        send(Draft(b"k", "known", None, None, 0, 0), draft(b"x"), via()),
    ]
    assert committed(queue, *parts)
    queue.fail()
    assert everything(queue) == before
    (report,) = queue.run(c.InspectDuplicates(1, 1, 5))
    assert isinstance(report, e.DuplicateReport) and report.dropped == 0
    assert committed(queue, *parts)
    assert ready(queue.run(c.Tick(1))) == [] and queue.waiting() == [b"v"]


def test_what_is_sent_reaches_consumers_that_wait() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"))
    held = queue.receive()
    queue.demand(7, 2)
    effects = queue.run(c.Transact(1, 1, 9, [settle(COMPLETE, *held), send(draft(b"b"))]))
    assert isinstance(effects[0], e.Done) and isinstance(effects[1], e.Delivered)
    assert [record.content for record in effects[1].records] == [b"b"]


# ---- sessions ----


def holding(queue: MovingQueue) -> list[Held]:
    queue.send(*(Draft(bytes([n]), "", "s", None, 0, 0) for n in range(2)))
    (accepted, *_) = queue.run(c.AcceptSession(1, 1, 5, 7, "s"))
    assert isinstance(accepted, e.SessionAccepted)
    (delivered,) = queue.demand(7, 2)
    assert isinstance(delivered, e.Delivered)
    return [Held(record, delivered.nonce, delivered.until) for record in delivered.records]


def test_a_state_is_set_with_the_rest_or_not_at_all() -> None:
    queue = MovingQueue(forwarding(requires_session=True))
    one, two = holding(queue)
    assert committed(queue, settle(COMPLETE, one), state(b"first"), send(Draft(b"n", "", "s", None, 0, 0)))
    assert queue.store.states["s"][1] == b"first"
    assert refusal(transact(queue, settle(COMPLETE, two), state(b"second"), send(draft()))) == (
        InvalidOperation.condition
    )
    assert queue.store.states["s"][1] == b"first" and len(queue.machine.locks()) == 1
    assert refusal(transact(queue, state(b"x", consumer=8))) == SessionLockLost.condition
    queue.now += LOCK
    assert refusal(transact(queue, settle(COMPLETE, two), state(None))) == MessageLockLost.condition


def test_a_state_that_does_not_fit_refuses_the_whole() -> None:
    queue = MovingQueue(forwarding(requires_session=True, quota_bytes=400))
    one, _ = holding(queue)
    assert refusal(transact(queue, settle(COMPLETE, one), state(b"x" * 400))) == QuotaExceeded.condition
    assert len(queue.machine.locks()) == 2


# ---- reserved numbers ----


def reserve(queue: MovingQueue, number: int) -> e.Effect:
    (answer,) = queue.run(c.ReserveNumbers(1, 1, 5, number))
    return answer


def scheduled(number: int, due: int = NOW + 1_000, content: bytes = b"s") -> Draft:
    return Draft(content, "", None, None, 0, due, 0, 0, 0, "", number)


def test_reserved_numbers_are_durable_and_given_to_nobody_else() -> None:
    queue = MovingQueue()
    answer = reserve(queue, 3)
    assert isinstance(answer, e.NumbersReserved) and answer.first == 1
    assert queue.store.head.last == 3
    assert queue.send(draft(b"a")) == [4]
    assert committed(queue, send(scheduled(2), scheduled(0), draft(b"b"), scheduled(1)))
    assert [record.n for record in queue.in_lane(SCHEDULED)] == [1, 2, 5]
    assert committed(queue, cancel(2))
    assert refusal(transact(queue, send(scheduled(2)))) == InvalidOperation.condition, "it was used"


def test_a_reserved_number_is_not_used_for_a_message_that_is_due_already() -> None:
    queue = MovingQueue()
    reserve(queue, 1)
    assert committed(queue, send(scheduled(1, due=NOW)))
    assert [record.n for record in queue.in_lane(ACTIVE)] == [2] and queue.contents(SCHEDULED) == []


def test_a_number_that_was_not_reserved_here_refuses_the_transaction() -> None:
    queue = MovingQueue()
    reserve(queue, 2)
    queue.restart(clean=True)
    assert refusal(transact(queue, send(scheduled(1)))) == InvalidOperation.condition
    assert refusal(transact(queue, send(scheduled(99)))) == InvalidOperation.condition
    assert queue.send(draft()) == [3]


def test_an_undone_reservation_never_was_and_a_durable_one_stays() -> None:
    queue = MovingQueue()
    reserve(queue, 1)
    queue.group = True
    reserve(queue, 1)
    queue.fail()
    assert queue.send(draft()) == [2]
    assert refusal(transact(queue, send(scheduled(2)))) == InvalidOperation.condition
    assert committed(queue, send(scheduled(1)))


@pytest.mark.parametrize("number", [0, -1, 1_001])
def test_a_reservation_is_bounded(number: int) -> None:
    assert refusal(reserve(MovingQueue(), number)) == ArgumentOutOfRange.condition


def test_the_oldest_reservations_are_forgotten() -> None:
    bounds = Bounds()
    bounds.reserved_numbers = 4
    queue = MovingQueue(bounds=bounds)
    reserve(queue, 3)
    reserve(queue, 3)
    assert refusal(transact(queue, send(scheduled(2)))) == InvalidOperation.condition
    assert committed(queue, send(scheduled(3), scheduled(6)))


# ---- several fragments ----


def transaction(parts: list[c.TransactionPart], freed: int = 0) -> c.Transact:
    command = c.Transact(1, 1, 9, parts)
    command.freed = freed
    return command


def test_a_fragment_says_beforehand_why_it_would_refuse_its_parts() -> None:
    queue = MovingQueue(forwarding(quota_bytes=200))
    queue.send(draft(b"x" * 100))
    (held,) = queue.receive()
    before = everything(queue)
    machine = queue.machine
    whole = transaction([settle(COMPLETE, held)])
    assert machine.refusal_of(whole, queue.now) is None
    refused, freed = machine.check_parts(whole, queue.now)
    assert refused is None and freed >= 100
    lost = transaction([settle(COMPLETE, held, nonce=1)])
    for refused in (machine.refusal_of(lost, queue.now), machine.check_parts(lost, queue.now)[0]):
        assert refused is not None and refused[0] == MessageLockLost.condition
    parts: list[c.TransactionPart] = [send(draft(b"x" * 100))]
    refused = machine.refusal_of(transaction(parts), queue.now)
    assert refused is not None and refused[0] == QuotaExceeded.condition
    assert machine.check_parts(transaction(parts), queue.now) == (None, 0), (
        "the quota is looked at with all fragments"
    )
    assert machine.refusal_of(transaction(parts, freed=200), queue.now) is None
    assert everything(queue) == before
    command = c.Transact(1, 1, 9, parts)
    command.freed = 200
    assert isinstance(queue.run(command)[0], e.Done)
    assert queue.store.head.counts[OUTBOX] == 0
