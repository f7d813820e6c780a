"""The rules of the mover, one by one: effects in, commands out, and no clock but the one that the test says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described
from busbar.broker import mover as limits
from busbar.broker.mover import Mover, TargetQuestion
from busbar.message.parsing import parse_message
from busbar.model.commands import (
    AvoidTargets,
    Command,
    PullOutbox,
    RemoveMoved,
    TakeMoved,
    fence_of,
)
from busbar.model.effects import MOVER_ORIGIN, Effect, MovedTaken, OutboxPage, OutboxReady, Refused
from busbar.model.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MalformedMessage,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.message import DEAD_FORWARD, FORWARD, Record

SOURCE, TARGET = 7, 9
PATIENCE = 60_000


class Process:
    """A process with a mover, in which the test plays the fragments and the clock."""

    def __init__(self, max_bytes: int = limits.MAX_BYTES, ahead_bytes: int = limits.AHEAD_BYTES) -> None:
        self.now = 1_000
        self.epoch = 3
        self.mover = Mover(lambda fragment: self.epoch, PATIENCE, max_bytes, ahead_bytes)

    def gives(self, *effects: Effect) -> list[Command]:
        self.mover.handle(effects, self.now)
        return self.mover.take_commands(self.now)

    def ready(self, source: int = SOURCE, target: int = TARGET) -> list[Command]:
        return self.gives(OutboxReady(MOVER_ORIGIN, source, target))

    def sleeps(self, ms: int) -> list[Command]:
        self.now += ms
        self.mover.wake(self.now)
        return self.mover.take_commands(self.now)

    def taking(self, *numbers: int) -> TakeMoved:
        """The TakeMoved that follows when a pair gets ready with these records."""
        (pull,) = self.ready()
        (take,) = self.gives(page(pull, *numbers))
        assert isinstance(take, TakeMoved)
        return take


def content(body: bytes = b"body", **fields: str) -> bytes:
    properties = [fields.get("id", "m1"), *[None] * 9, fields.get("session")]
    raw = encode_value(Described(0x73, properties)) + encode_value(Described(0x75, body))
    return parse_message(raw, 0, len(raw), "fresh", 128).content


def record(n: int, size: int = 4, kind: int = FORWARD) -> Record:
    packed = content(b"x" * size)
    return Record(n, 500 + n, 0, n, 0, len(packed), packed, None, hops=1, target=TARGET, kind=kind)


def page(pull: Command, *numbers: int, size: int = 4) -> OutboxPage:
    assert isinstance(pull, PullOutbox)
    records = [record(n, size) for n in numbers]
    return OutboxPage(MOVER_ORIGIN, pull.request, pull.target, "target", "source", records)


def taken(take: Command, upto: int) -> MovedTaken:
    return MovedTaken(MOVER_ORIGIN, take.request, upto)


def full(take: Command, upto: int, refused: int = 1) -> MovedTaken:
    return MovedTaken(MOVER_ORIGIN, take.request, upto, refused, QuotaExceeded.condition, "It is full.")


def busy(command: Command, *, certain: bool = True) -> Refused:
    return Refused(MOVER_ORIGIN, command.request, ServerBusy.condition, "The store is away.", certain)


def missing(command: Command) -> Refused:
    error = EntityNotFound(f"fragment {command.fragment}")
    return Refused(MOVER_ORIGIN, command.request, error.condition, error.text)


def kinds(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


# ---- pull, take, remove ----


def test_a_pair_is_pulled_taken_and_removed_until_its_outbox_is_empty() -> None:
    process = Process()
    (pull,) = process.ready()
    assert isinstance(pull, PullOutbox)
    assert (pull.fragment, pull.target, pull.origin, pull.count) == (
        SOURCE,
        TARGET,
        MOVER_ORIGIN,
        limits.BATCH_RECORDS,
    )
    (take,) = process.gives(page(pull, 11, 12))
    assert isinstance(take, TakeMoved)
    assert (take.fragment, take.source, take.numbers) == (TARGET, SOURCE, [11, 12])
    remove, again = process.gives(taken(take, 12))
    assert isinstance(remove, RemoveMoved) and isinstance(again, PullOutbox)
    assert (remove.fragment, remove.target, remove.upto, remove.refused) == (SOURCE, TARGET, 12, 0)
    assert process.gives(page(again)) == []
    assert process.mover.status() == [] and process.mover.wake_at() == 0
    assert process.mover.moved == 2


def test_nothing_is_removed_before_the_target_has_answered() -> None:
    process = Process()
    (pull,) = process.ready()
    assert kinds(process.gives(page(pull, 11))) == ["TakeMoved"]
    assert process.sleeps(3_600_000) == []


def test_one_command_of_a_pair_is_unanswered_at_a_time() -> None:
    process = Process()
    (pull,) = process.ready()
    assert process.ready() == []
    (take,) = process.gives(page(pull, 11))
    assert process.ready() == []
    assert kinds(process.gives(taken(take, 11))) == ["RemoveMoved", "PullOutbox"]


def test_what_gets_ready_while_an_empty_page_comes_is_pulled() -> None:
    process = Process()
    (pull,) = process.ready()
    assert process.ready() == []
    assert kinds(process.gives(page(pull))) == ["PullOutbox"]


def test_an_answer_that_was_given_before_changes_nothing() -> None:
    process = Process()
    take = process.taking(11)
    assert process.gives(taken(take, 11)) != []
    assert process.gives(taken(take, 11)) == []
    assert process.gives(busy(take)) == []


def test_all_takes_of_a_turn_are_handed_out_together() -> None:
    process = Process()
    pulls = process.gives(*[OutboxReady(MOVER_ORIGIN, source, TARGET) for source in (1, 2, 3)])
    assert kinds(pulls) == ["PullOutbox"] * 3
    assert kinds(process.gives(*[page(pull, 11) for pull in pulls])) == ["TakeMoved"] * 3


def test_the_draft_is_what_the_message_says() -> None:
    process = Process()
    (pull,) = process.ready()
    assert isinstance(pull, PullOutbox)
    moved = Record(11, 500, 9_000, 5, 3, 10, content(id="order-1", session="s1"), None, hops=2, kind=FORWARD)
    (take,) = process.gives(OutboxPage(MOVER_ORIGIN, pull.request, TARGET, "target", "source", [moved]))
    assert isinstance(take, TakeMoved)
    (draft,) = take.drafts
    assert (draft.message_id, draft.session_id, draft.ttl, draft.hops) == ("order-1", "s1", 9_000, 2)
    assert (draft.kind, draft.target) == (0, 0)


# ---- fences ----


def test_the_fence_rises_with_every_attempt_and_with_the_epoch() -> None:
    process = Process()
    fences = []
    (pull,) = process.ready()
    for epoch in (3, 3, 4, 4):
        process.epoch = epoch
        (take,) = process.gives(page(pull, 11))
        assert isinstance(take, TakeMoved)
        fences.append(take.fence)
        process.gives(busy(take, certain=False))
        (pull,) = process.sleeps(limits.MAX_PAUSE_MS)
    assert all(before < after for before, after in pairwise(fences))
    assert fences[0] == fence_of(3, 1) and fence_of(4, 0) <= fences[2]


def test_the_epoch_is_raised_until_the_target_takes_messages_again() -> None:
    """The source's store was re-created, and the target has seen the fences of the old one."""
    process = Process()
    process.epoch = 1
    take = process.taking(11)
    fences = [take.fence]
    while fences[-1] < fence_of(1_000, 0):
        late = Refused(MOVER_ORIGIN, take.request, InvalidOperation.condition, "Late.")
        assert process.gives(late) == []
        (pull,) = process.sleeps(limits.MIN_PAUSE_MS)
        (again,) = process.gives(page(pull, 11))
        assert isinstance(again, TakeMoved)
        take = again
        fences.append(take.fence)
    assert len(fences) <= 12
    assert kinds(process.gives(taken(take, 11))) == ["RemoveMoved", "PullOutbox"]


