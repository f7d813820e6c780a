"""ForwardTo and ForwardDeadLetteredMessagesTo, as a fragment performs them."""

from __future__ import annotations

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.message import (
    ACTIVE,
    DEAD,
    DEAD_FORWARD,
    DEFERRED,
    FORWARD,
    KEPT,
    MAX_HOPS,
    OUTBOX,
    TRANSFER_DEAD,
    Draft,
    SubscriptionCopy,
)
from busbar.model.partitioning import index_of_key
from busbar.model.settings import EARLIEST, TARGET_DISABLED, TARGET_MISSING, TapSettings
from tests.unit.fragment.moving_queue import ALL, TARGET, MovingQueue, forwarding, ready, to
from tests.unit.fragment.queue import LOCK, NOW, draft, refusal


def hopping(hops: int, content: bytes = b"x") -> Draft:
    return Draft(content, "", None, None, 0, 0, hops)


def keyed(session: str = "", key: str = "", message_id: str = "") -> Draft:
    content = f"|{session}|{key}|{message_id}".encode()
    return Draft(content, message_id, session or None, key or None, 0, 0)


# ---- how messages get there ----


def test_a_message_passes_straight_into_the_outbox_with_one_put() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.group = True
    effects = queue.run(c.Send(1, 1, 1, [draft(b"a", ttl=70), draft(b"b")], False))
    assert isinstance(effects[0], e.Sent) and effects[0].numbers == [1, 2] and ready(effects) == [TARGET]
    changes = queue.commit()
    assert changes is not None and {lane: len(r) for lane, r in changes.puts.items() if r} == {OUTBOX: 2}
    assert not changes.deletes and not changes.edits
    one, _ = queue.pull()
    assert (one.n, one.ttl, one.hops, one.target, one.kind) == (1, 70, 1, TARGET, FORWARD)
    assert one.due == 3 << 48 | 1, "the sequence number that it had here"
    assert queue.stored.head.counts[ACTIVE] == 0


def test_what_was_there_before_goes_first_and_gets_new_numbers() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"), draft(b"b", ttl=1_000))
    queue.now += 500
    assert ready(queue.change(forwarding(to()))) == [TARGET]
    queue.send(draft(b"c"))
    records = queue.pull()
    assert [(r.content, r.n, r.due & 0xFFFF) for r in records] == [(b"a", 3, 1), (b"b", 4, 2), (b"c", 5, 5)]
    assert [r.enqueued for r in records] == [NOW + 500] * 3
    assert queue.stored.head.counts[ACTIVE] == 0 and queue.stored.head.size == 3 * 65


def test_the_overlay_goes_along_and_the_delivery_count_does_not() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"))
    queue.settle(c.ABANDON, *queue.receive(), overlay={"k": b"\xa1\x01v"})
    queue.change(forwarding(to()))
    (record,) = queue.pull()
    assert (record.overlay, record.deliveries, record.size) == ({"k": b"\xa1\x01v"}, 0, 69)


def test_what_is_locked_comes_when_its_lock_ends_and_what_is_deferred_stays() -> None:
    queue = MovingQueue()
    queue.send(draft(b"locked"), draft(b"deferred"), draft(b"abandoned"), draft(b"free"))
    _, deferred, abandoned, free = queue.receive(4)
    queue.settle(c.DEFER, deferred)
    queue.settle(c.RELEASE, free)
    queue.change(forwarding(to()))
    assert queue.waiting() == [b"free"]
    queue.settle(c.ABANDON, abandoned)
    assert queue.waiting() == [b"free", b"abandoned"]
    queue.pass_time(LOCK)
    assert queue.waiting() == [b"free", b"abandoned", b"locked"]
    assert queue.contents(DEFERRED) == [b"deferred"]
    (held,) = queue.receive_deferred(2)
    queue.settle(c.ABANDON, held)
    assert queue.contents(DEFERRED) == [b"deferred"]


