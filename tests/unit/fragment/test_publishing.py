"""Topics: what a fragment passes on, and what the fragment of a subscription makes of it."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import OVERHEAD
from busbar.fragment.publishing import STEPS
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.entities import SubscriptionDescription, TopicDescription
from busbar.model.errors import BatchOver, NoMatchingSubscription, QuotaExceeded, ServerBusy
from busbar.model.message import ACTIVE, DEAD, SCHEDULED, VIA, Draft, SharedCopies, SubscriptionCopy
from busbar.model.topic_settings import TopicRules, TopicSettings
from busbar.rules.selection import SubscriptionRules, TopicSelector
from tests.unit.fragment.queue import NOW, Queue, draft, refusal

SOME, OTHERS = 11, 12
TOPIC = TopicDescription()
SUBSCRIPTION = SubscriptionDescription()
SUBSCRIBED = TopicSettings(0, (SOME, OTHERS), TopicRules(()))
NONE = SubscriptionRules((), False, uuid4)


class ByFirstByte(TopicSelector):
    """One subscription takes what begins with 's' or 'b', another what begins with 'o' or 'b'; '!' troubles both."""

    def __init__(self) -> None:
        super().__init__(0, [(SOME, NONE), (OTHERS, NONE)])
        self.asked: list[tuple[bytes, int, int, int]] = []
        self.steps = 0  # for each message

    def spent(self) -> int:
        return self.steps * len(self.asked)

    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        self.asked.append((content, n, now, ttl))
        if content[:1] == b"!":
            return [
                SubscriptionCopy(fragment, content, "FilterException", "why") for fragment in self.fragments
            ]
        wanted = {b"s": [SOME], b"o": [OTHERS], b"b": [SOME, OTHERS]}
        return [SubscriptionCopy(fragment, content) for fragment in wanted.get(content[:1], [])]


def topic(description: TopicDescription = TOPIC) -> tuple[Queue, ByFirstByte]:
    settings = description.fragment_settings()
    settings.topic = SUBSCRIBED
    rules = ByFirstByte()
    queue = Queue(settings)
    queue.selector = rules
    return queue, rules


def passed_on(queue: Queue) -> dict[int, list[bytes]]:
    return {
        taking.fragment: [copy.content for copy in taking.copies] for taking in queue.machine.take_copies()
    }


def subscription(description: SubscriptionDescription = SUBSCRIPTION) -> Queue:
    return Queue(description.fragment_settings())


def take(queue: Queue, *copies: SubscriptionCopy) -> None:
    command = c.StoreCopies(1)
    command.copies = list(copies)
    assert queue.machine.needs(command, queue.now) == [], "a subscription takes copies without a read"
    queue.run(command)


def copy(content: bytes, ttl: int = 0, session: str | None = None, reason: str = "") -> SubscriptionCopy:
    one = SubscriptionCopy(1, content, reason, "why" if reason else "")
    one.ttl = ttl
    one.session_id = session
    return one


class TestFanOut:
    """Two copies of each message, four in a turn."""

    def topic(self, copies: int = 4, size: int = 1 << 20, description: TopicDescription = TOPIC) -> Queue:
        settings = description.fragment_settings()
        settings.topic = SUBSCRIBED
        bounds = Bounds()
        bounds.fan_out_copies, bounds.fan_out_bytes = copies, size
        queue = Queue(settings, bounds=bounds)
        queue.selector = ByFirstByte()
        return queue

    def send(self, queue: Queue, count: int, atomic: bool = True, size: int = 1) -> e.Sent:
        drafts = [draft(b"b" * size + str(n).encode()) for n in range(count)]
        answer = queue.step(c.Send(1, 1, 5, drafts, atomic))[0]
        assert isinstance(answer, e.Sent)
        return answer

    def turns(self, queue: Queue, size: int = 1) -> list[list[int]]:
        """Which messages each turn passes on; each goes to both subscriptions."""
        turns = []
        while passed := passed_on(queue):
            assert passed[SOME] == passed[OTHERS]
            turns.append([int(content[size:]) for content in passed[SOME]])
            queue.step(c.Tick(1))
        return turns

    @pytest.mark.parametrize("atomic", [False, True])
    def test_a_large_send_is_kept_at_once_and_passed_on_in_turns(self, atomic: bool) -> None:
        queue = self.topic()
        assert self.send(queue, 7, atomic).numbers == [1, 2, 3, 4, 5, 6, 7]
        assert queue.stored.head.counts[SCHEDULED] == 5, "the rest is durable with the first"
        assert queue.machine.owes_copies() and queue.machine.has_work(queue.now)
        assert self.turns(queue) == [[0, 1], [2, 3], [4, 5], [6]]
        assert not queue.machine.owes_copies() and not queue.machine.has_work(queue.now)
        assert queue.counts() == [0] * 5 and queue.stored.head.size == 0
        assert queue.selector.asked[-1][1] == 12, "numbers rise"  # type: ignore[union-attr]

    def test_what_is_owed_is_passed_on_after_a_crash_before_what_is_due(self) -> None:
        queue = self.topic()
        queue.run(c.Send(1, 1, 4, [draft(b"b9", scheduled=NOW + 10)], False))
        self.send(queue, 5)
        assert passed_on(queue)[SOME] == [b"b0", b"b1"]
        queue.now += 20
        queue.restart(clean=False)
        assert queue.machine.owes_copies()
        queue.step(c.Tick(1))
        assert self.turns(queue) == [[2, 3], [4, 9]]

    def test_bytes_are_bounded_too_and_a_message_is_never_split(self) -> None:
        queue = self.topic(copies=1000, size=500)
        self.send(queue, 4, size=100)
        assert self.turns(queue, size=100) == [[0, 1], [2, 3]]
        queue = self.topic(copies=1)
        self.send(queue, 2)
        assert self.turns(queue) == [[0], [1]]

    def test_what_rules_spend_counts(self) -> None:
        queue = self.topic(copies=10)
        queue.selector.steps = 3 * STEPS  # type: ignore[union-attr]
        self.send(queue, 4)
        assert self.turns(queue) == [[0, 1], [2, 3]]

    def test_a_sender_that_waits_for_rules_is_told_no_more_than_fits_into_a_turn(self) -> None:
        description = replace(TOPIC, filtering_messages_before_publishing=True)
        queue = self.topic(copies=1000, description=description)
        queue.selector.steps = queue.machine._state.bounds.judging_steps // 2  # type: ignore[union-attr]
        answer = self.send(queue, 3, atomic=False)
        assert [n > 0 for n in answer.numbers] == [True, True, False]
        assert [(at, condition) for at, condition, _ in answer.refused] == [(2, ServerBusy.condition)]
        assert self.turns(queue) == [[0], [1]]
        batch = queue.step(c.Send(1, 1, 6, [draft(b"b1"), draft(b"b2"), draft(b"b3")], True))
        assert isinstance(batch[0], e.Refused) and batch[0].condition == ServerBusy.condition
        assert self.send(queue, 2).refused == []

    def test_what_is_owed_counts_against_the_quota_with_its_copies(self) -> None:
        description = replace(TOPIC, max_size_in_megabytes=1)
        size = 1 << 17
        queue = self.topic(copies=2, description=description)
        answer = self.send(queue, 12, atomic=False, size=size)
        assert [n > 0 for n in answer.numbers] == [True] * 4 + [False] * 8
        assert {condition for _, condition, _ in answer.refused} == {QuotaExceeded.condition}

    def test_a_batch_is_in_the_topic_as_a_whole_although_its_copies_exceed_the_quota(self) -> None:
        """A part of it was refused once, and the rest kept."""
        description = replace(TOPIC, max_size_in_megabytes=1)
        queue = self.topic(copies=1000, size=1 << 30, description=description)
        answer = self.send(queue, 6, size=1 << 17)
        assert answer.refused == [] and len(passed_on(queue)[SOME]) == 6


class TestTopic:
    def test_it_keeps_a_number_and_nothing_else(self) -> None:
        queue, rules = topic()
        assert queue.send(draft(b"s1"), draft(b"b2"), draft(b"n3")) == [1, 2, 3]
        assert passed_on(queue) == {SOME: [b"s1", b"b2"], OTHERS: [b"b2"]}
        assert passed_on(queue) == {}, "once"
        assert queue.counts() == [0, 0, 0, 0, 0]
        assert [n for _, n, _, _ in rules.asked] == [1, 2, 3]
        queue.restart(clean=False)
        assert queue.send(draft(b"s4")) == [4], "a number is durable although no message is"

    def test_a_message_may_live_as_long_as_the_topic_allows(self) -> None:
        queue, rules = topic(replace(TOPIC, default_message_time_to_live=1000))
        queue.send(draft(b"s1"), draft(b"s2", ttl=10), draft(b"s3", ttl=5000))
        assert [ttl for _, _, _, ttl in rules.asked] == [1000, 10, 1000]
        assert [one.ttl for taking in queue.machine.take_copies() for one in taking.copies] == [
            1000,
            10,
            1000,
        ]

    def test_a_scheduled_message_is_judged_when_it_is_due(self) -> None:
        queue, rules = topic()
        queue.run(c.Send(1, 1, 1, [Draft(b"b1", "", "a session", None, 0, NOW + 50)], True))
        assert queue.counts()[SCHEDULED] == 1
        assert passed_on(queue) == {} and rules.asked == []
        queue.pass_time(50)
        [first, second] = queue.machine.take_copies()
        assert [first.copies[0].session_id, second.copies[0].session_id] == ["a session"] * 2
        assert rules.asked == [(b"b1", 2, NOW + 50, 0)], "with a new number"
        assert queue.counts()[SCHEDULED] == 0

    def test_a_cancelled_one_is_not_passed_on(self) -> None:
        queue, _rules = topic()
        [n] = queue.send(draft(b"s1", scheduled=NOW + 50))
        queue.run(c.CancelScheduled(1, 1, 2, [n]))
        queue.pass_time(50)
        assert passed_on(queue) == {}

    def test_a_duplicate_is_passed_on_once(self) -> None:
        queue, _rules = topic(replace(TOPIC, requires_duplicate_detection=True))
        for request in (1, 2):
            queue.run(c.Send(1, 1, request, [Draft(b"s1", "id", None, None, 0, 0)], False))
        assert passed_on(queue) == {SOME: [b"s1"]}

    def test_what_nobody_selects_is_refused_if_the_topic_wants_that(self) -> None:
        queue, _rules = topic(replace(TOPIC, filtering_messages_before_publishing=True))
        [answer] = queue.run(c.Send(1, 1, 1, [draft(b"s1"), draft(b"n2"), draft(b"s3")], False))
        assert isinstance(answer, e.Sent)
        assert answer.numbers == [1, 0, 3], "the number of a refused message stays unused"
        assert [condition for _, condition, _ in answer.refused] == [NoMatchingSubscription.condition]
        [answer] = queue.run(c.Send(1, 1, 2, [draft(b"s4"), draft(b"n5")], True))
        assert refusal(answer) == NoMatchingSubscription.condition
        assert passed_on(queue) == {SOME: [b"s1", b"s3"]}

    def test_all_copies_count_towards_the_quota(self) -> None:
        size = 100 + OVERHEAD
        queue, _rules = topic()
        queue.machine.settings.quota_bytes = 4 * size
        queue.machine.set_topic_usage(2 * size)
        [answer] = queue.run(c.Send(1, 1, 1, [draft(b"b" * 100), draft(b"b" * 100)], False))
        assert isinstance(answer, e.Sent)
        assert [condition for _, condition, _ in answer.refused] == [QuotaExceeded.condition]
        assert f"{4 * size} bytes" in answer.refused[0][2]
        assert [len(contents) for contents in passed_on(queue).values()] == [1, 1]


class TestToPublish:
    """What the commit loop evaluates rules for, before the machine applies a command."""

    def asked(self, queue: Queue, *drafts: Draft, atomic: bool = False) -> list[tuple[int, bytes, int]]:
        found = queue.machine.to_publish(c.Send(1, 1, 1, list(drafts), atomic), queue.now)
        return [(one.n, one.content, one.ttl) for one in found]

    def test_a_message_has_the_number_of_its_place_in_the_send(self) -> None:
        queue, rules = topic(replace(TOPIC, default_message_time_to_live=1000))
        queue.send(draft(b"s1"))
        later = draft(b"s3", scheduled=NOW + 50)
        assert self.asked(queue, draft(b"n2"), later, draft(b"s4", ttl=10)) == [
            (2, b"n2", 1000),
            (4, b"s4", 10),
        ]
        assert len(rules.asked) == 1, "asking changes nothing and evaluates nothing"
        assert queue.send(draft(b"n2"), later, draft(b"s4")) == [2, 3, 4]

    def test_a_message_has_the_number_that_its_rules_saw(self) -> None:
        queue, rules = topic(replace(TOPIC, filtering_messages_before_publishing=True))
        numbers = queue.send(draft(b"n1"), draft(b"s2"), draft(b"n3"), draft(b"s4"), draft(b"n5"))
        assert numbers == [0, 2, 0, 4, 0]
        assert [n for _, n, _, _ in rules.asked] == [1, 2, 3, 4, 5]
        assert queue.send(draft(b"s6")) == [5], "only numbers below a given one stay unused"

    def test_a_queue_publishes_nothing(self) -> None:
        queue = subscription()
        queue.machine.settings.can_send = True
        assert self.asked(queue, draft(b"s1")) == []

    def test_a_duplicate_is_not_evaluated(self) -> None:
        queue, rules = topic(replace(TOPIC, requires_duplicate_detection=True))
        one, other = (Draft(b"s", id, None, None, 0, 0) for id in ("one", "other"))
        queue.run(c.Send(1, 1, 1, [one], True))
        for atomic in (False, True):
            queue.run(c.Send(1, 1, 2, [one, other, one], atomic))
        assert [n for _, n, _, _ in rules.asked] == [1, 3]
        assert passed_on(queue) == {SOME: [b"s", b"s"]}

    def test_what_a_writer_has_sent_before_is_not_evaluated(self) -> None:
        queue, rules = topic()
        one = Draft(b"s", "one", None, None, 0, 0)
        for batch in (1, 1, 2):
            queue.run(c.Send(1, 1, 1, [one], False, "writer", batch))
        queue.run(c.CommitWrites(1, 1, 2, "writer", 3))
        assert refusal(queue.run(c.Send(1, 1, 1, [one], False, "writer", 2))[0]) == BatchOver.condition
        assert len(rules.asked) == 1

    @pytest.mark.parametrize("atomic", [False, True])
    def test_what_is_certainly_refused_is_not_evaluated(self, atomic: bool) -> None:
        queue, rules = topic()
        queue.machine.settings.quota_bytes = 1000
        queue.run(c.Send(1, 1, 1, [draft(b"s" * 1000)], atomic))
        queue.machine.settings.can_send = False
        queue.run(c.Send(1, 1, 2, [draft(b"s")], atomic))
        assert rules.asked == [] and passed_on(queue) == {}

    def test_the_rules_of_a_batch_are_evaluated_once(self) -> None:
        queue, rules = topic(replace(TOPIC, filtering_messages_before_publishing=True))
        queue.send(draft(b"s1"), draft(b"s2"), atomic=True)
        assert [content for content, _, _, _ in rules.asked] == [b"s1", b"s2"]
        answer = queue.run(c.Send(1, 1, 1, [draft(b"s3"), draft(b"n4"), draft(b"s5")], True))
        assert refusal(answer[0]) == NoMatchingSubscription.condition
        assert [content for content, _, _, _ in rules.asked[2:]] == [b"s3", b"n4"], "the rest cannot help"

    def test_what_was_not_evaluated_is_owed(self) -> None:
        """A host that evaluates no rule loses nothing."""
        queue, rules = topic()
        queue.selector = None
        assert queue.step(c.Send(1, 1, 1, [draft(b"s1"), draft(b"s2")], True))
        assert passed_on(queue) == {} and queue.machine.owes_copies()
        queue.step(c.Tick(1))
        assert passed_on(queue) == {} and queue.machine.owes_copies()
        queue.selector = rules
        queue.tick()
        assert passed_on(queue) == {SOME: [b"s1", b"s2"]}


class TestSubscription:
    def test_it_numbers_what_it_gets(self) -> None:
        queue = subscription()
        take(queue, copy(b"a"), copy(b"b"))
        take(queue, copy(b"c"))
        assert [(one.n, one.record.content) for one in queue.receive(5)] == [(1, b"a"), (2, b"b"), (3, b"c")]

    def test_its_changes_state_that_others_may_have_the_same_contents(self) -> None:
        queue = subscription()
        queue.group = True
        take(queue, copy(b"a"))
        changes = queue.commit()
        assert changes is not None and changes.has_copies
        other = Queue()
        other.group = True
        other.send_many(1)
        changes = other.commit()
        assert changes is not None and not changes.has_copies

    def test_the_smallest_time_to_live_counts(self) -> None:
        queue = subscription(replace(SUBSCRIPTION, default_message_time_to_live=100))
        take(queue, copy(b"a"), copy(b"b", ttl=50), copy(b"c", ttl=200))
        assert [one.record.ttl for one in queue.receive(5)] == [100, 50, 100]

    def test_what_could_not_be_judged_is_a_dead_letter(self) -> None:
        queue = subscription()
        take(queue, copy(b"a"), copy(b"!", reason="FilterException"), copy(b"b"))
        assert (queue.counts()[ACTIVE], queue.counts()[DEAD]) == (2, 1)
        [dead] = queue.receive(5, sub=DEAD)
        assert (dead.n, dead.record.content) == (2, b"!")
        assert dead.record.overlay is not None
        assert dead.record.overlay["DeadLetterReason"].endswith(b"FilterException")
        assert [one.n for one in queue.receive(5)] == [1, 3]

    def test_dead_letters_come_in_order_behind_those_that_only_the_store_has(self) -> None:
        queue = subscription()
        take(queue, *[copy(b"!", reason="r") for _ in range(3)])
        queue.restart(clean=False)
        take(queue, copy(b"!", reason="r"))
        assert [one.n for one in queue.receive(5, sub=DEAD)] == [1, 2, 3, 4]

    def test_without_a_session_where_sessions_are_required(self) -> None:
        queue = subscription(replace(SUBSCRIPTION, requires_session=True))
        take(queue, copy(b"a", session="s"), copy(b"b"))
        assert (queue.counts()[ACTIVE], queue.counts()[DEAD]) == (1, 1)
        [dead] = queue.receive(5, sub=DEAD)
        assert dead.record.overlay is not None
        assert dead.record.overlay["DeadLetterReason"].endswith(b"Session ID is null")

    def test_a_disabled_one_gets_copies_all_the_same(self) -> None:
        queue = subscription()
        queue.machine.settings.can_receive = False
        take(queue, copy(b"a"))
        assert queue.counts()[ACTIVE] == 1


class TestMovesAndTransactions:
    def test_a_topic_passes_on_what_it_takes_with_its_hops(self) -> None:
        queue, rules = topic()
        drafts = [Draft(content, "", None, None, 0, 0, 2) for content in (b"some", b"other", b"none")]
        (answer,) = queue.run(c.TakeMoved(1, -1, 5, 9, 1, [3, 4, 7], drafts))
        assert isinstance(answer, e.MovedTaken) and (answer.upto, answer.refused) == (7, 0)
        copies = [copy for taking in queue.machine.take_copies() for copy in taking.copies]
        assert [(copy.content, copy.hops) for copy in copies] == [(b"some", 2), (b"other", 2)]
        assert [n for _, n, _, _ in rules.asked] == [1, 2, 3]
        (answer,) = queue.run(c.TakeMoved(1, -1, 5, 9, 2, [7, 8], [drafts[2], drafts[0]]))
        assert isinstance(answer, e.MovedTaken) and answer.upto == 8
        assert [n for _, n, _, _ in rules.asked] == [1, 2, 3, 4], "what was taken is not evaluated again"

    def test_a_topic_that_takes_only_what_is_selected_stops_at_what_is_not(self) -> None:
        queue, _ = topic()
        queue.machine.settings.only_selected = True
        drafts = [draft(b"some"), draft(b"none"), draft(b"other")]
        (answer,) = queue.run(c.TakeMoved(1, -1, 5, 9, 1, [1, 2, 3], drafts))
        assert isinstance(answer, e.MovedTaken) and (answer.upto, answer.refused) == (1, 1)
        assert answer.condition == NoMatchingSubscription.condition
        assert passed_on(queue) == {SOME: [b"some"]}

    def test_what_a_topic_owes_of_a_move_keeps_its_hops(self) -> None:
        queue = TestFanOut().topic(copies=2)
        drafts = [Draft(b"b", "", None, None, 0, 0, hops) for hops in (1, 2)]
        queue.step(c.TakeMoved(1, -1, 5, 9, 1, [1, 2], drafts))
        assert [record.hops for record in queue.lane(SCHEDULED).values()] == [2]
        queue.tick()
        hops = [copy.hops for taking in queue.machine.take_copies() for copy in taking.copies]
        assert sorted(hops) == [1, 1, 2, 2]

    def test_a_transaction_publishes_with_its_commit_or_not_at_all(self) -> None:
        queue, _ = topic()
        parts: list[c.TransactionPart] = [
            c.Send(1, 1, 0, [draft(b"some"), draft(b"later", scheduled=NOW + 9)], True),
            c.Send(1, 1, 0, [draft(b"both")], True),
        ]
        (answer,) = queue.run(c.Transact(1, 1, 5, [*parts, c.CancelScheduled(1, 1, 0, [99])]))
        assert isinstance(answer, e.Refused) and passed_on(queue) == {}
        assert queue.counts() == [0, 0, 0, 0, 0]
        (answer,) = queue.run(c.Transact(1, 1, 5, parts))
        assert isinstance(answer, e.Done)
        assert passed_on(queue) == {SOME: [b"some", b"both"], OTHERS: [b"both"]}
        assert queue.counts() == [0, 0, 0, 1, 0]

    def test_a_transaction_of_which_no_subscription_selects_a_message_is_refused(self) -> None:
        queue, _ = topic()
        queue.machine.settings.only_selected = True
        send = c.Send(1, 1, 0, [draft(b"some"), draft(b"none")], True)
        (answer,) = queue.run(c.Transact(1, 1, 5, [send]))
        assert refusal(answer) == NoMatchingSubscription.condition and passed_on(queue) == {}

    def test_a_message_sent_via_a_topic_is_no_message_of_it(self) -> None:
        queue, rules = topic()
        away = Draft(b"both", "", None, None, 0, 0, 0, 50, VIA, "elsewhere")
        effects = queue.run(c.Send(1, 1, 5, [draft(b"some"), away, draft(b"other")], True))
        assert isinstance(effects[0], e.Sent) and effects[0].numbers == [1, 2, 3]
        assert [content for content, *_ in rules.asked] == [b"some", b"other"]
        assert passed_on(queue) == {SOME: [b"some"], OTHERS: [b"other"]}
        assert queue.stored.outbox == {50: ("elsewhere", 1)}


class ToEveryone(ByFirstByte):
    """What begins with 'b' is one copy for both subscriptions."""

    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        copies = super().select_copies(content, n, now, ttl)
        if content[:1] == b"b":
            del copies[1:]
            copies[0].everyone = self.fragments
        return copies


class TestSharedCopies:
    def test_what_all_take_is_one_list_until_one_takes_something_else(self) -> None:
        queue, _ = topic()
        queue.selector = ToEveryone()
        queue.run(c.Send(1, 1, 5, [draft(b"b1"), draft(b"b2")], True))
        one, other = queue.machine.take_copies()
        assert [one.fragment, other.fragment] == [SOME, OTHERS] and one.copies is other.copies
        queue.run(c.Send(1, 1, 5, [draft(b"b1"), draft(b"some"), draft(b"b2"), draft(b"other")], True))
        assert passed_on(queue) == {SOME: [b"b1", b"some", b"b2"], OTHERS: [b"b1", b"b2", b"other"]}
        assert queue.machine.take_copies() == []

    def test_a_shared_copy_counts_for_each_subscription(self) -> None:
        sizes = []
        for selector in (ByFirstByte(), ToEveryone()):
            settings = TOPIC.fragment_settings()
            settings.topic = SUBSCRIBED
            settings.quota_bytes = 6 * (OVERHEAD + 100)
            queue = Queue(settings)
            queue.selector = selector
            answer = queue.run(c.Send(1, 1, 5, [draft(b"b" * 100)] * 5, False))[0]
            assert isinstance(answer, e.Sent)
            sizes.append([n for n in answer.numbers if n])
        assert sizes[0] == sizes[1] == [1, 2, 3], "two copies each"

    def shared(self, *contents: bytes) -> SharedCopies:
        shared = SharedCopies([SOME, OTHERS])
        for content in contents:
            shared.add(copy(content))
        return shared

    def store(self, queue: Queue, shared: SharedCopies) -> list[e.Effect]:
        command = c.StoreCopies(1)
        command.copies, command.shared = shared.copies, shared
        return queue.run(command)

    def test_subscriptions_with_the_same_numbers_share_records(self) -> None:
        one, other = subscription(), subscription()
        shared = self.shared(b"1", b"2")
        self.store(one, shared)
        first = list(shared.records)
        self.store(other, shared)
        assert shared.records == first and [record.n for record in first] == [1, 2]
        assert list(one.lane(ACTIVE)) == list(other.lane(ACTIVE)) == [1, 2]
        more = self.shared(b"3")
        for queue in (one, other):
            self.store(queue, more)
        assert [record.n for record in shared.records] == [1, 2], "the list of one fragment is not another's"
        for queue in (one, other):
            assert [record.content for record in queue.lane(ACTIVE).values()] == [b"1", b"2", b"3"]
            assert queue.stored.head.last == 3 and queue.stored.head.size == 3 * (1 + OVERHEAD)

    def test_the_changes_of_both_state_that_they_may_have_the_same_contents(self) -> None:
        shared = self.shared(b"1")
        for queue in (subscription(), subscription()):
            queue.group = True
            self.store(queue, shared)
            changes = queue.commit()
            assert changes is not None and changes.has_copies

    def test_what_becomes_of_a_shared_record_is_no_others_business(self) -> None:
        one, other = subscription(), subscription()
        shared = self.shared(b"1", b"2")
        for queue in (one, other):
            self.store(queue, shared)
        effects = one.run(c.Demand(1, 3, 4, ACTIVE, 1, False, False))
        delivered = next(effect for effect in effects if isinstance(effect, e.Delivered))
        nonce = int(delivered.nonce)
        one.run(c.Settle(1, 3, 5, c.ABANDON, [1], [nonce], {"a": b"\x41"}, False))
        assert one.lane(ACTIVE)[1].deliveries == 1 and one.lane(ACTIVE)[1].overlay == {"a": b"\x41"}
        assert other.lane(ACTIVE)[1].deliveries == 0 and other.lane(ACTIVE)[1].overlay is None

    @pytest.mark.parametrize("what", ["numbers", "time to live", "sessions"])
    def test_subscriptions_that_differ_have_records_of_their_own(self, what: str) -> None:
        one, other = subscription(), subscription()
        if what == "numbers":
            take(other, copy(b"0"))
        elif what == "time to live":
            other.machine.settings.ttl_ms = 50
        else:
            other = subscription(replace(SUBSCRIPTION, requires_session=True))
        shared = self.shared(b"1", b"2")
        for each in shared.copies:
            each.session_id = "s"
        self.store(one, shared)
        self.store(other, shared)
        found = list(other.lane(ACTIVE).values())[-2:]
        assert [record.content for record in found] == [b"1", b"2"]
        assert [record.n for record in found] == ([2, 3] if what == "numbers" else [1, 2])
        assert {record.ttl for record in found} == ({50} if what == "time to live" else {0})
        assert {record.session_id for record in found} == ({"s"} if what == "sessions" else {None})
        assert {record.ttl for record in one.lane(ACTIVE).values()} == {0}