# ---- refusals of records ----


def test_refused_records_are_reported_and_the_rest_goes_on_at_once() -> None:
    process = Process()
    take = process.taking(11, 12, 13)
    refusal = MovedTaken(MOVER_ORIGIN, take.request, 11, 1, EntityDisabled.condition, "It is disabled.")
    remove, pull = process.gives(refusal)
    assert isinstance(remove, RemoveMoved) and isinstance(pull, PullOutbox)
    assert (remove.upto, remove.refused) == (11, 1)
    assert (remove.condition, remove.text) == (EntityDisabled.condition, "It is disabled.")
    assert not any(pair.is_held for pair in process.mover.status())


def test_a_record_that_cannot_be_read_is_refused_without_a_target() -> None:
    process = Process()
    (pull,) = process.ready()
    bad = page(pull, 11, 12)
    bad.records[1].content = None
    (take,) = process.gives(bad)
    assert isinstance(take, TakeMoved) and take.numbers == [11]  # what is before it goes first
    (_, pull) = process.gives(taken(take, 11))
    bad = page(pull, 12)
    bad.records[0].content = b"\x10\x00\x00\x02\x00\x00\x00\x01\xa1"
    remove, pull = process.gives(bad)
    assert isinstance(remove, RemoveMoved) and isinstance(pull, PullOutbox)
    assert (remove.upto, remove.refused, remove.condition) == (0, 1, MalformedMessage.condition)


