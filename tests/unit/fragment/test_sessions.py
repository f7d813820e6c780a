"""Message sessions: one holder, in order, counted by the table, and a state that stays."""

from __future__ import annotations

import pytest

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import OVERHEAD
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEFERRED
from tests.unit.fragment.queue import LOCK, lost, numbers, refusal
from tests.unit.fragment.session_queue import SessionQueue, of, session_settings

LOST = "com.microsoft:session-lock-lost"


def test_a_holder_gets_its_session_in_order_and_nothing_else() -> None:
    queue = SessionQueue()
    queue.send_to("a", "b", "a", "b", "a")
    a, b = queue.accept("a"), queue.accept("b")
    assert numbers(b.take(9)) == [2, 4]
    assert numbers(a.take(2)) == [1, 3]
    assert numbers(a.take(9)) == [5]


def test_a_message_without_a_session_is_refused_by_itself_or_with_its_batch() -> None:
    queue = SessionQueue()
    answer = queue.run(c.Send(1, 1, 1, [of("a"), of(None), of("")], False))[0]
    assert isinstance(answer, e.Sent)
    assert answer.numbers == [1, 0, 2]
    assert [(index, condition) for index, condition, _ in answer.refused] == [(1, "amqp:not-allowed")]
    assert refusal(queue.run(c.Send(1, 1, 2, [of("a"), of(None)], True))[0]) == "amqp:not-allowed"
    assert queue.counts()[ACTIVE] == 2


def test_a_held_session_cannot_be_accepted_and_an_empty_or_new_one_can() -> None:
    queue = SessionQueue()
    queue.accept("a")
    assert refusal(queue.ask("a")[1]) == "com.microsoft:session-cannot-be-locked"
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"
    queue.accept("b").close()
    queue.accept("b")


def test_the_empty_id_is_a_session_like_any_other() -> None:
    queue = SessionQueue()
    queue.send_to("", "a", "")
    receiver = queue.accept()
    assert receiver.session == "", "it was the first to wait"
    assert numbers(receiver.take(9)) == [1, 3]
    assert refusal(queue.ask("")[1]) == "com.microsoft:session-cannot-be-locked"
    queue.accept("a")
    receiver.close()
    assert numbers(queue.accept("").take(9)) == [1, 3]


def test_a_consumer_holds_one_session() -> None:
    queue = SessionQueue()
    consumer = queue.accept("a").consumer
    assert refusal(queue.run(c.AcceptSession(1, 1, 5, consumer, "b"))[0]) == "amqp:not-allowed"


def test_later_messages_flow_to_the_holder() -> None:
    queue = SessionQueue()
    receiver = queue.accept("reply")
    assert receiver.demand(2) == []
    effects = queue.run(c.Send(1, 1, 1, [of("other"), of("reply"), of("reply"), of("reply")], False))
    (delivered,) = [effect for effect in effects if isinstance(effect, e.Delivered)]
    assert [record.n for record in delivered.records] == [2, 3]
    assert (delivered.consumer, delivered.until) == (receiver.consumer, receiver.until)


def test_who_holds_no_session_gets_nothing_and_hears_why() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    (effect,) = queue.run(c.Demand(1, 1, 77, ACTIVE, 5, False, False))
    assert isinstance(effect, e.SessionLost) and effect.consumer == 77


def test_the_dead_letter_queue_has_no_sessions() -> None:
    queue = SessionQueue()
    queue.send_to("a", "b")
    for session in ("a", "b"):
        receiver = queue.accept(session)
        queue.settle(c.DEAD_LETTER, *receiver.take())
    dead = queue.receive(9, DEAD)
    assert [m.record.session_id for m in dead] == ["a", "b"]
    assert isinstance(queue.renew(*dead), e.Renewed)
    assert queue.list() == []


# ---- the line ----


def test_sessions_are_accepted_in_the_order_in_which_they_began_to_wait() -> None:
    queue = SessionQueue()
    queue.send_to("c", "a", "c", "b")
    assert [queue.accept().session for _ in range(3)] == ["c", "a", "b"]
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"


def test_a_session_that_is_given_up_goes_to_the_end_of_the_line() -> None:
    queue = SessionQueue()
    queue.send_to("a", "b", "c")
    first = queue.accept()
    first.take()
    first.close()
    assert [queue.accept().session for _ in range(3)] == ["b", "c", "a"]