def test_expired_messages_expire_instead() -> None:
    queue = MovingQueue(forwarding(dead_letter_on_expiration=True))
    queue.send(draft(b"a", ttl=10), draft(b"b"), draft(b"c", ttl=10))
    queue.now += 10
    queue.change(forwarding(to(), dead_letter_on_expiration=True))
    assert queue.waiting() == [b"b"] and queue.contents(DEAD) == [b"a", b"c"]


def test_scheduled_messages_are_forwarded_when_they_are_due() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.send(draft(b"later", scheduled=NOW + 50), draft(b"now"))
    assert queue.waiting() == [b"now"]
    queue.pass_time(50)
    assert queue.waiting() == [b"now", b"later"]


def test_copies_of_a_topic_are_forwarded() -> None:
    queue = MovingQueue(forwarding(to()))
    command = c.StoreCopies(1)
    for hops in (0, 2):
        copy = SubscriptionCopy(1, b"copy")
        copy.hops = hops
        command.copies.append(copy)
    assert ready(queue.run(command)) == [TARGET]
    assert [record.hops for record in queue.pull()] == [1, 3]


def test_receivers_get_nothing_of_a_queue_that_forwards() -> None:
    queue = MovingQueue()
    queue.demand(7, 5)
    queue.change(forwarding(to()))
    effects = queue.run(c.Send(1, 1, 1, [draft()], False))
    assert not [effect for effect in effects if isinstance(effect, e.Delivered)]
    assert queue.receive(3) == [] and queue.waiting() == [b"x"]


def test_a_disabled_entity_and_a_full_store_forward_nothing() -> None:
    queue = MovingQueue(forwarding(to(), can_receive=False))
    queue.send(draft(b"a"))
    assert queue.contents(ACTIVE) == [b"a"]
    queue.machine.hold_due(True)
    queue.change(forwarding(to()))
    assert queue.contents(ACTIVE) == [b"a"] and not queue.machine.has_work(queue.now)
    queue.machine.hold_due(False)
    queue.tick()
    assert queue.waiting() == [b"a"]


def test_a_backlog_that_is_only_in_the_store_is_forwarded_page_by_page_in_order() -> None:
    bounds = Bounds()
    bounds.turn_messages, bounds.page_records, bounds.forwarded_records = 4, 3, 5
    queue = MovingQueue(bounds=bounds)
    for n in range(20):
        queue.send(draft(bytes([n])))
    queue.restart(clean=False)
    queue.change(forwarding(to()))
    assert 5 <= len(queue.waiting()) <= 9 and queue.stored.head.counts[ACTIVE] >= 11
    assert [record.content for record in queue.move_all()] == [bytes([n]) for n in range(20)]
    assert queue.stored.head.counts[ACTIVE] == 0


def test_a_backlog_follows_a_changed_target() -> None:
    bounds = Bounds()
    bounds.forwarded_records = 2
    queue = MovingQueue(bounds=bounds)
    queue.send(*(draft(bytes([n])) for n in range(6)))
    queue.change(forwarding(to()))
    waiting = len(queue.waiting())
    assert waiting < 6
    queue.change(forwarding(to(51)))
    assert len(queue.move_all(50)) == waiting
    assert len(queue.move_all(51)) == 6 - waiting


def test_what_is_in_the_outbox_keeps_its_target_when_forwarding_ends() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.send(draft(b"a"))
    queue.change(forwarding())
    queue.send(draft(b"b"))
    assert [r.content for r in queue.pull()] == [b"a"]
    assert [held.record.content for held in queue.receive(9)] == [b"b"]


# ---- where to ----


def test_a_key_chooses_the_fragment_of_the_target_once() -> None:
    queue = MovingQueue(forwarding(to(*ALL)))
    queue.send(keyed(session="s"), keyed(key="k"), keyed(message_id="m"), keyed("s", "s"))
    by_key = {key: ALL[index_of_key(key, 16)] for key in ("s", "k")}
    records = queue.in_lane(OUTBOX)
    assert [r.target for r in records if b"|m" not in (r.content or b"")] == [
        by_key["s"],
        by_key["k"],
        by_key["s"],
    ]
    assert len(queue.stored.outbox) == len({r.target for r in records})


