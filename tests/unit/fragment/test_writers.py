"""Writers that repeat themselves: nothing comes twice, and what is over stays over."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from busbar.fragment.bounds import Bounds
from busbar.fragment.writers import FENCE_MS
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import Draft
from tests.unit.fragment.queue import refusal, settings
from tests.unit.fragment.tap_queue import TapQueue, tap


class Writing(TapQueue):
    consumed: list[bytes]

    def take(self) -> None:
        """A receiver is faster than the writer."""
        messages = self.receive(1000, delete=True)
        self.consumed += [message.record.content or b"" for message in messages]

    def write(self, batch: int, *ids: str, writer: str = "w", atomic: bool = False) -> e.Effect:
        drafts = [Draft(id.encode(), id, None, None, 0, 0) for id in ids]
        return self.run(c.Send(1, 1, 5, drafts, atomic, writer, batch))[0]

    def wrote(self, batch: int, *ids: str, writer: str = "w") -> list[int]:
        """The indexes of those that were dropped."""
        answer = self.write(batch, *ids, writer=writer)
        assert isinstance(answer, e.Sent) and not answer.refused
        return answer.duplicates

    def over(self, batch: int, writer: str = "w") -> None:
        assert isinstance(self.run(c.CommitWrites(1, 1, 5, writer, batch))[0], e.Done)

    def there(self) -> list[bytes]:
        return [record.content or b"" for record in self.peek(number=1000).records]


@pytest.mark.parametrize("known", ["in memory", "in the store", "too many for memory"])
class TestRepeating:
    def queue(self, known: str) -> Writing:
        bounds = Bounds()
        bounds.written_ids = 2 if known == "too many for memory" else 100
        return Writing(bounds=bounds)

    def again(self, queue: Writing, known: str) -> None:
        if known == "in the store":
            queue.restart(clean=False)

    def test_a_batch_that_is_sent_again_adds_nothing(self, known: str) -> None:
        queue = self.queue(known)
        assert queue.wrote(1, "a", "b", "c") == []
        self.again(queue, known)
        assert queue.wrote(1, "c", "a") == [0, 1]
        assert queue.wrote(1, "b", "d") == [0]
        assert queue.there() == [b"a", b"b", b"c", b"d"]

    def test_however_long_ago_and_whatever_became_of_it(self, known: str) -> None:
        queue = self.queue(known)
        queue.wrote(1, "a", "b", "c")
        queue.receive(3, delete=True)
        self.again(queue, known)
        queue.pass_time(100 * FENCE_MS)
        assert queue.wrote(1, "a", "b", "c") == [0, 1, 2]

    def test_the_committed_batch_can_still_be_sent_again(self, known: str) -> None:
        queue = self.queue(known)
        queue.wrote(1, "a", "b", "c")
        queue.over(1)
        self.again(queue, known)
        assert queue.wrote(1, "a") == [0]
        assert queue.wrote(2, "d", "b") == [1], "an id of the batch before counts"

    def test_a_batch_that_is_over_is_refused(self, known: str) -> None:
        queue = self.queue(known)
        queue.wrote(1, "a", "b", "c")
        queue.wrote(2, "d")
        queue.over(2)
        self.again(queue, known)
        assert refusal(queue.write(1, "zombie")) == "busbar:batch-over"
        assert queue.wrote(2, "a", "d") == [1], "ids of batches that are over are forgotten"

    def test_going_back_changes_nothing(self, known: str) -> None:
        queue = self.queue(known)
        queue.wrote(3, "a", "b", "c")
        queue.over(3)
        self.again(queue, known)
        queue.over(1)
        assert refusal(queue.write(2, "zombie")) == "busbar:batch-over"
        assert queue.wrote(3, "a") == [0]

    def test_writers_know_nothing_of_each_other(self, known: str) -> None:
        queue = self.queue(known)
        queue.wrote(1, "a", "b", "c")
        queue.over(5)
        self.again(queue, known)
        assert queue.wrote(0, "a", writer="v") == []

    def test_the_end_fences_for_a_week(self, known: str) -> None:
        queue = self.queue(known)
        queue.wrote(1, "a", "b", "c")
        queue.over(c.MAX_BATCH)
        assert queue.stored.written == {}
        self.again(queue, known)
        assert queue.machine.wake_at() == queue.now + FENCE_MS
        queue.pass_time(FENCE_MS - 1)
        assert refusal(queue.write(2, "zombie")) == "busbar:batch-over"
        queue.pass_time(1)
        assert queue.stored.writers == {}
        assert queue.wrote(1, "a") == []


def test_the_first_sends_of_a_writer_need_no_read() -> None:
    queue = Writing()
    for i in range(5):
        queue.wrote(1, f"a{i}", f"b{i}")
    assert queue.reads == 0


def test_of_two_in_one_send_one_is_sent() -> None:
    queue = Writing()
    assert queue.wrote(1, "a", "a", "b") == [1]
    assert queue.there() == [b"a", b"b"]


def test_a_message_that_was_refused_can_be_sent_again() -> None:
    queue = Writing(settings(quota_bytes=100))
    queue.wrote(1, "a")
    answer = queue.write(1, "b", "b")
    assert isinstance(answer, e.Sent)
    assert [index for index, _, _ in answer.refused] == [0, 1]
    queue.receive(delete=True)
    assert queue.wrote(1, "b") == []


def test_an_atomic_send_needs_room_for_what_is_new_only() -> None:
    queue = Writing(settings(quota_bytes=200))
    queue.wrote(1, "a", "b")
    answer = queue.write(1, "b", "a", "c", atomic=True)
    assert isinstance(answer, e.Sent) and answer.duplicates == [0, 1]


def test_it_holds_beside_duplicate_detection() -> None:
    queue = Writing(settings(duplicate_window_ms=1000))
    queue.send(Draft(b"a", "a", None, None, 0, 0))
    assert queue.wrote(1, "a", "b") == [0], "known to the entity"
    queue.pass_time(2000)
    assert queue.wrote(1, "a", "b") == [0, 1], "known to the writer, now that the window is over"


def test_drops_are_events() -> None:
    queue = Writing(settings(taps=[tap(events=True)]))
    queue.wrote(1, "a")
    queue.wrote(1, "a")
    assert queue.outcomes() == [(0, e.DUPLICATE_DROPPED)]


def test_what_was_undone_can_be_sent_and_what_was_made_after_all_is_known() -> None:
    queue = Writing()
    queue.wrote(1, "a")
    queue.group = True
    queue.wrote(1, "b", "c")
    changes = queue.machine.take_changes()
    assert changes is not None
    queue.store.commit([changes])  # nobody heard of it
    stored = queue.stored
    queue.machine.undo([changes], queue.machine.take_effects(), stored.head, 0, [], dict(stored.writers))
    queue.group = False
    assert queue.wrote(1, "a", "b", "c", "d") == [0, 1, 2]
    queue.group = True
    queue.wrote(2, "e")
    queue.undo()
    queue.group = False
    assert queue.wrote(2, "e") == []
    assert queue.there() == [b"a", b"b", b"c", b"d", b"e"]


@how(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_replay_adds_nothing(seed: int) -> None:
    """Batches of a stream, each sent in any order, split and repeated in any way, with commits that fail, and crashes."""
    r = random.Random(seed)
    bounds = Bounds()
    bounds.written_ids = r.choice([0, 3, 1000])
    queue = Writing(bounds=bounds)
    queue.consumed = []
    expected: list[bytes] = []
    for batch in range(r.randint(1, 4)):
        ids = [f"{batch}-{i}" for i in range(r.randint(0, 6))]
        expected += [id.encode() for id in ids]
        done = False
        while not done:  # an attempt of the whole batch
            rest = r.sample(ids, len(ids))
            done = True
            while rest and done:
                queue.group = r.random() < 0.5
                size = r.randint(1, len(rest))
                some, rest = rest[:size], rest[size:]
                answer = queue.write(batch, *some)
                assert isinstance(answer, e.Sent)
                trouble = r.random()
                if trouble < 0.1:
                    if queue.group:
                        queue.undo()
                    done = False
                elif trouble < 0.2:
                    queue.restart(clean=False)  # what was gathered is gone
                    done = False
                elif trouble < 0.3:
                    rest += r.sample(ids, r.randint(0, len(ids)))  # a worker that is started twice
                elif trouble < 0.4:
                    queue.group = False
                    queue.tick()
                    queue.take()
                elif trouble < 0.5 and batch > 1:
                    assert refusal(queue.write(batch - 2, "zombie")) == "busbar:batch-over"
        queue.group = False
        queue.tick()
        queue.over(batch)
    queue.over(c.MAX_BATCH)
    assert refusal(queue.write(4, "zombie")) == "busbar:batch-over"
    queue.pass_time(FENCE_MS)
    assert queue.stored.written == {} and queue.stored.writers == {}
    assert sorted(queue.there() + queue.consumed) == sorted(expected)


def test_no_more_writers_are_remembered_than_a_bound() -> None:
    """Neither by what they send nor by what they commit; those that are known go on, and those that are done make room."""
    bounds = Bounds()
    bounds.writers = 3
    queue = Writing(bounds=bounds)
    queue.wrote(1, "a", writer="first")
    queue.over(1, writer="second")
    queue.over(c.MAX_BATCH, writer="third")
    for answer in (queue.write(1, "b", writer="fourth"), queue.run(c.CommitWrites(1, 1, 5, "fourth", 1))[0]):
        assert refusal(answer) == "amqp:resource-limit-exceeded"
    assert queue.wrote(1, "a", "b", writer="first") == [0]
    queue.over(2, writer="second")
    queue.restart(clean=False)
    assert refusal(queue.write(1, "b", writer="fourth")) == "amqp:resource-limit-exceeded"
    queue.pass_time(FENCE_MS)
    assert queue.wrote(1, "c", writer="fourth") == []