def test_the_line_survives_and_those_that_were_held_are_in_it() -> None:
    queue = SessionQueue()
    queue.send_to("a", "b", "c")
    queue.accept().close()
    queue.accept()
    queue.restart(clean=True)
    assert [queue.accept().session for _ in range(3)] == ["b", "c", "a"]


def test_a_session_with_only_deferred_messages_does_not_wait_but_can_be_accepted() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    receiver = queue.accept()
    queue.settle(c.DEFER, *receiver.take())
    receiver.close()
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"
    again = queue.accept("a")
    assert isinstance(again.deferred(1), e.DeferredReceived)


def test_who_awaits_is_told_once_as_many_as_sessions_wait() -> None:
    queue = SessionQueue()
    for request in (11, 12, 13):
        assert queue.run(c.AwaitSession(1, 1, request)) == []
    assert [effect.request for effect in queue.run(c.Send(1, 1, 1, [of("a")], False))] == [1, 11]
    # The offer is not used: after a while it goes to the next.
    queue.now = queue.machine.wake_at()
    assert [effect.request for effect in queue.tick()] == [12]
    # It is refused, so another may have it at once.
    assert [effect.request for effect in queue.run(c.CancelAwait(1, 1, 12))] == [13]
    assert queue.accept().session == "a"
    assert queue.machine.wake_at() == queue.now + LOCK


def test_awaits_end_with_their_cancel_and_their_origin() -> None:
    queue = SessionQueue()
    queue.run(c.AwaitSession(1, 1, 11))
    queue.run(c.AwaitSession(1, 2, 12))
    queue.run(c.AwaitSession(1, 1, 13))
    queue.run(c.CancelAwait(1, 1, 11))
    queue.run(c.Leave(1, 2, 0))
    assert [command.request for command in queue.machine.awaits()] == [13]
    effects = queue.run(c.Send(1, 1, 1, [of("a"), of("b"), of("c")], False))
    assert [effect.request for effect in effects] == [1, 13]


def test_an_await_is_answered_at_once_when_a_session_waits() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    (effect,) = queue.run(c.AwaitSession(1, 1, 11))
    assert isinstance(effect, e.SessionOffered) and effect.request == 11


# ---- the end of a session ----


def test_closing_counts_nothing() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a")
    receiver = queue.accept("a")
    taken = receiver.take(2)
    assert receiver.close() == []
    assert lost(queue.settle(c.COMPLETE, *taken)) == [0, 1]
    again = queue.accept("a").take(2)
    assert [(m.n, m.record.deliveries) for m in again] == [(1, 0), (2, 0)]


def test_the_end_by_time_counts_what_is_locked_and_nothing_else() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a", "a")
    receiver = queue.accept("a")
    taken = receiver.take(2)
    queue.settle(c.COMPLETE, taken[0])
    (effect,) = queue.pass_time(LOCK)
    assert isinstance(effect, e.SessionLost) and effect.consumer == receiver.consumer
    assert lost(queue.settle(c.COMPLETE, taken[1])) == [0]
    assert refusal(receiver.renew()) == LOST
    assert [(m.n, m.record.deliveries) for m in queue.accept().take(9)] == [(2, 1), (3, 0)]


def test_the_end_by_time_dead_letters_at_the_last_delivery() -> None:
    queue = SessionQueue(session_settings(max_deliveries=1))
    queue.send_to("a")
    queue.accept().take()
    queue.pass_time(LOCK)
    assert queue.counts()[:2] == [0, 1]
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"


@pytest.mark.parametrize("clean", [True, False])
def test_the_end_of_the_process_counts_nothing(clean: bool) -> None:
    queue = SessionQueue()
    queue.send_to("a")
    queue.accept().take()
    queue.restart(clean)
    assert [(m.n, m.record.deliveries) for m in queue.accept().take()] == [(1, 0)]


def test_renewing_a_session_renews_what_is_under_it() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    receiver = queue.accept()
    taken = receiver.take()
    assert taken[0].until == receiver.until == queue.now + LOCK
    queue.pass_time(LOCK - 1)
    renewed = receiver.renew()
    assert isinstance(renewed, e.Renewed) and renewed.until == queue.now + LOCK
    assert queue.pass_time(LOCK - 1) == []
    assert lost(queue.settle(c.COMPLETE, *taken)) == []


