"""A fragment takes what another one has in its outbox: each record once, in order, up to the first refusal."""

from __future__ import annotations

import pytest

from busbar.fragment.text import HEADER_TOO_LARGE
from busbar.fragment.writers import MARK_MS, fence_name, mark_name
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.errors import (
    ArgumentError,
    EntityDisabled,
    InvalidOperation,
    MessageSizeExceeded,
    QuotaExceeded,
)
from busbar.model.message import ACTIVE, OUTBOX, SCHEDULED, Draft
from tests.unit.fragment.moving_queue import TARGET, MovingQueue, forwarding, to
from tests.unit.fragment.queue import NOW, draft, refusal


def named(id: str, content: bytes = b"x", session: str | None = None) -> Draft:
    return Draft(content, id, session, None, 0, 0)


def test_messages_are_taken_in_order_and_the_mark_rises_with_them_in_one_commit() -> None:
    queue = MovingQueue()
    queue.group = True
    assert queue.taken((4, draft(b"a")), (9, draft(b"b"))) == (9, 0, "")
    changes = queue.commit()
    assert changes is not None and [r.content for r in changes.puts[ACTIVE]] == [b"a", b"b"]
    assert changes.writers == {mark_name(9): (9, NOW)}


def test_what_was_taken_is_skipped_however_often_it_is_offered() -> None:
    queue = MovingQueue()
    queue.taken((4, draft(b"a")), (9, draft(b"b")))
    assert queue.taken((4, draft(b"a")), (9, draft(b"b"))) == (9, 0, "")
    assert queue.taken((9, draft(b"b")), (12, draft(b"c"))) == (12, 0, "")
    queue.restart(clean=False)
    assert queue.taken((9, draft(b"b")), (12, draft(b"c"))) == (12, 0, "")
    assert queue.contents(ACTIVE) == [b"a", b"b", b"c"]


def test_each_source_has_a_mark_of_its_own() -> None:
    queue = MovingQueue()
    assert queue.taken((7, draft(b"a")), source=9) == (7, 0, "")
    assert queue.taken((3, draft(b"b")), source=10) == (3, 0, "")
    assert queue.taken((7, draft(b"a")), source=9) == (7, 0, "")
    assert queue.contents(ACTIVE) == [b"a", b"b"]
    assert set(queue.stored.writers) == {mark_name(9), mark_name(10)}


def test_taking_stops_at_the_first_refusal_and_the_mark_does_not_pass_it() -> None:
    queue = MovingQueue(forwarding(requires_session=True))
    with_session = named("", b"a", "s")
    assert queue.taken((1, with_session), (2, draft(b"none")), (3, with_session)) == (
        1,
        1,
        InvalidOperation.condition,
    )
    assert queue.contents(ACTIVE) == [b"a"]
    assert queue.stored.writers[mark_name(9)][0] == 1
    assert queue.taken((2, draft(b"none")), (3, with_session)) == (1, 1, InvalidOperation.condition)
    assert queue.taken((3, with_session)) == (3, 0, "")


def test_a_full_entity_refuses_the_whole_rest() -> None:
    queue = MovingQueue(forwarding(quota_bytes=200))
    answer = queue.taken((1, draft(b"x" * 50)), (2, draft(b"x" * 100)), (3, draft(b"")), (4, draft(b"")))
    assert answer == (1, 3, QuotaExceeded.condition)
    queue.receive(1, delete=True)
    assert queue.taken((2, draft(b"x" * 100)), (3, draft(b""))) == (2, 1, QuotaExceeded.condition)


def test_a_message_that_is_too_large_is_refused_alone() -> None:
    queue = MovingQueue(forwarding(max_message_bytes=10))
    large, fits = draft(b"x" * 11), draft(b"x" * 10)
    assert queue.taken((1, fits), (2, large), (3, fits)) == (1, 1, MessageSizeExceeded.condition)
    assert queue.stored.writers[mark_name(9)][0] == 1, "the mark does not pass it"
    assert queue.taken((2, large), (3, fits)) == (1, 1, MessageSizeExceeded.condition)
    assert queue.taken((3, fits)) == (3, 0, "")
    assert queue.contents(ACTIVE) == [b"x" * 10] * 2


