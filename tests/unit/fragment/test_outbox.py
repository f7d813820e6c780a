"""The outbox: what enters it, in which pages the mover gets it, and where it goes if it cannot be moved."""

from __future__ import annotations

import pytest

from busbar.fragment.bounds import Bounds
from busbar.fragment.outbox import (
    BACK,
    DISABLED,
    FULL,
    HOPS,
    MISSING,
    UNACCEPTABLE,
    UNTOLD,
    WAITS,
    cause_of,
    destination_of,
)
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MessageSizeExceeded,
    NoMatchingSubscription,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.message import (
    ACTIVE,
    DEAD,
    DEAD_FORWARD,
    FORWARD,
    OUTBOX,
    TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED,
    VIA,
)
from tests.unit.fragment.moving_queue import TARGET, MovingQueue, forwarding, ready, to, via
from tests.unit.fragment.queue import NOW, draft, numbers, refusal


def small() -> Bounds:
    bounds = Bounds()
    bounds.outbox_records = 3
    return bounds


# ---- send via ----


def test_a_message_for_another_entity_enters_the_outbox_and_nothing_else_sees_it() -> None:
    queue = MovingQueue()
    effects = queue.run(c.Send(1, 1, 1, [via(b"a"), draft(b"mine"), via(b"b", 51, "other")], True))
    assert isinstance(effects[0], e.Sent) and effects[0].numbers == [1, 2, 3]
    assert ready(effects) == [50, 51]
    assert queue.stored.outbox == {50: ("target", 1), 51: ("other", 1)}
    assert queue.contents(ACTIVE) == [b"mine"] and queue.peeked() == [2]
    assert [record.content for record in queue.peek(sub=OUTBOX).records] == [b"a", b"b"]
    assert [held.record.content for held in queue.receive(9)] == [b"mine"]
    (record,) = queue.pull(51)
    assert (record.kind, record.target, record.hops, record.due) == (VIA, 51, 0, 0)


def test_a_page_begins_behind_a_number_and_has_only_what_is_in_memory() -> None:
    queue = MovingQueue(bounds=small())
    queue.send(*(via(bytes([n])) for n in range(5)))
    assert [r.n for r in queue.page(50, count=2).records] == [1, 2]
    assert [r.n for r in queue.page(50, after=2).records] == [3], "4 and 5 are only in the store"
    assert queue.page(50, after=3).records == []
    assert [r.n for r in queue.page(50).records] == [1, 2, 3], "nothing has left the outbox"


def test_a_message_for_another_entity_needs_no_session_and_is_no_duplicate_here() -> None:
    queue = MovingQueue(forwarding(requires_session=True, duplicate_window_ms=60_000))
    for _ in range(2):
        same = via()
        same.message_id = "id"
        assert queue.send(same, atomic=True) != [0]
    assert queue.waiting() == [b"v", b"v"] and queue.stored.head.ids == 0


def test_the_outbox_counts_in_the_size_of_the_entity() -> None:
    queue = MovingQueue(forwarding(quota_bytes=200))
    queue.send(via(b"x" * 100))
    (answer,) = queue.run(c.Send(1, 1, 1, [via(b"x" * 100)], False))
    assert isinstance(answer, e.Sent) and answer.refused[0][1] == QuotaExceeded.condition
    assert refusal(queue.run(c.Send(1, 1, 1, [draft(b"x" * 100)], True))[0]) == QuotaExceeded.condition
    queue.move_all()
    assert queue.stored.head.size == 0 and queue.send(via(b"x" * 100)) == [2]


# ---- pages ----


def test_a_page_has_the_first_records_of_its_target_and_is_bounded() -> None:
    queue = MovingQueue()
    queue.send(*(via(bytes([n]), 50 + n % 2) for n in range(6)))
    assert [r.n for r in queue.pull(50)] == [1, 3, 5] and [r.n for r in queue.pull(51)] == [2, 4, 6]
    assert [r.n for r in queue.pull(50, count=2)] == [1, 3]
    assert [r.n for r in queue.pull(50, max_bytes=1)] == [1]
    assert [r.n for r in queue.pull(50, max_bytes=130)] == [1, 3]
    assert queue.pull(52) == []
    page = queue.page(50)
    assert (page.target, page.path, page.source) == (50, "target", "source")


def test_what_is_beyond_a_batch_is_read_when_it_is_its_turn() -> None:
    queue = MovingQueue(bounds=small())
    queue.send(*(via(bytes([n])) for n in range(8)))
    seen, reads = [], queue.reads
    while page := queue.pull():
        assert len(page) <= 3
        seen += [record.n for record in page]
        queue.remove(page[-1].n)
    assert seen == list(range(1, 9))
    assert queue.reads > reads and queue.stored.outbox == {} and queue.stored.head.counts[OUTBOX] == 0


