"""A stream's reader step by step: where it begins, what a limit counts, whose a tap is, and what is said of losses."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.spark.errors import OptionError, SourceError
from harness.waiting import eventually
from tests.spark.conftest import PATIENCE, Namespace, numbered, received
from tests.spark.stepping import Checkpoint, Stepper


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in rows]


def run_now(namespace: Namespace, queue: str, checkpoint: Checkpoint, **options: str) -> list[dict[str, Any]]:
    return Stepper(namespace.options(queue, **options), checkpoint).run_now()


def refusal(namespace: Namespace, queue: str, checkpoint: Checkpoint, **options: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        run_now(namespace, queue, checkpoint, **options)
    return caught.value


def test_a_number_to_begin_with(namespace: Namespace, queue: str) -> None:
    namespace.send(queue, numbered(0, 10))
    checkpoint = Checkpoint()
    rows = run_now(namespace, queue, checkpoint, tap="numbers", startingPosition='{"0": 8}')
    assert bodies(rows) == numbered(7, 10)
    assert namespace.taps(queue).show("numbers").fragments[0].position == 10
    assert len(checkpoint.offsets) == 1


def test_a_limit_counts_messages_not_gaps(namespace: Namespace, queue: str) -> None:
    namespace.send(queue, numbered(0, 300))
    namespace.receive(queue, 290)
    checkpoint = Checkpoint()
    rows = run_now(namespace, queue, checkpoint, startingPosition="earliest", maxMessagesPerTrigger="5")
    assert bodies(rows) == numbered(290, 300)
    assert len(checkpoint.offsets) == 2


@pytest.mark.parametrize("when", ["before the offset log", "before the read", "before the commit", "later"])
def test_a_reader_that_dies_is_followed_by_one_that_reads_the_same(
    namespace: Namespace, queue: str, when: str
) -> None:
    namespace.send(queue, numbered(0, 6))
    options = namespace.options(queue, tap="mortal", owner="me", startingPosition="earliest")
    checkpoint = Checkpoint()
    first = Stepper(options, checkpoint)
    first.plan()
    if when == "before the offset log":
        checkpoint.offsets.clear()
    elif when == "before the commit":
        assert bodies(first.read()) == numbered(0, 6)
    elif when == "later":
        first.finish()
        namespace.send(queue, numbered(6, 8))
        first.plan()
        first.read()
    namespace.send(queue, numbered(8, 10))
    namespace.receive(queue, len(checkpoint.offsets) and 4)
    rows = Stepper(options, checkpoint).run_now()
    if when == "later":
        assert bodies(rows) == [*numbered(6, 8), *numbered(8, 10)]
    else:
        assert bodies(rows) == [*numbered(0, 6), *numbered(8, 10)]


def test_events_are_a_stream_too(namespace: Namespace, queue: str) -> None:
    checkpoint = Checkpoint()
    options = {"stream": "events", "tap": "history", "startingPosition": "earliest"}
    assert run_now(namespace, queue, checkpoint, **options) == []
    namespace.send(queue, numbered(0, 6))
    namespace.receive(queue, 6)
    rows = run_now(namespace, queue, checkpoint, **options)
    assert [(row["sequence_number"], row["outcome"]) for row in rows] == [
        (number, "completed") for number in range(1, 7)
    ]
    (state,) = namespace.taps(queue).show("history").fragments
    assert state.event_position == state.event_end
    assert state.position == state.end, "nobody reads the messages of this tap"


def test_events_with_an_owner_leave_the_messages_to_others(namespace: Namespace, queue: str) -> None:
    options = {"tap": "history", "startingPosition": "earliest", "owner": "two queries"}
    events, messages = Checkpoint(), Checkpoint()
    assert run_now(namespace, queue, events, stream="events", **options) == []
    namespace.send(queue, numbered(0, 6))
    namespace.receive(queue, 6)
    assert len(run_now(namespace, queue, events, stream="events", **options)) == 6
    assert bodies(run_now(namespace, queue, messages, **options)) == numbered(0, 6)


def test_dead_letters_are_a_stream_in_the_order_they_came(namespace: Namespace, queue: str) -> None:
    checkpoint = Checkpoint()
    options = {"subQueue": "deadletter", "tap": "dead", "startingPosition": "earliest"}
    namespace.send(queue, numbered(0, 3))
    with namespace.factory.receiver(queue) as receiver:
        messages = received(receiver, 3)
        receiver.dead_letter(messages[2:], "first")
        receiver.dead_letter(messages[:1], "second")
    rows = run_now(namespace, queue, checkpoint, **options)
    assert [(row["body"], row["dead_letter_reason"]) for row in rows] == [
        (b"body 2", "first"),
        (b"body 0", "second"),
    ]
    assert namespace.taps(queue, "deadletter").show("dead").fragments[0].position == 2


def test_a_tap_belongs_to_one_checkpoint(namespace: Namespace, queue: str) -> None:
    namespace.send(queue, numbered(0, 4))
    mine = Checkpoint()
    run_now(namespace, queue, mine, tap="mine", startingPosition="earliest")
    said = refusal(namespace, queue, Checkpoint(), tap="mine")
    assert said.condition == "BUSBAR_TAP_OWNED" and "'takeOver'" in str(said)
    namespace.send(queue, numbered(4, 6))
    rows = run_now(namespace, queue, Checkpoint(), tap="mine", takeOver="true")
    assert bodies(rows) == numbered(4, 6)
    assert refusal(namespace, queue, mine, tap="mine").condition == "BUSBAR_TAP_OWNED"


def test_a_checkpoint_knows_its_options(namespace: Namespace, queue: str) -> None:
    checkpoint = Checkpoint()
    run_now(namespace, queue, checkpoint, tap="one")
    said = refusal(namespace, queue, checkpoint, tap="two")
    assert said.condition == "BUSBAR_CHECKPOINT_MISMATCH"
    assert "'one'" in str(said) and "'two'" in str(said)


def test_a_tap_of_another_kind_is_refused(namespace: Namespace, queue: str) -> None:
    namespace.taps(queue).create("plain")
    with pytest.raises(OptionError, match="'mode' does not fit"):
        run_now(namespace, queue, Checkpoint(), tap="plain", mode="consume")
    with pytest.raises(OptionError, match="does not record"):
        run_now(namespace, queue, Checkpoint(), tap="plain", stream="events")


def test_a_deleted_tap_is_a_loss_that_can_be_accepted(namespace: Namespace, queue: str) -> None:
    checkpoint = Checkpoint()
    namespace.send(queue, numbered(0, 3))
    options = {"tap": "short", "startingPosition": "earliest"}
    run_now(namespace, queue, checkpoint, **options)
    namespace.taps(queue).delete("short")
    namespace.send(queue, numbered(3, 6))
    namespace.receive(queue, 5)
    said = refusal(namespace, queue, checkpoint, **options)
    assert said.condition == "BUSBAR_DATA_LOSS" and "The tap 'short'" in str(said)
    rows = run_now(namespace, queue, checkpoint, failOnDataLoss="false", **options)
    assert bodies(rows) == numbered(5, 6)


def test_a_truncated_tap_says_what_it_lost(namespace: Namespace, queue: str) -> None:
    checkpoint = Checkpoint()
    namespace.send(queue, numbered(0, 3))
    options = {"tap": "small", "startingPosition": "earliest", "tapMaxSize": "2000"}
    run_now(namespace, queue, checkpoint, **options)
    namespace.send(queue, [b"x" * 900 + str(number).encode() for number in range(6)])
    namespace.receive(queue, 9)
    eventually(lambda: namespace.taps(queue).show("small").truncated, seconds=PATIENCE)
    said = refusal(namespace, queue, checkpoint, **options)
    assert said.condition == "BUSBAR_DATA_LOSS" and "fragment 0: 4 to" in str(said)
    namespace.send(queue, [b"after"])
    rows = run_now(namespace, queue, checkpoint, failOnDataLoss="false", **options)
    assert bodies(rows)[-1] == b"after"
    assert not namespace.taps(queue).show("small").truncated


def test_an_old_checkpoint_is_told_what_the_tap_has_passed(namespace: Namespace, queue: str) -> None:
    checkpoint = Checkpoint()
    namespace.send(queue, numbered(0, 3))
    options = {"tap": "ahead", "startingPosition": "earliest"}
    run_now(namespace, queue, checkpoint, **options)
    old = Checkpoint()
    old.offsets, old.committed = list(checkpoint.offsets), checkpoint.committed
    namespace.send(queue, numbered(3, 8))
    run_now(namespace, queue, checkpoint, **options)
    said = refusal(namespace, queue, old, **options)
    assert "fragment 0: 4 to 8 (the tap has passed them)" in str(said)


def test_an_entity_that_was_made_again_is_noticed(namespace: Namespace) -> None:
    checkpoint = Checkpoint()
    queue = "queue39"
    namespace.send(queue, numbered(0, 3))
    options = {"startingPosition": "earliest"}
    run_now(namespace, queue, checkpoint, **options)
    namespace.remake(queue)
    namespace.send(queue, numbered(10, 12))
    said = refusal(namespace, queue, checkpoint, **options)
    assert said.condition == "BUSBAR_DATA_LOSS" and "was deleted and made again" in str(said)
    rows = run_now(namespace, queue, checkpoint, failOnDataLoss="false", **options)
    assert bodies(rows) == numbered(10, 12)