def test_a_header_that_is_too_large_is_refused_alone() -> None:
    queue = MovingQueue(forwarding(max_header_bytes=4))
    assert queue.taken((1, draft(b"head|and a body")), (2, draft(b"heads|"))) == (1, 1, HEADER_TOO_LARGE)
    assert queue.taken((3, draft(b"head"))) == (3, 0, "")


def test_what_the_broker_has_written_into_a_message_does_not_count_in_its_size() -> None:
    queue = MovingQueue(forwarding(max_message_bytes=10, max_header_bytes=4))
    assert queue.taken((1, draft(b"head|and[the number of an entity]"))) == (1, 0, "")


def test_senders_are_not_measured_again() -> None:
    queue = MovingQueue(forwarding(max_message_bytes=10))
    assert queue.send(draft(b"x" * 11)) == [1]


def test_a_disabled_entity_refuses_all_of_them_and_takes_nothing() -> None:
    queue = MovingQueue(forwarding(can_send=False))
    assert queue.taken((1, draft()), (2, draft())) == (0, 2, EntityDisabled.condition)
    assert set(queue.stored.writers) == {fence_name(9)} and queue.contents(ACTIVE) == []


def test_a_late_attempt_is_not_applied() -> None:
    queue = MovingQueue()
    queue.taken((1, draft(b"a")), fence=c.fence_of(5, 2))
    assert refusal(queue.take((2, draft(b"late")), fence=c.fence_of(5, 1))) == InvalidOperation.condition
    assert refusal(queue.take((2, draft(b"late")), fence=c.fence_of(4, 9))) == InvalidOperation.condition
    assert refusal(queue.take((2, draft(b"twice")), fence=c.fence_of(5, 2))) == InvalidOperation.condition
    assert queue.taken((2, draft(b"b")), fence=c.fence_of(5, 3)) == (2, 0, "")
    assert queue.taken((3, draft(b"c")), source=10) == (3, 0, "")
    assert queue.contents(ACTIVE) == [b"a", b"b", b"c"]


def test_an_attempt_that_was_refused_is_not_applied_later_nor_any_before_it() -> None:
    queue = MovingQueue(forwarding(can_send=False))
    queue.taken((1, draft(b"a")), fence=7)
    queue.change(forwarding())
    for fence in (6, 7):
        assert refusal(queue.take((1, draft(b"a")), fence=fence)) == InvalidOperation.condition
    assert queue.contents(ACTIVE) == []


@pytest.mark.parametrize("clean", [True, False])
def test_an_attempt_that_was_refused_is_not_applied_after_a_restart_either(clean: bool) -> None:
    queue = MovingQueue(forwarding(can_send=False))
    queue.taken((1, draft(b"a")), fence=7)
    queue.restart(clean=clean)
    queue.change(forwarding())
    for fence in (6, 7):
        assert refusal(queue.take((1, draft(b"a")), fence=fence)) == InvalidOperation.condition
    assert queue.taken((2, draft(b"b")), fence=8) == (2, 0, "")
    assert queue.contents(ACTIVE) == [b"b"]


def test_an_attempt_that_was_refused_in_part_is_not_applied_after_a_restart_either() -> None:
    queue = MovingQueue(forwarding(quota_bytes=200))
    some = [(1, draft(b"x" * 50)), (2, draft(b"x" * 100)), (3, draft(b""))]
    assert queue.taken(*some, fence=7) == (1, 2, QuotaExceeded.condition)
    queue.restart(clean=False)
    queue.change(forwarding())
    assert refusal(queue.take(*some, fence=7)) == InvalidOperation.condition
    assert len(queue.contents(ACTIVE)) == 1


def test_a_duplicate_is_dropped_and_counts_as_taken() -> None:
    queue = MovingQueue(forwarding(duplicate_window_ms=60_000))
    queue.send(named("known"))
    assert queue.taken((1, named("new")), (2, named("known")), (3, named("new")), (4, named("last"))) == (
        4,
        0,
        "",
    )
    assert len(queue.contents(ACTIVE)) == 3
    assert queue.taken((4, named("last"))) == (4, 0, "")
    (report,) = queue.run(c.InspectDuplicates(1, 1, 5))
    assert isinstance(report, e.DuplicateReport) and report.dropped == 2, "a repeated move is no duplicate"