def test_a_message_id_is_a_key_where_the_target_detects_duplicates() -> None:
    queue = MovingQueue(forwarding(to(*ALL, detects_duplicates=True)))
    queue.send(*(keyed(message_id=str(n)) for n in range(20)))
    assert [r.target for r in queue.in_lane(OUTBOX)] == [ALL[index_of_key(str(n), 16)] for n in range(20)]


def test_the_keys_of_messages_that_were_there_are_read_from_their_contents() -> None:
    queue = MovingQueue()
    queue.send(keyed(session="s"), keyed(key="k"))
    queue.restart(clean=False)
    queue.change(forwarding(to(*ALL)))
    assert [r.target for r in queue.in_lane(OUTBOX)] == [ALL[index_of_key(key, 16)] for key in "sk"]


def test_contradicting_keys_cannot_be_forwarded_to_a_partitioned_entity() -> None:
    queue = MovingQueue(forwarding(to(*ALL)))
    queue.send(keyed("s", "s"), keyed("s", "k"), keyed("s", "s"))
    assert len(queue.waiting()) == 2 and queue.contents(DEAD) == [b"|s|k|"]
    assert queue.reasons() == ["InvalidOperationException"]


def test_messages_without_a_key_go_to_all_fragments_in_runs_and_avoid_those_that_are_out() -> None:
    bounds = Bounds()
    bounds.outbox_run = 2
    queue = MovingQueue(forwarding(to(50, 51, 52)), bounds=bounds)
    queue.run(c.AvoidTargets(1, [51]))
    queue.send(*(draft(bytes([n])) for n in range(8)))
    targets = [r.target for r in queue.in_lane(OUTBOX)]
    assert targets == [52, 52, 50, 50, 52, 52, 50, 50]
    queue.run(c.AvoidTargets(1, []))
    queue.send(*(draft(bytes([n])) for n in range(6)))
    assert [r.target for r in queue.in_lane(OUTBOX)][8:] == [51, 51, 52, 52, 50, 50]
    queue.run(c.AvoidTargets(1, [50, 51, 52]))
    assert len(queue.send(draft(), draft())) == 2 and len(queue.waiting()) == 16
    assert [r.target for r in queue.in_lane(OUTBOX)][:8] == targets, "a record never changes its target"


def test_one_fragment_that_is_out_does_not_hold_up_the_others() -> None:
    bounds = Bounds()
    bounds.outbox_records, bounds.outbox_run = 2, 1
    queue = MovingQueue(forwarding(to(50, 51)), bounds=bounds)
    queue.send(*(draft(bytes([n])) for n in range(12)))
    assert len(queue.waiting()) == 12
    assert len(queue.move_all(51)) == 6 and len(queue.move_all(50)) == 6


# ---- hops, and targets that take nothing ----


def test_a_message_is_moved_four_times_and_then_dead_lettered() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.send(*(hopping(hops, bytes([hops])) for hops in range(MAX_HOPS + 1)))
    assert [r.hops for r in queue.in_lane(OUTBOX)] == [1, 2, 3, 4]
    assert queue.contents(DEAD) == [b"\x04"] and queue.reasons() == ["MaxTransferHopCountExceeded"]
    (dead,) = queue.in_lane(DEAD)
    assert dead.hops == 4


def test_a_dead_letter_with_too_many_hops_becomes_a_transfer_dead_letter() -> None:
    queue = MovingQueue(forwarding(to(), to(60)))
    queue.send(hopping(MAX_HOPS, b"far"))
    assert queue.transfer_dead() == [b"far"] and queue.contents(DEAD) == []
    assert queue.reasons(TRANSFER_DEAD) == ["MaxTransferHopCountExceeded"]
    assert [h.record.content for h in queue.receive(9, sub=TRANSFER_DEAD)] == [b"far"]