def test_a_refused_record_that_its_source_keeps_is_offered_again_after_a_pause() -> None:
    process = Process()
    take = process.taking(11, 12)
    _, pull = process.gives(MovedTaken(MOVER_ORIGIN, take.request, 11, 1, "com.example:later", "Not now."))
    assert process.gives(page(pull, 12)) == []
    for pause in (100, 200, 400):
        assert process.mover.wake_at() == process.now + pause
        (pull,) = process.sleeps(pause)
        (again,) = process.gives(page(pull, 12))
        assert isinstance(again, TakeMoved) and again.numbers == [12]
        _, pull = process.gives(
            MovedTaken(MOVER_ORIGIN, again.request, 11, 1, "com.example:later", "Not now.")
        )
        assert process.gives(page(pull, 12)) == []
    (pull,) = process.sleeps(800)
    assert kinds(process.gives(page(pull, 13))) == ["TakeMoved"]  # the source has put it elsewhere meanwhile


# ---- a target that is full ----


def test_a_full_target_is_tried_with_one_record_each_second() -> None:
    process = Process()
    take: Command = process.taking(11, 12)
    (remove,) = process.gives(full(take, 0, 2))
    assert isinstance(remove, RemoveMoved)
    assert (remove.upto, remove.refused, remove.condition) == (0, 2, QuotaExceeded.condition)
    for _ in range(3):
        assert process.sleeps(999) == []
        (pull,) = process.sleeps(1)
        assert isinstance(pull, PullOutbox) and pull.count == 1
        (take,) = process.gives(page(pull, 11))
        assert kinds(process.gives(full(take, 0))) == ["RemoveMoved"]
    (pair,) = process.mover.status()
    assert pair.is_held and pair.since == 1_000 and pair.reason == "It is full."


def test_when_the_patience_is_over_whole_pages_are_tried() -> None:
    process = Process()
    process.gives(full(process.taking(11, 12), 0, 2))
    (pull,) = process.sleeps(PATIENCE)
    assert isinstance(pull, PullOutbox) and pull.count == limits.BATCH_RECORDS


def test_patience_begins_again_when_something_is_taken() -> None:
    process = Process()
    process.gives(full(process.taking(11, 12), 0, 2))
    (pull,) = process.sleeps(PATIENCE - 1)
    (take,) = process.gives(page(pull, 11))
    process.gives(full(take, 11))
    (pull,) = process.sleeps(1_000)
    assert isinstance(pull, PullOutbox) and pull.count == 1


def test_room_ends_the_hold() -> None:
    process = Process()
    process.gives(full(process.taking(11, 12), 0, 2))
    (pull,) = process.sleeps(1_000)
    (take,) = process.gives(page(pull, 11))
    _, pull = process.gives(taken(take, 11))
    assert isinstance(pull, PullOutbox) and pull.count == limits.BATCH_RECORDS
    assert not any(pair.is_held for pair in process.mover.status())


# ---- targets and sources that cannot be reached ----