def test_drops_of_an_undone_take_are_not_counted() -> None:
    queue = MovingQueue(forwarding(duplicate_window_ms=60_000))
    queue.send(named("known"))
    queue.group = True
    queue.taken((1, named("known")), (2, named("new")))
    queue.fail()
    assert queue.stored.writers == {}
    (report,) = queue.run(c.InspectDuplicates(1, 1, 5))
    assert isinstance(report, e.DuplicateReport) and report.dropped == 0
    assert queue.taken((1, named("known")), (2, named("new"))) == (2, 0, "")
    assert len(queue.contents(ACTIVE)) == 2


def test_an_undone_take_is_applied_again() -> None:
    queue = MovingQueue()
    queue.taken((1, draft(b"a")))
    queue.group = True
    queue.taken((2, draft(b"b")))
    queue.fail()
    assert queue.taken((2, draft(b"b"))) == (2, 0, "")
    assert queue.contents(ACTIVE) == [b"a", b"b"]


def test_a_schedule_is_kept_by_the_target_and_hops_stay() -> None:
    queue = MovingQueue()
    queue.taken(
        (1, Draft(b"later", "", None, None, 0, NOW + 9, 2)), (2, Draft(b"now", "", None, None, 0, 0, 3))
    )
    assert [r.hops for r in queue.in_lane(SCHEDULED)] == [2] and [r.hops for r in queue.in_lane(ACTIVE)] == [
        3
    ]
    queue.pass_time(9)
    assert [r.hops for r in queue.in_lane(ACTIVE)] == [3, 2]


def test_what_is_taken_is_forwarded_on() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.taken((1, Draft(b"a", "", None, None, 0, 0, 3)), (2, Draft(b"b", "", None, None, 0, 0, 4)))
    assert [(r.content, r.hops, r.target) for r in queue.in_lane(OUTBOX)] == [(b"a", 4, TARGET)]
    assert queue.reasons() == ["MaxTransferHopCountExceeded"]


def test_marks_are_no_writers() -> None:
    queue = MovingQueue()
    queue.machine.bounds.writers = 2
    for source in range(5):
        queue.taken((1, draft()), source=source)
    assert queue.run(c.CommitWrites(1, 1, 5, "w", 3))[0].__class__ is e.Done
    assert queue.machine.wake_at() == 0


def test_marks_of_sources_that_are_gone_are_forgotten_when_they_are_old() -> None:
    queue = MovingQueue()
    queue.taken((5, draft()), source=9)
    queue.now += MARK_MS
    queue.taken((5, draft()), source=10)
    queue.run(c.ForgetMarks(1, [9, 10, 11]))
    assert set(queue.stored.writers) == {mark_name(9), mark_name(10)}
    queue.now += 1
    queue.run(c.ForgetMarks(1, [9, 10, 11]))
    assert set(queue.stored.writers) == {mark_name(10)}


def test_fences_of_sources_that_are_gone_are_forgotten_when_they_are_old() -> None:
    queue = MovingQueue()
    queue.taken((5, draft()), source=9)
    queue.now += MARK_MS
    queue.change(forwarding(can_send=False))
    for source in (9, 10):
        queue.taken((6, draft()), source=source)
    queue.now += 1
    queue.run(c.ForgetMarks(1, [9, 10]))
    assert set(queue.stored.writers) == {mark_name(9), fence_name(9), fence_name(10)}, "the fence is young"
    queue.now += MARK_MS
    queue.run(c.ForgetMarks(1, [9, 10]))
    assert queue.stored.writers == {}


def test_numbers_and_messages_belong_together() -> None:
    queue = MovingQueue()
    answer = queue.run(c.TakeMoved(1, -1, 5, 9, 1, [1, 2], [draft()]))[0]
    assert refusal(answer) == ArgumentError.condition