def test_the_source_dead_letters_what_a_missing_or_disabled_target_cannot_take() -> None:
    for takes, reason in (
        (TARGET_MISSING, "MessagingEntityNotFoundException"),
        (TARGET_DISABLED, "MessagingEntityDisabledException"),
    ):
        queue = MovingQueue(forwarding(to(takes=takes)))
        queue.send(draft(b"a"), draft(b"b"))
        assert queue.contents(DEAD) == [b"a", b"b"] and queue.reasons() == [reason] * 2
        assert queue.waiting() == []


def test_a_refused_record_goes_to_the_dead_letter_queue_and_its_move_does_not_count() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.send(hopping(2, b"a"), hopping(0, b"b"))
    queue.remove(0, refused=2, condition=EntityDisabled.condition, text="The entity is disabled.")
    assert [(r.content, r.hops, r.n, r.dead_letter_number) for r in queue.in_lane(DEAD)] == [
        (b"a", 2, 3, 1),
        (b"b", 0, 4, 2),
    ]
    assert queue.reasons() == ["MessagingEntityDisabledException"] * 2
    assert [h.n for h in queue.receive(9, sub=DEAD)] == [3, 4]


def test_a_record_without_a_session_says_so() -> None:
    queue = MovingQueue(forwarding(to()))
    queue.send(draft(b"a"))
    text = "A message without a SessionId cannot be sent to an entity that requires sessions."
    queue.remove(0, 1, InvalidOperation.condition, text)
    assert queue.reasons() == ["Session ID is null"]


# ---- dead letters ----


def dead_lettered(queue: MovingQueue, *contents: bytes) -> None:
    queue.send(*map(draft, contents))
    queue.settle(c.DEAD_LETTER, *queue.receive(len(contents)), overlay={"DeadLetterReason": b"\xa1\x01r"})


def test_dead_letters_are_forwarded_in_order_and_keep_their_reason() -> None:
    queue = MovingQueue(forwarding(None, to()))
    dead_lettered(queue, b"a", b"b")
    records = queue.pull()
    assert [(r.content, r.kind, r.hops) for r in records] == [
        (b"a", DEAD_FORWARD, 1),
        (b"b", DEAD_FORWARD, 1),
    ]
    assert records[0].overlay == {"DeadLetterReason": b"\xa1\x01r"} and queue.contents(DEAD) == []
    queue.move_all()
    assert queue.stored.head.size == 0


def test_a_dead_letter_whose_target_takes_nothing_stays() -> None:
    queue = MovingQueue(forwarding(None, to(takes=TARGET_MISSING)))
    dead_lettered(queue, b"a")
    assert queue.contents(DEAD) == [b"a"] and not queue.machine.has_work(queue.now)


def test_a_dead_letter_that_comes_back_is_not_forwarded_until_a_pause_is_over() -> None:
    queue = MovingQueue(forwarding(None, to()))
    dead_lettered(queue, b"a", b"b")
    for pause in (1_000, 2_000, 4_000):
        queue.remove(0, 2, EntityDisabled.condition)
        assert queue.waiting() == [] and queue.machine.wake_at() == queue.now + pause
        queue.now += pause - 1
        queue.tick()
        assert queue.waiting() == [] and not queue.machine.has_work(queue.now)
        queue.now += 1
        assert queue.machine.has_work(queue.now)
        queue.tick()
        assert queue.waiting() == [b"a", b"b"] and not queue.machine.has_work(queue.now)
    queue.remove(queue.pull()[0].n, 1, EntityDisabled.condition)  # one is taken
    assert queue.machine.wake_at() == queue.now + 1_000


def test_a_dead_letter_that_comes_back_is_not_forwarded_until_the_settings_change() -> None:
    queue = MovingQueue(forwarding(None, to()))
    dead_lettered(queue, b"a", b"b")
    queue.remove(0, 2, EntityNotFound.condition)
    assert queue.contents(DEAD) == [b"a", b"b"] and queue.waiting() == []
    assert [(r.hops, r.overlay) for r in queue.in_lane(DEAD)] == [(0, {"DeadLetterReason": b"\xa1\x01r"})] * 2
    queue.tick()
    assert queue.waiting() == [] and not queue.machine.has_work(queue.now)
    queue.change(forwarding(None, to(51)))
    assert [r.content for r in queue.pull(51)] == [b"a", b"b"]