@pytest.mark.parametrize("certain", [True, False])
def test_a_target_that_is_busy_is_tried_after_growing_pauses(certain: bool) -> None:
    process = Process()
    take: Command = process.taking(11)
    assert kinds(process.gives(busy(take, certain=certain))) == ["AvoidTargets"]
    for pause in (100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000):
        assert process.mover.wake_at() == process.now + pause
        assert process.sleeps(pause - 1) == []
        (pull,) = process.sleeps(1)
        (take,) = process.gives(page(pull, 11))
        assert process.gives(busy(take)) == []


def test_the_same_records_are_offered_again_after_an_uncertain_answer() -> None:
    process = Process()
    take = process.taking(11, 12)
    process.gives(busy(take, certain=False))
    (pull,) = process.sleeps(100)
    (again,) = process.gives(page(pull, 11, 12))
    assert isinstance(again, TakeMoved)
    assert again.numbers == take.numbers and again.fence > take.fence


def test_a_pair_goes_on_as_soon_as_the_store_is_open() -> None:
    process = Process()
    process.gives(busy(process.taking(11)))
    process.mover.on_store_open(lambda fragment: fragment == 99)
    assert process.mover.take_commands(process.now) == []
    process.mover.on_store_open(lambda fragment: fragment == TARGET)
    assert kinds(process.mover.take_commands(process.now)) == ["PullOutbox"]


def test_a_source_that_is_busy_goes_on_when_it_says_so() -> None:
    process = Process()
    (pull,) = process.ready()
    assert process.gives(busy(pull)) == []
    assert kinds(process.ready()) == ["PullOutbox"]


def test_a_ready_source_does_not_end_the_pause_of_its_target() -> None:
    process = Process()
    process.gives(busy(process.taking(11)))
    assert kinds(process.ready()) == ["AvoidTargets"]


def test_a_source_is_told_which_targets_cannot_be_reached() -> None:
    process = Process()
    told: list[list[int]] = []

    def gives(*effects: Effect) -> list[Command]:
        commands = process.gives(*effects)
        told.extend(command.targets for command in commands if isinstance(command, AvoidTargets))
        return [command for command in commands if not isinstance(command, AvoidTargets)]

    pulls = gives(*[OutboxReady(MOVER_ORIGIN, SOURCE, target) for target in (20, 21)])
    takes = gives(*[page(pull, 11) for pull in pulls])
    gives(busy(takes[0]))
    gives(busy(takes[1]))
    pulls = process.sleeps(100)
    takes = gives(*[page(pull, 11) for pull in pulls])
    gives(busy(takes[0]), taken(takes[1], 11))
    assert told == [[20], [20, 21], [20]]


def test_a_source_that_was_loaded_again_is_told_again() -> None:
    process = Process()
    process.gives(busy(process.taking(11)))
    (avoid,) = process.ready()
    assert isinstance(avoid, AvoidTargets) and avoid.targets == [TARGET]


def test_a_pair_that_is_held_for_a_minute_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    process = Process()
    commands: list[Command] = [process.taking(11)]
    for _ in range(60):
        process.gives(busy(commands[-1]))
        (pull,) = process.sleeps(5_000)
        commands = process.gives(page(pull, 11))
    assert [entry.getMessage() for entry in caplog.records] == [
        "messages of 'source' wait for 'target': The store is away."
    ]


# ---- targets that are gone ----


def asked(process: Process) -> list[TargetQuestion]:
    return process.mover.take_questions()


def test_a_missing_target_is_believed_if_the_catalogue_does_not_have_it() -> None:
    process = Process()
    assert process.gives(missing(process.taking(11))) == []
    (question,) = asked(process)
    assert question == TargetQuestion(SOURCE, TARGET, "target")
    assert process.sleeps(3_600_000) == []  # nothing is decided meanwhile
    process.mover.answer(question, False, process.now)
    remove, pull = process.mover.take_commands(process.now)
    assert isinstance(remove, RemoveMoved) and isinstance(pull, PullOutbox)
    assert (remove.upto, remove.refused, remove.condition) == (0, 1, EntityNotFound.condition)
    assert "'target'" in remove.text