def test_a_message_lock_is_not_renewed_by_itself() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    assert refusal(queue.renew(*queue.accept().take())) == "amqp:not-allowed"


# ---- settlements ----


def test_an_abandoned_message_is_the_next_one_again() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a", "a")
    receiver = queue.accept()
    first = receiver.take(2)
    queue.settle(c.ABANDON, first[0])
    again = receiver.take()
    assert [(m.n, m.record.deliveries) for m in again] == [(1, 1)]
    assert numbers(receiver.take()) == [3]


def test_a_deferred_message_leaves_the_others_in_order_and_is_its_holders() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a", "b")
    receiver, other = queue.accept("a"), queue.accept("b")
    queue.settle(c.DEFER, *receiver.take())
    assert numbers(receiver.take()) == [2]
    assert refusal(other.deferred(1)) == LOST
    assert refusal(receiver.deferred(9)) == "com.microsoft:message-not-found"
    answer = receiver.deferred(1)
    assert isinstance(answer, e.DeferredReceived) and answer.until == receiver.until
    receiver.close()
    assert queue.counts()[DEFERRED] == 1
    assert refusal(receiver.deferred(1)) == LOST
    assert isinstance(queue.accept("a").deferred(1), e.DeferredReceived)


def test_receive_and_delete() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a")
    receiver = queue.accept()
    assert [(m.n, m.until) for m in receiver.take(9, delete=True)] == [(1, 0), (2, 0)]
    assert queue.list() == []


def test_a_scheduled_message_joins_its_session_when_it_is_due() -> None:
    queue = SessionQueue()
    queue.send(of("a", scheduled=queue.now + 50))
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"
    receiver = queue.accept("a")
    receiver.demand(1)
    (effect,) = queue.pass_time(50)
    assert isinstance(effect, e.Delivered) and effect.records[0].session_id == "a"


# ---- time to live ----


@pytest.mark.parametrize("dead_letter", [True, False])
def test_one_expired_message_takes_its_whole_session_with_it(dead_letter: bool) -> None:
    queue = SessionQueue(session_settings(dead_letter_on_expiration=dead_letter))
    queue.send(of("a"), of("a", ttl=50), of("b"), of("a"))
    queue.pass_time(60)
    assert queue.counts()[:2] == [4, 0], "nobody listens"
    assert queue.accept("a").take(9) == []
    assert queue.counts()[:2] == [1, 3 if dead_letter else 0]
    reasons = {(r.overlay or {}).get("DeadLetterReason") for r in queue.dead_letters()}
    assert reasons == ({b"\xa1\x13TTLExpiredException"} if dead_letter else set())


def test_an_accept_of_the_next_session_passes_over_one_that_has_expired() -> None:
    queue = SessionQueue()
    queue.send(of("a", ttl=50), of("a"), of("b"))
    queue.pass_time(60)
    assert queue.accept().session == "b"
    queue.tick()
    assert queue.counts()[ACTIVE] == 1
    assert queue.list() == ["b"]


def test_who_awaits_is_not_offered_what_has_expired() -> None:
    queue = SessionQueue()
    queue.send(of("a", ttl=50), of("b", ttl=50), of("b"))
    queue.pass_time(60)
    assert queue.run(c.AwaitSession(1, 1, 11)) == []
    assert queue.counts()[ACTIVE] == 0


def test_messages_in_flight_go_when_they_come_back_and_a_settlement_wins() -> None:
    queue = SessionQueue()
    queue.send(of("a"), of("a"), of("a", ttl=50))
    receiver = queue.accept()
    one, two = receiver.take(2)
    queue.pass_time(60)
    assert receiver.take(9) == []
    assert queue.counts()[ACTIVE] == 2
    assert lost(queue.settle(c.COMPLETE, one)) == []
    assert lost(queue.settle(c.ABANDON, two)) == []
    assert queue.counts()[ACTIVE] == 0
    queue.send_to("a")
    assert numbers(receiver.take(9)) == [4]


