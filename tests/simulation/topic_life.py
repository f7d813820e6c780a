"""A topic with its subscriptions in the life of their store, and a queue with a tap and one with sessions beside them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from busbar.model import commands as c
from busbar.model.entities import CorrelationFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from busbar.model.message import ACTIVE, DEAD, SCHEDULED, Draft
from busbar.model.settings import FragmentSettings, TapSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings
from tests.simulation.life import LOCK, Kinds, StoreLife
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.queue_life import OUTCOMES
from tests.simulation.session_checker import SessionChecker
from tests.simulation.store_world import StoreWorld
from tests.simulation.tap_checker import TapChecker
from tests.simulation.topic_checker import Kind, TopicChecker, content

QUEUE, SESSIONS, TOPIC = 1, 2, 10
RULES: list[tuple[RuleDescription, Callable[[Kind], bool]]] = [
    (RuleDescription(TrueFilter()), lambda kind: True),
    (
        RuleDescription(CorrelationFilter(properties=(("color", "red"),))),
        lambda kind: kind.color == "red",
    ),
    (RuleDescription(SqlFilter("quantity > 4")), lambda kind: kind.quantity > 4),
    (
        RuleDescription(SqlFilter("color = 'blue'"), SqlAction("SET seen = TRUE")),
        lambda kind: kind.color == "blue",
    ),
]
"""Of the subscriptions, in their order: the second requires sessions, the first has a tap."""


class TopicLife(StoreLife):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, StoreWorld(seed))
        r = self.random
        self.most = r.choice([2, 3, 10])
        self.window = r.choice([0, 0, 100])
        self.ttls = r.choice([[0], [0, 0, 60]])
        self.world.slow_reads = self.ttls == [0]
        self.sessions = ["", "a", "b"]
        self.tags = 0
        self.subscriptions = list(range(TOPIC + 1, TOPIC + 1 + r.choice([2, 3, 4])))
        rules = [RuleSet((("rule", rule),), True) for rule, _ in RULES[: len(self.subscriptions)]]
        self.topic_settings = TopicSettings(0, tuple(self.subscriptions), TopicRules(tuple(rules)))
        self.receiving: list[QueueChecker] = []
        self.add_kinds(self.client_kinds(), r)
        self._make_checkers()
        self.world.start(is_new=True)

    def _make_checkers(self) -> None:
        world = self.world
        tap = TapSettings(1, "tap", ACTIVE, True)
        self.queue = TapChecker(world, self._settings(taps=[tap]), QUEUE)
        self.session_queue = SessionChecker(world, self._settings(requires_session=True), SESSIONS)
        selects = {
            fragment: selects for fragment, (_, selects) in zip(self.subscriptions, RULES, strict=False)
        }
        self.topic = TopicChecker(world, self._topic_settings(True), TOPIC, selects)
        tapped, with_sessions, *others = self.subscriptions
        taps = [TapSettings(2, "tap", ACTIVE, True), TapSettings(3, "dead", DEAD, False, max_bytes=700)]
        self.receiving = [
            self.queue,
            TapChecker(world, self._settings(taps=taps), tapped),
            *[QueueChecker(world, self._settings(), fragment) for fragment in others],
        ]
        self.holding = [
            self.session_queue,
            SessionChecker(world, self._settings(requires_session=True), with_sessions),
        ]

    def _settings(
        self, requires_session: bool = False, taps: list[TapSettings] | None = None
    ) -> FragmentSettings:
        return FragmentSettings(
            LOCK, self.most, 0, True, 0, True, True, requires_session=requires_session, taps=taps
        )

    def _topic_settings(self, can_send: bool) -> FragmentSettings:
        return FragmentSettings(LOCK, 10, 0, False, 0, can_send, True, self.window, topic=self.topic_settings)

    def client_kinds(self) -> Kinds:
        return [
            (self.publish, 12),
            (self.send_beside, 4),
            (self.demand, 10),
            (self.settle, 12),
            (self.leave, 1),
            (self.accept, 5),
            (self.demand_session, 6),
            (self.peek, 1),
            (self.read_tap, 6),
            (self.change_status, 0.5),
            (self.break_machine, 0.4),
            (self.rest, 3),
        ]

    def as_other_owner(self) -> None:
        self.publish()
        self.world.drain()

    def step(self) -> None:
        if self.world.has_broken_machine and self.faults.random() < 0.2:
            self.world.restart()
        super().step()

    def end(self) -> None:
        if self.world.has_broken_machine:
            self.world.crash(True)
        super().end()
        if self.world.has_broken_machine:  # it was to raise, and nothing had been applied to it
            self.world.crash(True)
            super().end()
        self.topic.check_at_rest()
        for checker in (self.queue, self.receiving[1]):
            assert isinstance(checker, TapChecker)
            for reader in checker.readers.values():
                checker.finish(reader)

    def rest(self) -> None:
        """If nothing fails, all that is under way comes to its end."""
        world = self.world
        if world.host.refuses_sends or world.place.disk is None:
            return
        world.drain()
        owed = any(record.due <= world.now for record in self.topic.lane(SCHEDULED).values())
        if world.host.is_idle and world.host.is_serving and not owed and not world.has_broken_machine:
            self.topic.check_at_rest()

    # ---- senders ----

    def _drafts(self) -> list[Draft]:
        r = self.random
        return [self._draft(r) for _ in range(r.choice([1, 1, 2, 3, 8]))]

    def _draft(self, r: Random) -> Draft:
        self.tags += 1
        kind = Kind(r.choice(["red", "blue", "green"]), r.randint(1, 8))
        self.topic.kinds[self.tags] = kind
        due = self.world.now + r.randint(1, 60) if r.random() < 0.1 else 0
        if due:
            self.topic.scheduled.add(self.tags)
        id = r.choice(["", "a", "b", "c", f"id {self.tags}"]) if self.window else ""
        session = r.choice([None, *self.sessions])
        return Draft(content(self.tags, kind, r.choice([0, 50])), id, session, None, r.choice(self.ttls), due)

    def publish(self) -> None:
        self.topic.send(self._drafts(), self.random.random() < 0.5)

    def send_beside(self) -> None:
        r = self.random
        session = r.random() < 0.5
        checker = self.session_queue if session else self.queue
        drafts = [
            Draft(b"x" * r.choice([0, 50]), "", r.choice(self.sessions) if session else None, None, 0, 0)
            for _ in range(r.choice([1, 2, 3]))
        ]
        checker.do(c.Send(checker.fragment, checker.fragment, 1, drafts, r.random() < 0.5))

    def change_status(self) -> None:
        self.topic.change(self._topic_settings(self.random.random() < 0.7))

    def break_machine(self) -> None:
        if self.has_outages:
            self.world.break_machine(self.random.choice([TOPIC, *self.subscriptions]))

    # ---- receivers ----

    def demand(self) -> None:
        r = self.random
        checker = r.choice([*self.receiving, *self.holding])
        sub = DEAD if checker in self.holding else r.choice([ACTIVE, ACTIVE, ACTIVE, DEAD])
        delete = r.random() < 0.2
        consumer = 11 + sub * 2 + delete
        credit, f = r.choice([0, 1, 2, 9]), checker.fragment
        checker.do(c.Demand(f, f, consumer, sub, credit, r.random() < 0.3, delete))

    def leave(self) -> None:
        r = self.random
        checker = r.choice([*self.receiving, *self.holding])
        checker.do(c.Leave(checker.fragment, checker.fragment, r.choice([0, 11, 12, 13, 14])))

    def settle(self) -> None:
        r = self.random
        pool = [checker for checker in (*self.receiving, *self.holding) if checker.seen]
        if pool:
            checker = r.choice(pool)
            locks = r.sample(checker.seen[-8:], min(len(checker.seen), r.choice([1, 2, 3])))
            numbers, nonces = [n for n, _ in locks], [nonce for _, nonce in locks]
            overlay = r.choice([None, None, {"a": b"1"}])
            f, outcome = checker.fragment, r.choice(OUTCOMES)
            checker.do(c.Settle(f, f, 1, outcome, numbers, nonces, overlay, r.random() < 0.3))

    def accept(self) -> None:
        r = self.random
        checker = r.choice(self.holding)
        name = r.choice([None, *self.sessions])
        f = checker.fragment
        checker.do(c.AcceptSession(f, f, 1, next(checker.names), name))

    def demand_session(self) -> None:
        r = self.random
        checker = r.choice(self.holding)
        held = [grip.consumer for grip in checker.model.grips.values()]
        if held:
            f = checker.fragment
            checker.do(c.Demand(f, f, r.choice(held), ACTIVE, r.choice([1, 2, 5]), r.random() < 0.3, False))

    def peek(self) -> None:
        checker = self.random.choice([*self.receiving, *self.holding])
        f = checker.fragment
        checker.do(c.Peek(f, f, 1, self.random.choice([ACTIVE, DEAD]), 0, 5, 9999))

    def read_tap(self) -> None:
        r = self.random
        checker = r.choice(self.receiving[:2])
        assert isinstance(checker, TapChecker)
        reader = r.choice(list(checker.readers.values()))
        act = r.choice([0, 1, 1, 2, 3])
        if act == 0 or reader.at is None:
            checker.show(reader)
        elif act == 1:
            checker.read(reader, r.choice([1, 3, 50]), r.choice([300, 5000]))
        elif act == 2:
            checker.advance(reader, r.choice([0.5, 1]))
        elif reader.truncated:
            checker.resume(reader)
        elif reader.tap.events:
            checker.read_events(reader, r.choice([1, 50]))