@pytest.mark.parametrize("exists", [True, None])
def test_a_target_that_the_catalogue_has_is_waited_for(exists: bool | None) -> None:
    process = Process()
    process.gives(missing(process.taking(11)))
    (question,) = asked(process)
    process.mover.answer(question, exists, process.now)
    assert kinds(process.mover.take_commands(process.now)) == ["AvoidTargets"]
    assert kinds(process.sleeps(100)) == ["PullOutbox"]


def test_a_source_that_is_gone_is_forgotten_after_a_while() -> None:
    process = Process()
    commands = process.ready()
    pulls = 0
    while commands:
        pulls += 1
        assert process.gives(missing(commands[0])) == []
        commands = process.sleeps(limits.MAX_PAUSE_MS)
    assert pulls == 8 and process.mover.status() == []


# ---- bounds ----


def test_pages_grow_while_they_are_full_and_no_further_than_a_batch() -> None:
    process = Process(ahead_bytes=limits.MAX_BYTES)
    commands = process.ready()
    asked_for = []
    for n in range(4):
        pull = commands[-1]
        assert isinstance(pull, PullOutbox)
        asked_for.append(pull.max_bytes)
        (take,) = process.gives(page(pull, n + 1, size=pull.max_bytes - 200))
        commands = process.gives(taken(take, n + 1))
    first = limits.FIRST_BYTES
    assert asked_for[0] == first and asked_for[2:] == [limits.BATCH_BYTES] * 2
    assert (limits.GROWTH - 1) * first < asked_for[1] <= limits.GROWTH * first


def test_pages_shrink_again_with_what_they_have() -> None:
    process = Process()
    (pull,) = process.ready()
    (take,) = process.gives(page(pull, 1, size=limits.FIRST_BYTES - 200))
    _, pull = process.gives(taken(take, 1))
    (take,) = process.gives(page(pull, 2))
    _, pull = process.gives(taken(take, 2))
    assert isinstance(pull, PullOutbox) and pull.max_bytes == limits.FIRST_BYTES


# ---- the page behind a large one ----


def ahead(*numbers: int) -> tuple[Process, TakeMoved, PullOutbox]:
    """A target that takes these records, while the page behind them is pulled."""
    process = Process(ahead_bytes=1)
    (pull,) = process.ready()
    take, behind = process.gives(page(pull, *numbers))
    assert isinstance(take, TakeMoved) and isinstance(behind, PullOutbox)
    assert (behind.fragment, behind.target, behind.after) == (SOURCE, TARGET, numbers[-1])
    return process, take, behind


def test_a_small_page_is_taken_before_the_next_one_is_pulled() -> None:
    process = Process()
    (pull,) = process.ready()
    assert isinstance(pull, PullOutbox) and pull.after == 0
    assert kinds(process.gives(page(pull, 11, size=limits.AHEAD_BYTES - 1_000))) == ["TakeMoved"]


def test_nothing_is_pulled_ahead_beyond_the_bytes_under_way() -> None:
    process = Process(max_bytes=limits.FIRST_BYTES, ahead_bytes=1)
    (pull,) = process.ready()
    assert kinds(process.gives(page(pull, 11))) == ["TakeMoved"]


def test_a_page_that_was_pulled_ahead_is_offered_when_the_one_before_it_is_taken() -> None:
    process, take, behind = ahead(11, 12)
    assert process.gives(page(behind, 13, 14)) == [], "one TakeMoved of a pair at a time"
    remove, second, third = process.gives(taken(take, 12))
    assert isinstance(remove, RemoveMoved) and (remove.upto, remove.refused) == (12, 0)
    assert isinstance(second, TakeMoved) and second.numbers == [13, 14] and second.fence > take.fence
    assert isinstance(third, PullOutbox) and third.after == 14


def test_a_page_that_comes_after_the_answer_is_offered_as_well() -> None:
    process, take, behind = ahead(11, 12)
    assert kinds(process.gives(taken(take, 12))) == ["RemoveMoved"]
    second, third = process.gives(page(behind, 13))
    assert isinstance(second, TakeMoved) and second.numbers == [13]
    assert isinstance(third, PullOutbox) and third.after == 13


