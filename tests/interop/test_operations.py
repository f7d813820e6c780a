"""What a person does with messages (busbar.operations), at a real broker: regular, partitioned and session queues, and
subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from busbar.client import OutgoingMessage, SessionCannotBeLocked, blocking
from busbar.client.blocking import BlockingFactory
from busbar.operations import purging, sessions, triage
from busbar.operations.browsing import MessageKind, browse, find
from busbar.operations.paths import OperationRefused
from busbar.operations.triage import DeadLetterSelection
from busbar.operations.views import view_of
from harness.serving import PATIENCE, Busbar

QUEUES: dict[str, dict[str, object]] = {
    **{
        f"{name}-{kind}": {"EnablePartitioning": kind == "partitioned"}
        for kind in ("regular", "partitioned")
        for name in ("states", "groups", "again", "purged")
    },
    "unique": {"RequiresDuplicateDetection": True},
    "moved": {},
    "held": {},
    "sessions": {"RequiresSession": True},
    "session-purge": {"RequiresSession": True},
}
TOPICS = [{"Name": "news", "Properties": {}, "Subscriptions": [{"Name": "eu", "Properties": {}}]}]

pytestmark = [pytest.mark.timeout(60), pytest.mark.server(QUEUES, PATIENCE, topics=TOPICS)]
both = pytest.mark.parametrize("kind", ["regular", "partitioned"])


@pytest.fixture(scope="module")
def factory(server: Busbar) -> Iterator[BlockingFactory]:
    with blocking.connect(server.connection_string) as made:
        yield made


def send(factory: BlockingFactory, entity: str, *messages: OutgoingMessage) -> None:
    with factory.message_sender(entity) as sender:
        sender.send_messages(list(messages))


def message(body: str, **fields: str) -> OutgoingMessage:
    return OutgoingMessage(body.encode(), **fields)  # type: ignore[arg-type]


def dead_letter(factory: BlockingFactory, entity: str, reasons: dict[str, str]) -> dict[str, int]:
    """Dead-letter a message for each body, with its reason. Returns their numbers in the dead-letter queue."""
    target = entity.split("/")[0]
    send(factory, target, *[message(body, message_id=f"id-{body}", subject="first") for body in reasons])
    with factory.message_receiver(entity) as receiver:
        for _ in reasons:
            (got,) = receiver.receive_messages(1, 10)
            receiver.dead_letter_message(got, reason=reasons[got.body.decode()], error_description="why")
    found = browse(factory, entity, kind=MessageKind.DEAD_LETTER)
    return {each.body.decode(): each.sequence_number for each in found}


def bodies(factory: BlockingFactory, path: str, kind: MessageKind = MessageKind.ALL) -> list[str]:
    return sorted(each.body.decode() for each in browse(factory, path, kind=kind))


@both
@pytest.mark.req("U15")
def test_messages_of_each_state_are_looked_at_and_stay_as_they_are(
    factory: BlockingFactory, kind: str
) -> None:
    queue = f"states-{kind}"
    send(factory, queue, *[message(f"m{number}", session_id="s") for number in range(4)])
    with factory.message_sender(queue) as sender:
        sender.schedule_messages(message("later"), datetime.now(UTC) + timedelta(hours=1))
    with factory.message_receiver(queue) as receiver:
        (deferred,) = receiver.receive_messages(1, 10)
        receiver.defer_message(deferred)
        (locked,) = receiver.receive_messages(1, 10)
        assert bodies(factory, queue, MessageKind.DEFERRED) == ["m0"]
        assert bodies(factory, queue, MessageKind.SCHEDULED) == ["later"]
        assert bodies(factory, queue, MessageKind.ACTIVE) == ["m1", "m2", "m3"]
        assert bodies(factory, queue) == ["later", "m0", "m1", "m2", "m3"]
        views = [view_of(each) for each in browse(factory, queue, kind=MessageKind.ACTIVE)]
        assert [bool(view.locked_until) for view in views] == [True, False, False]
        assert views[0].locked_until == locked.locked_until
        assert [view.delivery_count for view in views] == [0, 0, 0]
        receiver.abandon_message(locked)
    found = find(factory, queue, locked.sequence_number)
    assert found is not None and view_of(found).state == "Active" and found.delivery_count == 1
    assert find(factory, queue, locked.sequence_number + 1000) is None
    later = next(browse(factory, queue, kind=MessageKind.SCHEDULED))
    assert view_of(later).scheduled > view_of(found).enqueued
    behind = [each.sequence_number for each in browse(factory, queue, start=found.sequence_number + 1)]
    assert behind and min(behind) > found.sequence_number


@both
@pytest.mark.req("U12")
def test_dead_letters_are_grouped_and_selected(factory: BlockingFactory, kind: str) -> None:
    queue = f"groups-{kind}"
    numbers = dead_letter(factory, queue, {"a": "Broken", "b": "Late", "c": "Broken", "d": "Odd", "e": "Odd"})
    assert [(group.reason, group.source, group.count) for group in triage.groups(factory, queue)] == [
        ("Broken", queue, 2),
        ("Odd", queue, 2),
        ("Late", queue, 1),
    ]
    one = triage.delete(factory, queue, DeadLetterSelection(numbers=frozenset({numbers["d"]})))
    assert (one.found, one.done, one.left) == (1, 1, 0)
    gone = triage.delete(
        factory, f"{queue}/$DeadLetterQueue", DeadLetterSelection(reasons=frozenset({"Broken"}))
    )
    assert (gone.found, gone.done) == (2, 2)
    assert bodies(factory, queue, MessageKind.DEAD_LETTER) == ["b", "e"]
    assert {
        view_of(each).delivery_count for each in browse(factory, queue, kind=MessageKind.DEAD_LETTER)
    } == {0}
    absent = triage.delete(factory, queue, DeadLetterSelection(numbers=frozenset({numbers["d"]})))
    assert (absent.found, absent.done) == (0, 0)
    with pytest.raises(OperationRefused, match="nothing is selected"):
        triage.delete(factory, queue, DeadLetterSelection())


@both
@pytest.mark.req("U12")
def test_an_edited_copy_takes_the_place_of_a_dead_letter(factory: BlockingFactory, kind: str) -> None:
    queue = f"again-{kind}"
    numbers = dead_letter(factory, queue, {"a": "Broken", "b": "Broken"})
    steps: list[tuple[int, int]] = []
    report = triage.resubmit(
        factory,
        queue,
        DeadLetterSelection(numbers=frozenset({numbers["a"]})),
        changes={"body": "mended", "subject": "second", "properties.by": "me"},
        on_progress=lambda done, found: steps.append((done, found)),
    )
    assert (report.done, report.refused, report.left, steps) == (1, 0, 0, [(1, 1)])
    (copy,) = browse(factory, queue)
    view = view_of(copy)
    assert (copy.body, view.subject, view.dead_letter_reason) == (b"mended", "second", None)
    assert view.properties == {"by": "me", "original-message-id": "id-a"} and view.message_id != "id-a"
    kept = triage.resubmit(factory, queue, DeadLetterSelection(everything=True), keep_id=True)
    assert kept.done == 1
    assert bodies(factory, queue, MessageKind.DEAD_LETTER) == []
    assert [each.message_id for each in browse(factory, queue) if each.body == b"b"] == ["id-b"]


def test_a_copy_that_would_be_dropped_as_a_duplicate_leaves_its_dead_letter(factory: BlockingFactory) -> None:
    dead_letter(factory, "unique", {"a": "Broken"})
    everything = DeadLetterSelection(everything=True)
    report = triage.resubmit(factory, "unique", everything, keep_id=True)
    assert (report.done, report.refused) == (0, 1) and "duplicate" in report.examples[0]
    assert bodies(factory, "unique", MessageKind.DEAD_LETTER) == ["a"]
    assert triage.resubmit(factory, "unique", everything, message_id="new").done == 1
    assert [each.message_id for each in browse(factory, "unique")] == ["new"]


def test_a_copy_that_the_target_refuses_leaves_its_dead_letter(factory: BlockingFactory) -> None:
    dead_letter(factory, "moved", {"a": "Broken"})
    report = triage.resubmit(factory, "moved", DeadLetterSelection(everything=True), target="sessions")
    assert (report.done, report.refused) == (0, 1) and "session" in report.examples[0].lower()
    assert bodies(factory, "moved", MessageKind.DEAD_LETTER) == ["a"]


def test_a_dead_letter_that_another_receiver_has_locked_is_left(factory: BlockingFactory) -> None:
    dead_letter(factory, "held", {"a": "Broken", "b": "Broken"})
    with factory.message_receiver("held", sub_queue="deadletter") as receiver:
        (locked,) = receiver.receive_messages(1, 10)
        report = triage.delete(factory, "held", DeadLetterSelection(everything=True), patience=0.5)
        assert (report.found, report.done, report.left) == (2, 1, 1)
        receiver.defer_message(locked)
    assert triage.resubmit(factory, "held", DeadLetterSelection(everything=True)).done == 1  # a deferred one
    assert len(bodies(factory, "held")) == 1


def test_dead_letters_of_a_subscription_need_a_target(factory: BlockingFactory) -> None:
    path = "news/subscriptions/eu"
    dead_letter(factory, path, {"a": "Broken"})
    assert [group.source for group in triage.groups(factory, path)] == [path]
    with pytest.raises(OperationRefused, match="its topic 'news'"):
        triage.resubmit(factory, path, DeadLetterSelection(everything=True))
    assert triage.resubmit(factory, path, DeadLetterSelection(everything=True), target="news").done == 1
    assert bodies(factory, path) == ["a"]
    assert purging.purge(factory, path, [MessageKind.ACTIVE]).total == 1


@both
@pytest.mark.req("U15")
def test_a_purge_deletes_what_it_names(factory: BlockingFactory, kind: str) -> None:
    queue = f"purged-{kind}"
    dead_letter(factory, queue, {"dead": "Broken"})
    send(factory, queue, *[message(f"m{number}") for number in range(300)])
    with factory.message_sender(queue) as sender:
        sender.schedule_messages([message("later", session_id="k")], datetime.now(UTC) + timedelta(hours=1))
    with factory.message_receiver(queue) as receiver:
        for _ in range(3):
            receiver.defer_message(receiver.receive_messages(1, 10)[0])
        (locked,) = receiver.receive_messages(1, 10)
        steps: list[int] = []
        kinds = [MessageKind.ACTIVE, MessageKind.DEAD_LETTER]
        report = purging.purge(factory, queue, kinds, on_progress=lambda _kind, count: steps.append(count))
        assert report.deleted == {MessageKind.ACTIVE: 296, MessageKind.DEAD_LETTER: 1}
        assert max(steps) == 296 and report.left == 0
        assert len(bodies(factory, queue)) == 5
        rest = purging.purge(factory, queue, [MessageKind.DEFERRED, MessageKind.SCHEDULED])
        assert rest.deleted == {MessageKind.DEFERRED: 3, MessageKind.SCHEDULED: 1}
        receiver.complete_message(locked)
    assert bodies(factory, queue) == []


@pytest.mark.req("S6")
def test_sessions_with_holder_backlog_and_state(factory: BlockingFactory) -> None:
    send(factory, "sessions", *[message("x", session_id=name) for name in ("a", "a", "a", "b")])
    assert sessions.session_ids(factory, "sessions") == ["a", "b"]
    sessions.set_state(factory, "sessions", "b", b"half")
    with factory.accept_session("sessions", "a") as held:
        held.receive_messages(1, 10)
        a, b = sessions.sessions(factory, "sessions", ["a", "b"])
        assert (a.messages, a.locked_until, a.locked_messages, a.has_state) == (
            3,
            held.locked_until,
            1,
            False,
        )
        assert a.holder.endswith(" at 127.0.0.1") and a.holder.startswith("busbar-client-")
        assert (b.messages, b.locked_until, b.holder, b.has_state, b.state) == (1, 0, "", True, None)
        held.set_state(b"mine")
        assert sessions.session(factory, "sessions", "a", with_state=True).state == b"mine"
        with pytest.raises(SessionCannotBeLocked):
            sessions.set_state(factory, "sessions", "a", None)
    assert [each.body for each in browse(factory, "sessions", session_id="b")] == [b"x"]
    assert sessions.session(factory, "sessions", "new").messages == 0


def test_a_purge_of_a_session_and_of_deferred_messages_of_sessions(factory: BlockingFactory) -> None:
    send(factory, "session-purge", *[message("x", session_id=name) for name in ("a", "a", "b", "b", "c")])
    for name in ("a", "c"):
        with factory.accept_session("session-purge", name) as held:
            held.defer_message(held.receive_messages(1, 10)[0])
    one = purging.purge(factory, "session-purge", [MessageKind.ACTIVE], session_id="b")
    assert one.deleted == {MessageKind.ACTIVE: 2}
    with factory.accept_session("session-purge", "c"):
        report = purging.purge(factory, "session-purge", [MessageKind.ACTIVE, MessageKind.DEFERRED])
        assert report.deleted == {MessageKind.ACTIVE: 1, MessageKind.DEFERRED: 1} and report.left == 1
    assert purging.purge(factory, "session-purge", [MessageKind.DEFERRED]).total == 1


def test_deferred_messages_of_many_sessions_are_purged_several_sessions_at_a_time(
    factory: BlockingFactory,
) -> None:
    queue = "session-purge"
    names = [f"s{number}" for number in range(purging.SESSIONS_AT_A_TIME + 4)]
    long = [names[0]] * (purging.AT_A_TIME + 20)
    send(factory, queue, *[message("x", session_id=name) for name in [*names[1:], *long]])
    for name in names:
        with factory.accept_session(queue, name) as held:
            count = len(long) if name == names[0] else 1
            while count:
                for got in held.receive_messages(count, 10):
                    held.defer_message(got)
                    count -= 1
    steps: list[int] = []
    with factory.accept_session(queue, names[1]):
        report = purging.purge(
            factory, queue, [MessageKind.DEFERRED], on_progress=lambda _kind, done: steps.append(done)
        )
    assert (report.total, report.left) == (len(long) + len(names) - 2, 1)
    assert steps == sorted(steps) and steps[-1] == report.total and len(steps) == len(names)
    assert purging.purge(factory, queue, [MessageKind.DEFERRED]).total == 1