def test_removing_twice_or_what_is_not_there_does_nothing() -> None:
    queue = MovingQueue()
    queue.send(via(b"a"), via(b"b"))
    queue.remove(1)
    queue.remove(1)
    queue.remove(9, target=77)
    assert queue.waiting() == [b"b"]
    queue.remove(2)
    queue.remove(2, refused=3, condition=EntityDisabled.condition)
    assert queue.waiting() == [] == queue.transfer_dead()


def test_after_a_restart_the_mover_is_told_and_gets_the_same_records() -> None:
    queue = MovingQueue()
    queue.send(via(b"a"), via(b"b"), via(b"c", 51))
    queue.restart(clean=False)
    assert queue.machine.has_work(queue.now)
    assert ready(queue.tick()) == [50, 51]
    assert [r.n for r in queue.pull()] == [1, 2]
    queue.restart(clean=True)
    queue.remove(1)  # what it says of is only in the store
    assert queue.waiting() == [b"b", b"c"]


def test_the_mover_is_told_at_the_edge_from_nothing_to_something() -> None:
    queue = MovingQueue()
    assert ready(queue.run(c.Send(1, 1, 1, [via(), via()], False))) == [TARGET]
    assert ready(queue.run(c.Send(1, 1, 1, [via()], False))) == []
    queue.remove(2)
    assert ready(queue.run(c.Send(1, 1, 1, [via()], False))) == []
    queue.remove(4)
    assert ready(queue.run(c.Send(1, 1, 1, [via()], False))) == [TARGET]


def test_an_undo_takes_records_back_and_tells_the_mover_of_all_that_are_left() -> None:
    queue = MovingQueue()
    queue.send(via(b"a"), via(b"b", 51))
    queue.group = True
    queue.send(via(b"c"))
    queue.remove(1)
    queue.remove(2, refused=1, condition=EntityDisabled.condition, target=51)
    assert ready(queue.fail()) == [50, 51]
    assert queue.waiting() == [b"a", b"b"] and queue.transfer_dead() == []
    assert [r.content for r in queue.pull(50)] == [b"a"] and [r.content for r in queue.pull(51)] == [b"b"]
    assert queue.send(via(b"d")) == [3]


# ---- refusals ----

TABLE = {
    HOPS: (DEAD, TRANSFER_DEAD, TRANSFER_DEAD),
    MISSING: (DEAD, BACK, TRANSFER_DEAD),
    DISABLED: (DEAD, BACK, TRANSFER_DEAD),
    FULL: (DEAD, WAITS, TRANSFER_DEAD),
    UNACCEPTABLE: (DEAD, TRANSFER_DEAD, TRANSFER_DEAD),
    UNTOLD: (WAITS, WAITS, WAITS),
}


@pytest.mark.parametrize("cause", TABLE)
def test_where_a_refused_record_goes(cause: int) -> None:
    assert tuple(destination_of(kind, cause) for kind in (FORWARD, DEAD_FORWARD, VIA)) == TABLE[cause]


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        (EntityNotFound.condition, MISSING),
        (EntityDisabled.condition, DISABLED),
        (QuotaExceeded.condition, FULL),
        (ServerBusy.condition, UNTOLD),
        (OperationTimeout.condition, UNTOLD),
        (MessageSizeExceeded.condition, UNACCEPTABLE),
        (NoMatchingSubscription.condition, UNACCEPTABLE),
        (InvalidOperation.condition, UNACCEPTABLE),
        ("HeaderSizeExceeded", UNACCEPTABLE),
    ],
)
def test_the_cause_follows_from_the_condition(condition: str, cause: int) -> None:
    assert cause_of(condition) == cause


def test_a_refused_via_message_is_a_transfer_dead_letter_that_can_be_received() -> None:
    queue = MovingQueue()
    queue.send(via(b"a"), via(b"b"), via(b"c"))
    queue.remove(1, refused=1, condition=MessageSizeExceeded.condition, text="It is too large.")
    assert queue.waiting() == [b"c"] and queue.transfer_dead() == [b"b"]
    assert queue.reasons(TRANSFER_DEAD) == ["MessageSizeExceededException"]
    (held,) = queue.receive(9, sub=TRANSFER_DEAD)
    assert held.n == 4 and held.record.content == b"b" and held.until > NOW
    assert refusal(queue.settle(c.DEAD_LETTER, held)) == InvalidOperation.condition
    queue.settle(c.DEFER, held)
    assert queue.contents(TRANSFER_DEAD_DEFERRED) == [b"b"]
    assert queue.peeked(TRANSFER_DEAD) == [4] and queue.peeked(DEAD) == [] == queue.peeked()
    (again,) = queue.receive_deferred(4, sub=TRANSFER_DEAD)
    queue.settle(c.ABANDON, again)
    (again,) = queue.receive_deferred(4, sub=TRANSFER_DEAD)
    assert again.record.deliveries == 1
    queue.settle(c.COMPLETE, again)
    assert queue.stored.head.counts[TRANSFER_DEAD] == 0 and queue.stored.head.size == 65