def test_a_locked_message_that_expires_does_not_take_the_others_before_it_comes_back() -> None:
    queue = SessionQueue()
    queue.send(of("a", ttl=50), of("a"))
    receiver = queue.accept()
    receiver.take()
    queue.pass_time(60)
    assert numbers(receiver.take()) == [2]


# ---- state, lists, peek, purge ----


def test_a_state_is_null_until_it_is_set_and_outlives_its_messages_and_its_holder() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    receiver = queue.accept()
    assert receiver.state() is None
    assert isinstance(receiver.write(b""), e.Done)
    assert receiver.state() == b""
    receiver.write(b"step 2")
    queue.settle(c.COMPLETE, *receiver.take())
    receiver.close()
    queue.restart(clean=False)
    again = queue.accept("a")
    assert again.state() == b"step 2"
    assert queue.list() == ["a"]
    again.write(None)
    assert again.state() is None
    assert queue.list() == []
    assert queue.stored.head.size == 0


def test_a_session_never_expires() -> None:
    """A year passes, with a restart in it: messages, their order and the state are there, and what comes is behind them."""
    year = 366 * 86_400_000
    queue = SessionQueue()
    queue.send_to("a", "a")
    receiver = queue.accept()
    queue.settle(c.COMPLETE, *receiver.take())
    receiver.write(b"step 1")
    receiver.close()
    queue.pass_time(year // 2)
    queue.restart(clean=True)
    queue.pass_time(year // 2)
    queue.send_to("a")
    heir = queue.accept()
    assert (heir.session, heir.state()) == ("a", b"step 1")
    assert numbers(heir.take(5)) == [2, 3]
    heir.write(None)


def test_a_state_counts_towards_the_quota() -> None:
    """With the id of its session, so that an empty one counts too."""
    beside = OVERHEAD + len("a")
    queue = SessionQueue(session_settings(quota_bytes=1000 + beside))
    receiver = queue.accept("a")
    assert isinstance(receiver.write(b""), e.Done)
    assert queue.stored.head.size == beside
    assert refusal(receiver.write(b"y" * 1001)) == "amqp:resource-limit-exceeded"
    assert isinstance(receiver.write(b"y" * 900), e.Done)
    assert isinstance(receiver.write(b"z" * 1000), e.Done)
    assert queue.stored.head.size == 1000 + beside
    assert isinstance(receiver.write(b"less"), e.Done)
    queue.send_to("a")


def test_a_state_is_its_holders() -> None:
    queue = SessionQueue()
    receiver = queue.accept("a")
    queue.pass_time(LOCK)
    assert refusal(receiver.write(b"x")) == LOST
    assert refusal(queue.run(c.GetSessionState(1, 1, 5, receiver.consumer))[0]) == LOST


def test_sessions_are_listed_by_messages_or_state_and_by_the_time_of_the_state() -> None:
    queue = SessionQueue()
    queue.send_to("b", "a")
    queue.accept("c").write(b"old")
    then = queue.now
    queue.pass_time(10)
    queue.accept("d").write(b"new")
    assert queue.list() == ["a", "b", "c", "d"]
    assert queue.list(after="a", top=2) == ["b", "c"]
    assert queue.list(updated_after=then) == ["d"]


def test_peek_within_a_session_needs_no_lock() -> None:
    queue = SessionQueue()
    queue.send_to("a", "b", "a")
    receiver = queue.accept("a")
    queue.settle(c.DEFER, *receiver.take())
    answer = queue.run(c.Peek(1, 1, 5, ACTIVE, 0, 10, 9999, "a"))[0]
    assert isinstance(answer, e.Peeked)
    assert [(r.n, lane) for r, lane in zip(answer.records, answer.lanes, strict=True)] == [
        (1, DEFERRED),
        (3, ACTIVE),
    ]
    assert queue.peeked() == [1, 2, 3]


def test_a_session_is_inspected_without_holding_it() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a", "b")

    def inspected(session: str, with_state: bool = False) -> tuple[int, int, int, bytes | None]:
        answer = queue.run(c.InspectSession(1, 1, 5, session, with_state))[0]
        assert isinstance(answer, e.SessionInspected)
        return answer.until, answer.locked, answer.size, answer.state

    assert inspected("a") == (0, 0, -1, None)
    receiver = queue.accept("a")
    receiver.take()
    receiver.write(b"half")
    until, locked, size, state = inspected("a", with_state=True)
    assert until > queue.now and locked == 1 and size > len(b"half") and state == b"half"
    assert inspected("a")[3] is None
    assert inspected("b") == inspected("new") == (0, 0, -1, None)
    queue.pass_time(until - queue.now)
    assert inspected("a")[:2] == (0, 0)


def test_a_peek_shows_until_when_a_message_of_a_session_is_locked() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a")
    receiver = queue.accept("a")
    (held,) = receiver.take()
    answer = queue.run(c.Peek(1, 1, 5, ACTIVE, 0, 10, 9999, None, True))[0]
    assert isinstance(answer, e.Peeked)
    assert held.n == 1 and answer.locked[0] > queue.now and answer.locked[1] == 0


def test_purge_of_a_session_and_of_all() -> None:
    queue = SessionQueue()
    queue.send_to("a", "b", "a", "b")
    receiver = queue.accept("a")
    receiver.take()
    answer = queue.run(c.Purge(1, 1, 5, ACTIVE, 1 << 60, 10, "a"))[0]
    assert isinstance(answer, e.Purged) and answer.count == 1
    assert queue.purge() == 2
    assert queue.list() == ["a"]
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"


@pytest.mark.parametrize("expires", [False, True], ids=["dead-lettered", "expired"])
def test_a_session_lock_that_ends_while_a_purge_reads_takes_nothing_out_twice(expires: bool) -> None:
    queue = SessionQueue(session_settings(max_deliveries=10 if expires else 1))
    queue.send(of("a", ttl=10 if expires else 0), of("a", ttl=10), of("b"))
    receiver = queue.accept("a")
    receiver.take()  # 1 is locked
    if expires:
        queue.now += 20
        receiver.take()  # all of the session has expired: 2 goes now, and 1 when it comes back
        queue.send_to("a")
    queue.read_ms = LOCK
    assert queue.purge() == 2, "what is not locked goes, and what was locked is gone by its own way"
    queue.tick()
    assert queue.counts() == [0, 0 if expires else 1, 0, 0, 0]
    assert queue.stored.head.size == sum(
        record.size for lane in queue.stored.lanes for record in lane.records.values()
    )
    queue.send_to("a")
    queue.restart(clean=False)
    assert queue.list() == ["a"] and len(queue.peeked()) == 1
    assert len(numbers(queue.accept("a").take(9))) == 1


def test_a_session_that_ends_while_sessions_are_listed_is_in_the_list() -> None:
    queue = SessionQueue(session_settings(max_deliveries=1))
    queue.send_to("a", "b")
    queue.accept("a").take()
    queue.read_ms = LOCK
    assert queue.list() == ["a", "b"]
    assert queue.list() == ["b"]


def test_a_disabled_entity_hands_out_no_sessions() -> None:
    queue = SessionQueue(session_settings(can_receive=False))
    queue.send_to("a")
    assert refusal(queue.ask("a")[1]) == "com.microsoft:entity-disabled"
    assert queue.run(c.AwaitSession(1, 1, 11)) == []
    queue.machine.settings = session_settings()
    assert [effect.request for effect in queue.tick()] == [11]


def test_a_queue_without_sessions_knows_none() -> None:
    from tests.unit.fragment.queue import Queue, settings

    queue = Queue(settings())
    assert refusal(queue.run(c.AcceptSession(1, 1, 5, 6, "a"))[0]) == "amqp:not-implemented"
    assert queue.run(c.CancelAwait(1, 1, 5)) == []


# ---- memory ----


def test_a_page_of_the_line_is_in_memory_and_read_once() -> None:
    bounds = Bounds()
    bounds.line_page, bounds.line_sessions = 10, 20
    queue = SessionQueue(bounds=bounds)
    queue.send_to(*(f"s{i}" for i in range(300)))
    queue.restart(clean=False)
    sessions = queue.machine._state.sessions
    assert sessions is not None
    queue.reads = 0
    for i in range(300):
        receiver = queue.accept()
        assert receiver.session == f"s{i}"
        assert len(sessions.line) <= 10
        receiver.take(1, delete=True)
        receiver.close()
        assert not sessions.held
    assert queue.reads <= 300 + 300 // 10 + 1, "a page for each session, and one for ten in the line"