def test_a_dead_letter_waits_for_a_full_target_however_long_and_an_unacceptable_one_goes() -> None:
    queue = MovingQueue(forwarding(None, to(), patience=0))
    dead_lettered(queue, b"a")
    for condition in (QuotaExceeded.condition, ServerBusy.condition):
        queue.now += 10**9
        queue.remove(0, 1, condition)
    assert queue.waiting() == [b"a"]
    queue.remove(0, 1, InvalidOperation.condition, "No.")
    assert queue.transfer_dead() == [b"a"]


def test_both_kinds_of_forwarding_at_once() -> None:
    queue = MovingQueue(forwarding(to(takes=TARGET_DISABLED), to(60)))
    queue.send(draft(b"a"))
    (record,) = queue.pull(60)
    assert (record.content, record.kind, record.hops) == (b"a", DEAD_FORWARD, 1)


# ---- sessions, taps, undo ----


def test_an_entity_with_sessions_forwards_all_of_them() -> None:
    bounds = Bounds()
    bounds.page_records = 3
    queue = MovingQueue(forwarding(requires_session=True), bounds=bounds)
    for n in range(7):
        queue.send(keyed(session="ab"[n % 2]))
    (accepted, *_) = queue.run(c.AcceptSession(1, 1, 5, 7, "a"))
    assert isinstance(accepted, e.SessionAccepted)
    (delivered,) = queue.demand(7, 2)
    assert isinstance(delivered, e.Delivered) and len(delivered.records) == 2
    queue.change(forwarding(to(), requires_session=True))
    assert len(queue.waiting()) == 5
    assert [record.session_id for record in queue.pull()] == ["b", "b", "a", "b", "a"]
    queue.run(c.Leave(1, 1, 7))
    assert len(queue.waiting()) == 7 and queue.stored.sessions == {}
    queue.send(keyed(session="c"))
    assert queue.stored.head.counts[ACTIVE] == 0
    assert refusal(queue.run(c.AcceptSession(1, 1, 5, 8, "a"))[0]) == InvalidOperation.condition


def test_a_session_record_that_is_refused_keeps_its_session() -> None:
    queue = MovingQueue(forwarding(to(), requires_session=True))
    queue.send(keyed(session="s"))
    queue.remove(queue.pull()[0].n - 1, 1, EntityDisabled.condition)
    (dead,) = queue.in_lane(DEAD)
    assert dead.session_id == "s"


def test_a_tap_sees_a_message_under_its_own_number_and_its_end_as_forwarded() -> None:
    tap = TapSettings(4, "tap", ACTIVE, events=True, start=EARLIEST)
    queue = MovingQueue(forwarding(to(), taps=[tap]))
    queue.send(draft(b"a"))
    assert queue.contents(KEPT) == [b"a"] and queue.waiting() == [b"a"]
    assert [(event.n, event.outcome) for event in queue.stored.events] == [(1, e.FORWARDED)]
    (page, *_) = queue.run(c.ReadTap(1, 1, 5, 4, ACTIVE, c.MESSAGES, 0, 99, 10, 1 << 20))
    assert isinstance(page, e.TapPage) and page.contents == [b"a"]
    queue.move_all()
    assert len(queue.stored.events) == 1


def test_an_undone_sweep_never_was() -> None:
    queue = MovingQueue()
    queue.send(draft(b"a"), draft(b"b"))
    queue.group = True
    queue.change(forwarding(to()))
    queue.machine.settings = forwarding()
    queue.fail()
    assert queue.contents(ACTIVE) == [b"a", b"b"] and queue.waiting() == []
    assert [held.record.content for held in queue.receive(9)] == [b"a", b"b"]