def test_an_empty_page_ahead_does_not_end_the_work_on_a_pair() -> None:
    process, take, behind = ahead(11)
    assert process.gives(page(behind)) == []
    remove, pull = process.gives(taken(take, 11))
    assert isinstance(remove, RemoveMoved) and isinstance(pull, PullOutbox) and pull.after == 0
    process, take, behind = ahead(11)
    process.gives(taken(take, 11))
    (pull,) = process.gives(page(behind))
    assert isinstance(pull, PullOutbox) and pull.after == 0


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_page_ahead_is_dropped_if_the_one_before_it_was_not_taken_whole(comes_first: bool) -> None:
    process, take, behind = ahead(11, 12)
    if comes_first:
        process.gives(page(behind, 13))
    refused = MovedTaken(MOVER_ORIGIN, take.request, 11, 1, EntityDisabled.condition, "It is disabled.")
    remove, pull = process.gives(refused)
    assert isinstance(remove, RemoveMoved) and (remove.upto, remove.refused) == (11, 1)
    assert isinstance(pull, PullOutbox) and pull.after == 0
    assert process.gives(page(behind, 13)) == []


def test_a_page_ahead_is_dropped_if_the_answer_to_the_one_before_it_is_not_known() -> None:
    process, take, behind = ahead(11, 12)
    process.gives(page(behind, 13))
    assert kinds(process.gives(busy(take, certain=False))) == ["AvoidTargets"]
    (pull,) = process.sleeps(limits.MIN_PAUSE_MS)
    assert isinstance(pull, PullOutbox) and pull.after == 0
    again, _ = process.gives(page(pull, 11, 12))
    assert isinstance(again, TakeMoved) and again.numbers == [11, 12]


def test_a_page_ahead_is_dropped_if_the_target_is_full() -> None:
    process, take, behind = ahead(11, 12)
    process.gives(page(behind, 13))
    assert kinds(process.gives(full(take, 11))) == ["RemoveMoved"]
    (pull,) = process.sleeps(limits.FULL_PAUSE_MS)
    assert isinstance(pull, PullOutbox) and pull.after == 0 and pull.count == 1


def test_a_source_that_refuses_the_page_ahead_is_asked_again() -> None:
    process, take, behind = ahead(11)
    assert process.gives(busy(behind)) == [], "the target still takes the page before it"
    assert kinds(process.gives(taken(take, 11))) == ["RemoveMoved", "PullOutbox"]
    process, take, behind = ahead(11)
    process.gives(taken(take, 11))
    (pull,) = process.gives(busy(behind))
    assert isinstance(pull, PullOutbox) and pull.after == 0


def test_what_is_under_way_is_bounded_and_ready_pairs_take_turns() -> None:
    process = Process(max_bytes=2 * limits.FIRST_BYTES)
    pulls = process.gives(*[OutboxReady(MOVER_ORIGIN, source, TARGET) for source in (1, 2, 3)])
    assert [pull.fragment for pull in pulls] == [1, 2]
    size = limits.FIRST_BYTES - 200
    takes = process.gives(*[page(pull, 11, size=size) for pull in pulls])
    assert kinds(takes) == ["TakeMoved"] * 2
    commands = process.gives(taken(takes[0], 11))
    assert [(type(one).__name__, one.fragment) for one in commands] == [("RemoveMoved", 1), ("PullOutbox", 3)]


def test_a_message_larger_than_the_bound_is_moved_alone() -> None:
    process = Process(max_bytes=limits.FIRST_BYTES)
    pulls = process.gives(*[OutboxReady(MOVER_ORIGIN, source, TARGET) for source in (1, 2)])
    assert len(pulls) == 1
    (take,) = process.gives(page(pulls[0], 11, size=3 * limits.FIRST_BYTES))
    commands = process.gives(taken(take, 11))
    assert [(type(one).__name__, one.fragment) for one in commands] == [("RemoveMoved", 1), ("PullOutbox", 2)]


def test_dead_letters_name_where_they_come_from() -> None:
    process = Process()
    (pull,) = process.ready()
    assert isinstance(pull, PullOutbox)
    letter = record(11, kind=DEAD_FORWARD)
    (take,) = process.gives(OutboxPage(MOVER_ORIGIN, pull.request, TARGET, "target", "source", [letter]))
    assert isinstance(take, TakeMoved)
    assert b"x-opt-deadletter-source" in take.drafts[0].content
