"""Duplicate detection: which messages are dropped, for how long, at what cost, and through what failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import ID_SIZE, OVERHEAD, Changes
from busbar.fragment.duplicates import LATEST, id_of
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.commands import COMPLETE
from busbar.model.message import Draft
from harness.memory_store import MemoryStore
from tests.unit.fragment.queue import Queue, settings, vars_of

SECOND = 1_000
MINUTE = 60 * SECOND
WINDOW = 10 * MINUTE


def message(
    id: str, session: str | None = None, key: str | None = None, scheduled: int = 0, size: int = 1
) -> Draft:
    return Draft(b"x" * size, id, session, key, 0, scheduled)


def tiny(**changed: int) -> Bounds:
    """Bounds that a few ids meet; two ids in memory, so that the filter and the store are asked."""
    bounds = Bounds()
    bounds.recent_ids = 1
    bounds.segment_ids = 4
    bounds.filter_bytes = 256
    bounds.filter_most = 4096
    bounds.filter_slice = 100
    bounds.id_page = 5
    bounds.expired_ids = 5
    for name, value in changed.items():
        setattr(bounds, name, value)
    return bounds


def detecting(
    window: int = WINDOW, store: MemoryStore | None = None, bounds: Bounds | None = None, quota: int = 0
) -> Queue:
    return Queue(settings(duplicate_window_ms=window, quota_bytes=quota), store, bounds)


@pytest.fixture(params=["in memory", "in the store"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """Every rule holds whether an id is remembered exactly or has to be looked up."""
    yield detecting(bounds=None if request.param == "in memory" else tiny(recent_ids=0))


def send(queue: Queue, *drafts: Draft, atomic: bool = False) -> e.Sent:
    answer = queue.run(c.Send(1, 1, 5, list(drafts), atomic))[0]
    assert isinstance(answer, e.Sent), vars_of(answer)
    return answer


def dropped(queue: Queue, *drafts: Draft) -> list[int]:
    return send(queue, *drafts).duplicates


def inspect(queue: Queue) -> e.DuplicateReport:
    answer = queue.run(c.InspectDuplicates(1, 1, 5))[0]
    assert isinstance(answer, e.DuplicateReport)
    return answer


# ---- what is a duplicate ----


def test_a_second_message_with_the_id_is_acknowledged_and_dropped(queue: Queue) -> None:
    first = send(queue, message("a"))
    again = send(queue, message("a"), message("b"))
    assert (first.numbers, first.duplicates) == ([1], [])
    assert (again.numbers, again.duplicates, again.refused) == ([1, 2], [0], [])
    assert queue.counts()[0] == 2, "no number and no place is taken by the duplicate"


def test_completing_the_message_does_not_clear_its_id(queue: Queue) -> None:
    send(queue, message("a"))
    queue.settle(COMPLETE, *queue.receive())
    assert dropped(queue, message("a")) == [0]
    assert queue.counts()[0] == 0


def test_within_a_batch_the_second_is_a_duplicate_of_the_first(queue: Queue) -> None:
    sent = send(queue, message("a"), message("b"), message("a"), message("a"), atomic=True)
    assert (sent.numbers, sent.duplicates) == ([1, 2, 1, 1], [2, 3])


def test_the_key_is_part_of_the_identity(queue: Queue) -> None:
    assert dropped(queue, message("a"), message("a", "s"), message("a", "t"), message("a", None, "p")) == []
    assert dropped(queue, message("a", "s", "s"), message("a", None, "s"), message("a", None, "q")) == [0, 1]
    assert dropped(queue, message("b", "", "p"), message("b", "", "q")) == [1], "the empty session is a key"


def test_an_identity_cannot_be_composed_in_two_ways() -> None:
    pairs = [("a", None), ("a", "1"), ("1a", None), ("1:a", None), ("", "a"), ("a", "1:"), ("ä", "\ud800")]
    found = [id_of(message(id, key)) for id, key in pairs]
    assert len(set(found)) == len(pairs)
    assert id_of(message("", "a")) == b"", "no MessageId, no identity"
    assert {len(id) for id in found} == {0, 16}


def test_a_message_without_an_id_is_never_a_duplicate(queue: Queue) -> None:
    assert dropped(queue, message(""), message(""), message("", "s"), message("", "s")) == []
    assert queue.stored.ids == {}


def test_without_detection_nothing_is_remembered() -> None:
    queue = Queue()
    assert dropped(queue, message("a"), message("a")) == []
    assert queue.stored.ids == {} and queue.machine.wake_at() == 0


def test_scheduled_messages_take_part_both_ways(queue: Queue) -> None:
    later = queue.now + MINUTE
    assert send(queue, message("a", scheduled=later)).numbers == [1]
    assert dropped(queue, message("a")) == [0], "from when it was scheduled"
    again = send(queue, message("a", scheduled=later + 1))
    assert (again.numbers, again.duplicates) == ([1], [0]), "the number by which it can be cancelled"
    assert dropped(queue, message("b")) == []
    assert dropped(queue, message("b", scheduled=later)) == [0]
    queue.pass_time(MINUTE)
    assert queue.counts() == [2, 0, 0, 0, 0], "becoming due is not coming again"
    queue.pass_time(WINDOW - MINUTE)
    assert dropped(queue, message("a")) == [], "counted from when it was scheduled"


def test_a_cancelled_message_is_remembered_all_the_same(queue: Queue) -> None:
    send(queue, message("a", scheduled=queue.now + MINUTE))
    queue.run(c.CancelScheduled(1, 1, 5, [1]))
    assert dropped(queue, message("a")) == [0]


# ---- refusals ----


def test_a_refused_message_leaves_no_id() -> None:
    queue = detecting(quota=300)
    sent = send(queue, message("a", size=100), message("b", size=150), message("b", size=1))
    assert [index for index, _, _ in sent.refused] == [1]
    assert (sent.numbers, sent.duplicates) == ([1, 0, 2], []), "the smaller one is the first with its id"
    refused = queue.run(c.Send(1, 1, 5, [message("c", size=200)], True))[0]
    assert isinstance(refused, e.Refused)
    queue.settle(COMPLETE, *queue.receive(2))
    assert dropped(queue, message("c"), message("b")) == [1]


def test_duplicates_need_no_room() -> None:
    queue = detecting(quota=350 + 2 * ID_SIZE)
    send(queue, message("a", size=200))
    assert dropped(queue, message("a", size=200)) == [0]
    batch = send(queue, message("a", size=200), message("b"), message("b", size=200), atomic=True)
    assert (batch.refused, batch.duplicates) == ([], [0, 2])


def test_ids_count_against_the_quota_until_they_are_forgotten() -> None:
    queue = detecting(quota=10 * (1 + OVERHEAD + ID_SIZE) - ID_SIZE - 1)
    for number in range(9):
        assert not send(queue, message(f"m{number}")).refused
    for atomic in (False, True):
        answer = queue.run(c.Send(1, 1, 5, [message("a")], atomic))[0]
        text = answer.refused[0][2] if isinstance(answer, e.Sent) else vars_of(answer)
        assert "the ids that duplicate detection remembers: 9" in text
    queue.pass_time(WINDOW)
    assert not send(queue, message("a")).refused


def test_a_disabled_entity_drops_nothing() -> None:
    queue = detecting()
    send(queue, message("a"))
    queue.machine.settings = settings(duplicate_window_ms=WINDOW, can_send=False)
    assert isinstance(queue.run(c.Send(1, 1, 5, [message("a"), message("b")], False))[0], e.Refused)
    queue.machine.settings = settings(duplicate_window_ms=WINDOW)
    assert dropped(queue, message("b"), message("a")) == [1]


# ---- time ----


@pytest.mark.parametrize("window", [20 * SECOND, WINDOW, 7 * 24 * 60 * MINUTE])
def test_the_window(window: int) -> None:
    queue = detecting(window, bounds=tiny(recent_ids=0))
    send(queue, message("a"))
    queue.pass_time(window - 1)
    assert dropped(queue, message("a")) == [0], "a duplicate does not begin the window anew"
    queue.pass_time(1)
    assert dropped(queue, message("a")) == []
    assert dropped(queue, message("a")) == [0]


def test_a_changed_window_holds_from_the_next_message_on(queue: Queue) -> None:
    send(queue, message("a"))
    queue.now += 2 * MINUTE
    send(queue, message("b"))
    queue.now += MINUTE
    queue.machine.settings = settings(duplicate_window_ms=2 * MINUTE)
    assert dropped(queue, message("a"), message("b")) == [1]
    queue.machine.settings = settings(duplicate_window_ms=WINDOW)
    queue.pass_time(8 * MINUTE)
    assert dropped(queue, message("a"), message("b")) == [0, 1], "by the longer window both are known"


def test_expired_ids_leave_the_store_in_slices() -> None:
    queue = detecting(bounds=tiny(expired_ids=5))
    for start in range(0, 40, 4):
        send(queue, *(message(f"{i}") for i in range(start, start + 4)))
        queue.pass_time(30 * SECOND)
    assert len(queue.stored.ids) == 40
    assert queue.machine.wake_at() == queue.now - 300 * SECOND + WINDOW, "when the first of them expire"
    queue.now += WINDOW
    forgotten = []
    while queue.machine.has_work(queue.now):
        before = len(queue.stored.ids)
        queue.step(c.Tick(1))
        forgotten.append(before - len(queue.stored.ids))
    assert max(forgotten) == 5 and sum(forgotten) == 40
    assert queue.stored.ids == {} and queue.stored.head.ids == 0 and queue.machine.wake_at() == 0


def test_ids_that_have_not_expired_stay() -> None:
    queue = detecting(bounds=tiny())
    for i in range(30):
        send(queue, message(f"{i}"))
        queue.pass_time(MINUTE)
    kept = {n for _, n in queue.stored.ids.values()}
    assert set(range(22, 31)) <= kept and min(kept) > 18
    assert dropped(queue, *(message(f"{i}") for i in range(30))) == list(range(21, 30))


def test_detection_that_is_turned_off_forgets() -> None:
    queue = detecting()
    send(queue, message("a"), message("b"))
    queue.machine.settings = settings()
    queue.tick()
    assert queue.stored.ids == {}
    queue.machine.settings = settings(duplicate_window_ms=WINDOW)
    assert dropped(queue, message("a")) == []


def test_a_clock_that_goes_back_loses_nothing() -> None:
    queue = detecting(bounds=tiny(recent_ids=0))
    send(queue, message("a"))
    queue.now -= 5 * MINUTE
    send(queue, message("b"))
    queue.tick()
    assert dropped(queue, message("a"), message("b")) == [0, 1]
    queue.restart(clean=True)
    queue.tick()
    assert dropped(queue, message("a"), message("b")) == [0, 1]


# ---- reads ----


def test_a_new_id_costs_no_read_and_a_quick_retry_neither() -> None:
    queue = detecting()
    for i in range(1_000):
        send(queue, message(f"{i}"))
    assert dropped(queue, *(message(f"{i}") for i in range(0, 1_000, 7))) == list(range(143))
    assert queue.reads == 0


def test_an_old_id_is_one_read_for_the_whole_send() -> None:
    queue = detecting(bounds=tiny(recent_ids=1, filter_bytes=65_536, filter_most=65_536))
    for i in range(100):
        send(queue, message(f"{i}"))
    assert queue.reads == 0
    assert dropped(queue, *(message(f"{i}") for i in range(50)), message("new")) == list(range(50))
    assert queue.reads == 1


def test_growing_many_generations_and_full_filters_lose_nothing() -> None:
    queue = detecting(bounds=tiny())
    known: dict[str, int] = {}
    for i in range(600):
        name = f"{i * 7919 % 450}"
        expected = name in known and known[name] + WINDOW > queue.now
        assert dropped(queue, message(name)) == ([0] if expected else []), i
        if not expected:
            known[name] = queue.now
        queue.pass_time(i % 5 * SECOND)
    assert queue.reads > 0


# ---- a new start ----


@pytest.mark.parametrize("clean", [True, False])
def test_ids_survive_a_restart(queue: Queue, clean: bool) -> None:
    send(queue, *(message(f"{i}") for i in range(20)))
    queue.restart(clean)
    queue.tick()
    assert dropped(queue, *(message(f"{i}") for i in range(18, 22))) == [0, 1]


def test_until_the_filter_is_full_again_the_store_is_asked() -> None:
    queue = detecting(bounds=tiny(id_page=5))
    for i in range(0, 40, 4):
        send(queue, *(message(f"{i + j}") for j in range(4)))
        queue.pass_time(20 * SECOND)
    queue.restart(clean=False)
    assert queue.machine.wake_at() <= queue.now, "it wants to begin at once"
    ticks = 0
    while queue.machine.has_work(queue.now):
        old, new = message(f"{ticks * 3 % 40}"), message(f"new {ticks}")
        sent = queue.step(c.Send(1, 1, 5, [old, new], False))[0]
        assert isinstance(sent, e.Sent) and sent.duplicates == [0]
        sent = queue.step(c.Send(1, 1, 5, [new], False))[0]
        assert isinstance(sent, e.Sent) and sent.duplicates == [0]
        queue.step(c.Tick(1))
        ticks += 1
    assert ticks >= 8
    assert dropped(queue, *(message(f"{i}") for i in range(40))) == list(range(40))
    assert dropped(queue, *(message(f"new {i}") for i in range(ticks))) == list(range(ticks))


def test_a_filter_made_again_says_that_new_ids_are_new() -> None:
    queue = detecting()
    for i in range(0, 5_000, 100):
        send(queue, *(message(f"{j}") for j in range(i, i + 100)))
        queue.now += 3 * SECOND
    queue.restart(clean=True)
    queue.tick()
    reads = queue.reads
    send(queue, *(message(f"new {i}") for i in range(1_000)))
    assert queue.reads == reads


def test_what_expired_while_nobody_looked_is_not_read_into_the_filter() -> None:
    queue = detecting(bounds=tiny(id_page=5, expired_ids=100))
    for i in range(40):
        send(queue, message(f"{i}"))
        queue.now += MINUTE
    queue.restart(clean=True)
    queue.now += 2 * WINDOW
    queue.tick()
    assert queue.stored.ids == {}
    assert dropped(queue, message("39")) == []


# ---- failures ----


def test_after_an_undo_an_id_is_not_remembered(queue: Queue) -> None:
    send(queue, message("before"))
    queue.group = True
    first = queue.step(c.Send(1, 1, 5, [message("a"), message("before")], False))
    flight = queue.machine.take_changes()
    second = queue.step(c.Send(1, 1, 6, [message("b"), message("before")], False))
    gathered = queue.machine.take_changes()
    assert flight is not None and gathered is not None
    queue.machine.undo([gathered, flight], first + second, queue.stored.head, 0)
    queue.group = False
    assert inspect(queue).dropped == 0, "nobody heard of these drops"
    sent = send(queue, message("a"), message("b"), message("before"))
    assert (sent.numbers, sent.duplicates) == ([2, 3, 1], [2])
    assert inspect(queue).ids == ["before"]


def test_after_an_unknown_outcome_the_store_is_believed(queue: Queue) -> None:
    """The commit was made although it failed: then its ids are remembered."""
    queue.group = True
    effects = queue.step(c.Send(1, 1, 5, [message("a")], False))
    flight = queue.machine.take_changes()
    assert flight is not None
    queue.store.commit([flight])
    queue.machine.undo([flight], effects, queue.stored.head, 0)
    queue.group = False
    assert dropped(queue, message("a"), message("b")) == [0]


def test_an_undone_removal_is_done_again() -> None:
    queue = detecting(bounds=tiny(expired_ids=3))
    send(queue, *(message(f"{i}") for i in range(10)))
    queue.now += WINDOW
    queue.group = True
    undone: list[Changes] = []
    for _ in range(2):
        queue.step(c.Tick(1))
        changes = queue.machine.take_changes()
        if changes is not None:
            undone.append(changes)
    assert undone and undone[-1].ids_upto is not None
    queue.machine.undo(undone[::-1], [], queue.stored.head, 0)
    queue.group = False
    queue.tick()
    assert queue.stored.ids == {}


# ---- diagnosis ----


def test_drops_are_counted_and_the_latest_listed(queue: Queue) -> None:
    send(queue, message("a", "s"), message("b"))
    queue.now += 5
    send(queue, message("b"), message("a", "s"))
    seen = inspect(queue)
    assert (seen.dropped, seen.remembered) == (2, 2)
    assert (seen.ids, seen.times, seen.numbers) == (["b", "a"], [queue.now] * 2, [2, 1])
    for _ in range(LATEST):
        send(queue, message("b"))
    assert inspect(queue).ids == ["b"] * LATEST
    answer = queue.run(c.Inspect(1, 1, 5))[0]
    assert isinstance(answer, e.Inspected) and answer.duplicates == 102


def test_the_count_is_durable_with_the_next_commit(queue: Queue) -> None:
    send(queue, message("a"))
    send(queue, message("a"), message("b"))
    queue.restart(clean=False)
    queue.tick()
    assert inspect(queue).dropped == 1