def test_the_sub_queues_are_served_each_by_itself() -> None:
    queue = MovingQueue()
    queue.send(draft(b"main"), via(b"t"), draft(b"d"))
    queue.remove(0, refused=9, condition=EntityDisabled.condition)
    (first, second) = queue.receive(2)
    queue.settle(c.DEAD_LETTER, second)
    queue.settle(c.RELEASE, first)
    assert [h.record.content for h in queue.receive(9)] == [b"main"]
    assert [h.record.content for h in queue.receive(9, sub=DEAD)] == [b"d"]
    assert [h.record.content for h in queue.receive(9, sub=TRANSFER_DEAD)] == [b"t"]
    queue.pass_time(60_001)
    assert queue.purge(sub=TRANSFER_DEAD) == 1
    assert numbers(queue.receive(9, sub=TRANSFER_DEAD)) == [] and queue.transfer_dead() == []
    assert len(queue.receive(9)) == 1 == len(queue.receive(9, sub=DEAD))


def test_transfer_dead_letters_are_served_from_the_store_after_a_restart() -> None:
    queue = MovingQueue()
    queue.send(*(via(bytes([n])) for n in range(5)))
    queue.remove(0, refused=5, condition=EntityDisabled.condition)
    (kept,) = queue.receive(1, sub=TRANSFER_DEAD)
    queue.restart(clean=True)
    assert [held.n for held in queue.receive(9, sub=TRANSFER_DEAD)] == [7, 8, 9, 10]
    queue.settle(c.COMPLETE, kept)
    assert len(queue.transfer_dead()) == 4


def test_a_full_target_is_waited_for_and_then_given_up() -> None:
    queue = MovingQueue(forwarding(patience=10_000))
    queue.send(via(b"a"), via(b"b"))
    queue.remove(0, refused=2, condition=QuotaExceeded.condition)
    queue.now += 9_999
    queue.remove(0, refused=1, condition=QuotaExceeded.condition)
    assert queue.waiting() == [b"a", b"b"]
    queue.now += 1
    queue.remove(0, refused=1, condition=QuotaExceeded.condition)
    assert queue.waiting() == [b"b"] and queue.reasons(TRANSFER_DEAD) == ["QuotaExceededException"]


def test_the_time_for_a_full_target_starts_again_when_something_is_taken() -> None:
    queue = MovingQueue(forwarding(patience=10_000))
    queue.send(via(b"a"), via(b"b"))
    queue.remove(0, refused=2, condition=QuotaExceeded.condition)
    queue.now += 9_000
    queue.remove(1)
    queue.now += 9_000
    queue.remove(1, refused=1, condition=QuotaExceeded.condition)
    assert queue.waiting() == [b"b"]
    queue.now += 10_000
    queue.remove(1, refused=1, condition=QuotaExceeded.condition)
    assert queue.waiting() == []


def test_without_patience_a_full_target_is_given_up_at_once() -> None:
    queue = MovingQueue(forwarding(patience=0))
    queue.send(via(b"a"))
    queue.remove(0, refused=1, condition=QuotaExceeded.condition)
    assert queue.transfer_dead() == [b"a"]


def test_what_cannot_be_told_waits_for_ever() -> None:
    queue = MovingQueue(forwarding(patience=0))
    queue.send(via(b"a"))
    for _ in range(3):
        queue.now += 10**9
        queue.remove(0, refused=1, condition=ServerBusy.condition)
    assert queue.waiting() == [b"a"]


def test_records_for_a_missing_target_go_page_by_page() -> None:
    queue = MovingQueue(forwarding(to()), bounds=small())
    queue.send(*(via(bytes([n]), 51, "gone") for n in range(8)))
    while page := queue.pull(51):
        queue.remove(0, len(page), EntityNotFound.condition, "There is none.", target=51)
    assert len(queue.transfer_dead()) == 8
    assert set(queue.reasons(TRANSFER_DEAD)) == {"MessagingEntityNotFoundException"}
